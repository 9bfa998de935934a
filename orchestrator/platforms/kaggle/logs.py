"""What a kernel has logged so far, from the log's stream (docs/references/kaggle.md#log), and what its runner
says in it.

Each call gets the stream from the start, so reading is limited in time and size. A running kernel's log that
breaks off must never raise; what arrived before counts.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

import requests
from urllib3.exceptions import HTTPError as TransferError

from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.core.order import AgentStatus
from orchestrator.errors import Transient
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.outbox import SpokenOutbox
from orchestrator.platforms.kaggle.runner import QUOTES, SAYS

END = "END_OF_LOG"
LOG_BYTES_MAX = 64 << 20
TOLD_CHARS_MAX = 1 << 16
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


@dataclass(frozen=True)
class Told:
    """What a runner has printed so far: the agent's newest `status` as JSON, the newest part of the
    training's `log`, the id of the session on Kaggle, and whether it has `left`: then Kaggle only saves its
    output, whose outbox has so many `files` (None: it did not say), and the `empty` ones of these names
    besides, which Kaggle may leave out."""

    status: str | None = None
    log: str = ""
    session_id: int | None = None
    left: bool = False
    files: int | None = None
    empty: frozenset[str] = frozenset()

    @property
    def outbox(self) -> SpokenOutbox | None:
        """What it says of the session's outbox; None: nothing."""
        return None if self.status is None else SpokenOutbox(self.status)


def spoken(data: Iterable[str]) -> Told:
    """Reads a runner's words in the data of a log's events. Events need not end where lines do: a line may be
    in several events, and lines' ends may be missing."""
    told = Told()
    quoted: list[str] = []
    for line in _lines(list(data)):
        if line.startswith(QUOTES):
            quoted.append(line.removeprefix(QUOTES))
        for found in _said(line):
            told = _heard(told, found)
    return replace(told, log="\n".join(quoted)[-TOLD_CHARS_MAX:])


def _lines(pieces: list[str]) -> list[str]:
    """The runner's words begin a line, also after an event without a line's end. But what goes on with a
    quoted line is the training's, unless this log has no line ends."""
    has_ends = any(piece.endswith("\n") for piece in pieces)
    lines = [""]
    for piece in pieces:
        is_quoted = has_ends and lines[-1].startswith(QUOTES)
        first, *others = piece.split("\n")
        if piece.startswith((SAYS, QUOTES)) and not is_quoted:
            lines.append(first)
        else:
            lines[-1] += first
        lines += others
    return lines


def _said(line: str) -> Iterator[dict[str, Any]]:
    """What the runner says in a line, perhaps several times in a row."""
    decoder, at = json.JSONDecoder(), 0
    while line.startswith(SAYS, at):
        try:
            found, at = decoder.raw_decode(line, at + len(SAYS))
        except ValueError:  # words for people, or the line has not arrived whole
            return
        if isinstance(found, dict):
            yield found


def _heard(told: Told, found: dict[str, Any]) -> Told:
    match found:
        case {"session_id": int(number)} if told.session_id is None:  # the first words of all
            return replace(told, session_id=number)
        case {"left": _}:
            files, empty = found.get("files"), found.get("empty")
            return replace(
                told,
                left=True,
                files=files if isinstance(files, int) else None,
                empty=frozenset(map(str, empty)) if isinstance(empty, list) else frozenset(),
            )
        case {"incarnation": _}:
            return replace(told, status=json.dumps(found))
    return told


def checkpoint_of(status: str | bytes) -> str | None:
    """The newest checkpoint that the agent has committed, by its status."""
    data = status.encode() if isinstance(status, str) else status
    try:
        return wire.decode(AgentStatus, data).checkpoint
    except ValueError:
        return None


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
