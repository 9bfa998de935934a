"""Posts a message as JSON to an http or https address, and judges the answer by its status.

Decides which answers are worth another attempt. Follows no redirect, because the address is a secret, and
reads nothing but the head of the answer. No text of this module contains any part of the address, nor a word
of the receiver, which may repeat it.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import socket
import ssl
import threading
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from orchestrator.clock import SystemClock
from orchestrator.core.delivery import Answer, Delivery
from orchestrator.core.message import Message

SILENCE_SECONDS = 15.0  # for a connection, and for each silence
WHOLE_SECONDS = 30.0  # for the attempt: a receiver may send its answer one byte at a time
ID_HEADER = "X-Delivery-Id"
# Of the client errors, these may pass. All others say that the request itself is wrong (RFC 9110, 15.5).
_PASSING = frozenset({408, 409, 421, 423, 425, 429})
_NOT_AN_ADDRESS = "its address is not a valid one of http or https"


def trouble(address: str) -> str:
    """What is wrong with the address; empty if nothing is."""
    return "" if _parsed(address) is not None else _NOT_AN_ADDRESS


def send(address: str, message: Message) -> Delivery:
    """Posts the message. Blocks for WHOLE_SECONDS at most, besides the look-up of the host's name."""
    parsed = _parsed(address)
    if parsed is None:
        return Delivery(Answer.LATER, _NOT_AN_ADDRESS)
    with _Watch(WHOLE_SECONDS) as watch:
        try:
            status, asked = _post(parsed, message, watch)
        except Exception as error:  # noqa: BLE001 told by its type alone: its text may hold the address
            return Delivery(Answer.LATER, _words(error, late=watch.over))
    return _judged(status, asked)


def _parsed(address: str) -> SplitResult | None:
    try:
        parsed = urlsplit(address)
        holds = parsed.scheme.lower() in ("http", "https") and parsed.hostname and (parsed.port or 1) > 0
    except ValueError:
        return None
    plain = address.isascii() and address.isprintable() and " " not in address
    return parsed if holds and plain else None


def _post(parsed: SplitResult, message: Message, watch: _Watch) -> tuple[int, float | None]:
    """The answer's status, and for how many seconds it asks us to wait."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "orchestrator",
        ID_HEADER: message.id,
    }
    login, _, place = parsed.netloc.rpartition("@")
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(unquote(login).encode()).decode()}"
    url = urlunsplit((parsed.scheme.lower(), place, parsed.path or "/", parsed.query, ""))
    body = json.dumps(message.fields).encode()
    opener = OpenerDirector()  # without what follows redirects and raises errors
    for handler in (ProxyHandler(), _Http(watch), _Https(watch)):
        opener.add_handler(handler)
    response = opener.open(Request(url, body, headers, method="POST"), timeout=SILENCE_SECONDS)
    assert isinstance(response, http.client.HTTPResponse)
    with response:
        return response.status, _asked_seconds(response.headers.get("Retry-After"))


def _judged(status: int, asked: float | None) -> Delivery:
    if 200 <= status < 300:
        return Delivery(Answer.SENT, _status_words(status))
    if 300 <= status < 400:
        said = f"{_status_words(status)}: it sends us elsewhere, which is not followed; use the final address"
        return Delivery(Answer.NEVER, said)
    if status in _PASSING or status >= 500:
        return Delivery(Answer.LATER, _status_words(status), asked)
    return Delivery(Answer.NEVER, f"{_status_words(status)}; check the address")


def _status_words(status: int) -> str:
    """The standard phrase, not the receiver's."""
    with suppress(ValueError):
        return f"answered {status} {HTTPStatus(status).phrase}"
    return f"answered {status}"


def _asked_seconds(text: str | None) -> float | None:
    """The seconds that Retry-After asks for, as a number or a date (RFC 9110, 10.2.3)."""
    if text is None:
        return None
    with suppress(ValueError, OverflowError):
        seconds = float(text)
        return seconds if math.isfinite(seconds) else None
    with suppress(ValueError, OverflowError, TypeError):
        return parsedate_to_datetime(text).timestamp() - SystemClock().now()
    return None


def _words(error: Exception, *, late: bool) -> str:
    reason = getattr(error, "reason", None)
    cause = reason if isinstance(reason, Exception) else error
    if late or isinstance(cause, TimeoutError):
        return f"no answer within {WHOLE_SECONDS if late else SILENCE_SECONDS:.0f} s; it may have arrived"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(cause, ssl.SSLError):
        return "no TLS connection to its host is possible"
    if isinstance(cause, socket.gaierror):
        return "its host is not found"
    if isinstance(cause, ConnectionRefusedError):
        return "its host refuses the connection"
    if isinstance(cause, http.client.RemoteDisconnected | ConnectionError):
        return "it closed the connection without an answer; the message may have arrived"
    if isinstance(cause, http.client.HTTPException):
        return "its answer is not HTTP; the message may have arrived"
    return f"it cannot be reached ({type(cause).__name__})"


class _Watch:
    """Ends the connection after so many seconds. `over` says that it has."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Watch:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def connected(self, connection: socket.socket) -> None:
        self._socket = connection
        if self.over:
            self._end()

    def _end(self) -> None:
        self.over = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class _Http(HTTPHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def http_open(self, req: Request) -> http.client.HTTPResponse:
        watch = self._watch

        class Watched(http.client.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                watch.connected(self.sock)

        return self.do_open(Watched, req)


class _Https(HTTPSHandler):
    def __init__(self, watch: _Watch) -> None:
        self._tls = ssl.create_default_context()
        super().__init__(context=self._tls)
        self._watch = watch

    def https_open(self, req: Request) -> http.client.HTTPResponse:
        watch = self._watch

        class Watched(http.client.HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                watch.connected(self.sock)

        more: dict[str, Any] = {"context": self._tls}
        return self.do_open(Watched, req, **more)
