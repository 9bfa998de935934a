"""What a run's sessions said, as one stream in the order of their generations.

Reads what the controller has brought of their logs; asks no platform, and judges nothing of what they say.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client.looking import rests

if TYPE_CHECKING:
    from orchestrator.client.client import Client

LOOK_SECONDS = 0.5
_READ_BYTES = 1 << 20
_SESSION = re.compile(r".*-s(\d+)")

Chunk = tuple[str, bytes]


@dataclass(frozen=True)
class LogLine:
    """One line that a session wrote, without its end. What is not UTF-8 is replaced."""

    session: str
    text: str


def chunks(
    client: Client, run: str, *, follow: bool, stop: Callable[[], bool] = lambda: False
) -> Iterator[Chunk]:
    """(session, bytes) of the run's log; with `follow` until the run rests, or `stop` says so between two
    looks."""
    reader, never = _Reader(client.home.folders.run(run)), threading.Event()
    with client.ledgers.runs() as ledger:
        while not stop():
            resting = rests(ledger.record(run))  # looked up first: what comes before the end is read
            yield from reader.fresh()
            if resting or not follow:
                return
            client.clock.wait(never, LOOK_SECONDS)


def lines(data: Iterable[Chunk]) -> Iterator[LogLine]:
    """The same as lines. What a session left without an end of line is a line, too."""
    before, held = "", b""
    for session, new in data:
        if session != before and held:
            yield LogLine(before, held.decode(errors="replace"))
            held = b""
        before = session
        *whole, held = (held + new).split(b"\n")
        for line in whole:
            yield LogLine(session, line.decode(errors="replace"))
    if held:
        yield LogLine(before, held.decode(errors="replace"))


class _Reader:
    """The log segments below a run's folder, read from where the last call left off."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def fresh(self) -> Iterator[Chunk]:
        """What is new, in order."""
        for session in _sessions(self._folder):
            for segment in sorted((session / "log").glob("[0-9]*.log")):
                while data := self._read(segment):
                    yield session.name, data

    def _read(self, segment: Path) -> bytes:
        offset = self._offsets.get(segment, 0)
        try:
            with segment.open("rb") as stream:
                stream.seek(offset)
                data = stream.read(_READ_BYTES)
        except OSError:  # gone: of a long log the middle is not kept; or not to be read
            return b""
        self._offsets[segment] = offset + len(data)
        return data


def _sessions(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _SESSION.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda pair: int(pair[0][1]))]
