"""Hears each request to Kaggle and its answer, so that a trial can judge what Kaggle really said.

Keeps names, numbers and words; never credentials, tokens, signed URLs, or the content of a file. Decides
nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import requests

from orchestrator.clock import Clock
from orchestrator.platforms.kaggle.answers import clean

LOG, UPLOAD, DOWNLOAD = "log", "upload", "download"
_SECRET = frozenset({"StartBlobUpload", "IntrospectToken"})  # answers that contain tokens
_DROPPED = frozenset({"text", "url", "createUrl", "token", "log"})


@dataclass(frozen=True)
class Heard:
    """One answer. `call` is the method, such as "SaveKernel", or one of the above; `about` the kernel or
    dataset. `status` is the HTTP status, 0 if no answer came. `at` is in monotonic seconds. `ahead` is how
    many seconds the server's clock is ahead of ours, if it says; `version` is that of its API."""

    at: float
    call: str
    about: str = ""
    status: int = 200
    asked: Mapping[str, Any] = field(default_factory=dict)
    answer: Mapping[str, Any] = field(default_factory=dict)
    ahead: float | None = None
    version: str = ""


class Witness:
    """What was heard, in order. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: list[Heard] = []

    @property
    def heard(self) -> tuple[Heard, ...]:
        with self._lock:
            return tuple(self._heard)

    def __call__(
        self, request: requests.PreparedRequest, response: requests.Response | None, secrets: tuple[str, ...]
    ) -> None:
        call = _call(request)
        asked = {} if call in (LOG, UPLOAD, DOWNLOAD) else _json(request.body)
        answer: Mapping[str, Any] = {}
        if response is not None and asked is not None and request.method == "POST" and call not in _SECRET:
            answer = _json(response.content)
        found = Heard(
            self._clock.monotonic(),
            call,
            _about(request, asked),
            0 if response is None else response.status_code,
            _plain(asked, secrets),
            _plain(answer, secrets),
            self._ahead(response),
            "" if response is None else clean(response.headers.get("X-Kaggle-ApiVersion", "")),
        )
        with self._lock:
            self._heard.append(found)

    def _ahead(self, response: requests.Response | None) -> float | None:
        try:
            date = parsedate_to_datetime("" if response is None else response.headers.get("Date", ""))
        except ValueError:
            return None
        return date.timestamp() - self._clock.now()


def _call(request: requests.PreparedRequest) -> str:
    path = (request.path_url or "").partition("?")[0]
    if "/logs/stream/" in path:
        return LOG
    if request.method == "POST":
        return path.rpartition("/")[2]
    return UPLOAD if request.method == "PUT" else DOWNLOAD


def _about(request: requests.PreparedRequest, asked: Mapping[str, Any]) -> str:
    name = asked.get("kernelSlug") or asked.get("datasetSlug") or asked.get("slug") or ""
    if not name and "/logs/stream/" in (request.path_url or ""):
        name = request.path_url
    return str(name).rpartition("/")[2]


def _json(body: object) -> Mapping[str, Any]:
    try:
        found = json.loads(body) if isinstance(body, str | bytes) else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain(value: Any, secrets: tuple[str, ...]) -> Any:
    """Without what must not be kept. Of a log, only whether there is one."""
    if isinstance(value, Mapping):
        kept = {str(key): _plain(item, secrets) for key, item in value.items() if key not in _DROPPED}
        return kept | ({"log": bool(value["log"])} if "log" in value else {})
    if isinstance(value, list):
        return [_plain(item, secrets) for item in value]
    return clean(value, secrets) if isinstance(value, str) else value
