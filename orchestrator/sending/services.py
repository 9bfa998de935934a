"""Sends a message through the package apprise, which is an extra and imported by the first message.

Decides what apprise is told, and what of its answers may be repeated: nothing but a status code, because its
log and its exceptions may hold the address. It cannot tell a wrong address from an outage, so every failure
is tried again (docs/references/apprise.md).
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import threading
import warnings
from typing import Any
from urllib.parse import urlencode

from orchestrator import installation
from orchestrator.core.delivery import Answer, Delivery
from orchestrator.core.message import Message

CONNECT_SECONDS, READ_SECONDS = 10, 20
_LOGGER = "apprise"
_TALKATIVE = (
    _LOGGER,
    "urllib3.connectionpool",
    "urllib3.util.retry",
    "requests_oauthlib.oauth1_session",
    "oauthlib",
)
_ERROR = re.compile(r"\berror=(\d{3})\b")
_WITH_FIELDS = frozenset({"json", "jsons", "form", "forms", "xml", "xmls"})
_WITH_HEADERS = _WITH_FIELDS | {"mailto", "mailtos"}


def trouble() -> str:
    """Whether the package is missing, in words."""
    if importlib.util.find_spec("apprise") is not None:
        return ""
    return f"needs the package apprise: {installation.found().adding('notify')}"


def send(address: str, message: Message) -> Delivery:
    """Sends it. Blocks as long as apprise does: CONNECT_SECONDS and READ_SECONDS by default."""
    try:
        with _SILENCE:
            apprise = importlib.import_module("apprise")
    except Exception as error:  # noqa: BLE001 of any kind: it is not ours, and its text may be anything
        install = installation.found().adding("notify")
        return Delivery(Answer.LATER, f"apprise cannot be imported ({type(error).__name__}): {install}")
    warnings.filterwarnings("ignore", message="Unverified HTTPS request")  # it names the host
    with _SILENCE:
        try:
            sent = _sent(apprise, address, message)
        except Exception as error:  # noqa: BLE001 told by its type alone: its text may hold the address
            return Delivery(Answer.LATER, f"apprise failed ({type(error).__name__})")
    if sent is None:
        return Delivery(Answer.LATER, "its address is none that apprise knows")
    if sent:
        return Delivery(Answer.SENT, "sent through apprise")
    code = f"answered {_SILENCE.code}" if _SILENCE.code else "it was not sent, or not confirmed in time"
    return Delivery(Answer.LATER, f"{code}, according to apprise")


def _sent(apprise: Any, address: str, message: Message) -> bool | None:
    """Whether it was sent; None if apprise has no service for the address."""
    asset = apprise.AppriseAsset(
        app_id="orchestrator",
        app_desc="notifications of the orchestrator",
        secure_logging=True,
        http_redirects=False,  # a receiver could send the message, and the address in it, anywhere
        async_mode=False,
        plugin_paths=[],  # no code from the user's folders
        storage_mode="memory",
        result_log_disk_size=0,
        service_timeout=0,  # otherwise it sends in a pool that all targets share, and that an exit waits for
    )
    box = apprise.Apprise(asset=asset)
    if not box.add(with_delivery_id(address, message.id)):
        return None
    kind = apprise.NotifyType(message.severity)
    body = f"{message.text}\n\ndelivery {message.id}"
    return bool(box.notify(body=body, title=message.title, notify_type=kind, body_format="text"))


def with_delivery_id(address: str, identity: str) -> str:
    """The address that carries the id in a header and in the body, where the service has those. Limits of
    time that the user wrote into it stay."""
    scheme, _, rest = address.partition("://")
    more: dict[str, str] = {}
    if scheme.lower() in _WITH_HEADERS:
        more["+X-Delivery-Id"] = identity
    if scheme.lower() in _WITH_FIELDS:
        more[":delivery"] = identity
    if scheme.lower() not in ("http", "https"):  # an address of a service is taken as it is
        given = re.findall(r"[?&](cto|rto)=", rest, re.IGNORECASE)
        limits = {"cto": str(CONNECT_SECONDS), "rto": str(READ_SECONDS)}
        more |= {name: value for name, value in limits.items() if name not in map(str.lower, given)}
    if not more:
        return address
    return f"{address}{'&' if '?' in rest else '?'}{urlencode(more, safe=':')}"


class _Silence(logging.Filter):
    """Drops what apprise logs, and what others log in a thread that sends through it: both may hold the
    address. Keeps the last status code of each thread."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()

    def __enter__(self) -> None:
        for name in _TALKATIVE:
            logging.getLogger(name).addFilter(self)  # once, however often it is called
        self._here.sends, self._here.code = True, ""

    def __exit__(self, *_: object) -> None:
        self._here.sends = False

    @property
    def code(self) -> str:
        return str(getattr(self._here, "code", ""))

    def filter(self, record: logging.LogRecord) -> bool:
        if found := _ERROR.search(record.getMessage()):
            self._here.code = found[1]
        return record.name != _LOGGER and not getattr(self._here, "sends", False)


_SILENCE = _Silence()
