"""What a kernel has logged so far, from the log's stream (docs/references/kaggle.md#log).

Each call gets the stream from the start, so reading is limited in time and size. A running kernel's log that
breaks off must never raise; what arrived before counts.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import requests
from urllib3.exceptions import HTTPError as TransferError

from orchestrator.clock import Clock
from orchestrator.errors import Transient
from orchestrator.platforms.kaggle.client import KaggleClient

END = "END_OF_LOG"
LOG_BYTES_MAX = 64 << 20
_CHUNK_BYTES = 1 << 16


def events(client: KaggleClient, slug: str, *, quiet_seconds: float, at_most_seconds: float) -> list[str]:
    """The data of every event since the kernel's start, in order. [] if there is no log or no kernel.

    For a running kernel, reads until no event came for `quiet_seconds`, the log ended, or `at_most_seconds`
    have passed. For an ended kernel, returns all events or raises Transient.
    """
    ends = client.clock.monotonic() + at_most_seconds
    response = client.log_response(slug)
    if response is None:
        return []
    with response:
        if response.headers.get("Content-Type", "").lower().startswith("text/event-stream"):
            return list(_stream(_pieces(response, client.clock, ends, quiet_seconds)))
        return _stored(client, response)


def _stream(pieces: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for piece in pieces:
        *lines, text = (text + decoder.decode(piece)).split("\n")
        for payload in (line.removeprefix("data:").strip() for line in lines if line.startswith("data:")):
            if payload == END:
                return
            yield _event(payload)


def _pieces(response: requests.Response, clock: Clock, ends: float, quiet_seconds: float) -> Iterator[bytes]:
    """Pieces of the log as they arrive, until it ends, breaks off, falls silent or takes too long."""
    heard: SimpleQueue[bytes] = SimpleQueue()
    listener = threading.Thread(target=_listen, args=(response, heard), name="kaggle-log", daemon=True)
    listener.start()
    size = 0
    try:
        while size < LOG_BYTES_MAX and (left := ends - clock.monotonic()) > 0:
            piece = heard.get(timeout=min(quiet_seconds, left))
            if not piece:
                return
            size += len(piece)
            yield piece
    except Empty:
        return
    finally:
        with contextlib.suppress(RuntimeError, ValueError, OSError):  # it has ended
            response.raw.shutdown()
        listener.join(1.0)


def _listen(response: requests.Response, heard: SimpleQueue[bytes]) -> None:
    """Puts each piece that arrives into the queue, and an empty one at the end."""
    try:
        while piece := response.raw.read1(_CHUNK_BYTES, decode_content=True):
            heard.put(piece)
    except (TransferError, OSError, ValueError, AttributeError):  # broken off, or shut down while reading
        return
    finally:
        heard.put(b"")


def _event(payload: str) -> str:
    try:
        return _data(json.loads(payload))
    except ValueError:
        return payload


def _data(event: object) -> str:
    return str(event.get("data", "")) if isinstance(event, dict) else str(event)


def _stored(client: KaggleClient, response: requests.Response) -> list[str]:
    """The log of an ended kernel: a JSON array, empty at first (docs/references/kaggle.md#log)."""
    try:
        body = response.raw.read(LOG_BYTES_MAX, decode_content=True).decode("utf-8", "replace").strip()
        found = json.loads(body) if body else []
    except (TransferError, OSError, ValueError):
        raise Transient(
            "only a part of the kernel's log arrived", backend=client.backend, operation="logs"
        ) from None
    return [_data(event) for event in (found if isinstance(found, list) else [found])]
