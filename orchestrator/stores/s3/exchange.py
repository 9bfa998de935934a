"""Sends one request and reads the answer, whatever its status, within a time and a size.

Decides how much is read. Must never follow a redirect, which would take a signature elsewhere, nor know what
is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from orchestrator.clock import SystemClock
from orchestrator.core.bounds import MIB

BODY_BYTES_MAX = 8 * MIB  # 1,000 uploads with the longest keys and names have 3
_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class Reply:
    """An answer. `at`: when the service sent it by its own clock, in unix seconds; None if it did not say."""

    status: int
    at: float | None
    body: str


def exchanged(method: str, url: str, headers: Mapping[str, str], seconds: float) -> Reply:
    """Asks for it. `seconds` is the limit for a connection, for each silence, and for the body.

    Raises OSError or HTTPException if no whole answer comes.
    """
    opener = OpenerDirector()  # without what follows redirects and raises errors
    for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
        opener.add_handler(handler)
    response = opener.open(Request(url, method=method, headers=dict(headers)), timeout=seconds)
    assert isinstance(response, HTTPResponse)
    with response:
        body = _body(response, seconds)
        return Reply(response.status, _time(response.headers.get("Date")), body.decode("utf-8", "replace"))


def _body(response: HTTPResponse, seconds: float) -> bytes:
    clock = SystemClock()
    ends, pieces, size = clock.monotonic() + seconds, [], 0
    while piece := response.read(_BLOCK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > BODY_BYTES_MAX:
            raise OSError("the answer has too many bytes")
        if clock.monotonic() > ends:
            raise TimeoutError("timed out")
    return b"".join(pieces)


def _time(text: str | None) -> float | None:
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
