"""The logs of a run's sessions as one stream, in the order of their generations.

Reads what the controller has collected of the logs. Asks no platform, and does not interpret the logs.
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
    """One line that a session wrote, without its line end. Bytes that are not UTF-8 are replaced."""

    session: str
    text: str


def chunks(
    client: Client, run: str, *, follow: bool, stop: Callable[[], bool] = lambda: False
) -> Iterator[Chunk]:
    """(session, bytes) of the run's log. With `follow` it continues until the run rests, or until `stop`
    returns True between two looks."""
    reader, never = _Reader(client.home.folders.run(run)), threading.Event()
    with client.ledgers.runs() as ledger:
        while not stop():
            resting = rests(ledger.record(run))  # asked first, so that all output before the end is read
            yield from reader.fresh()
            if resting or not follow:
                return
            client.clock.wait(never, LOOK_SECONDS)


def lines(data: Iterable[Chunk]) -> Iterator[LogLine]:
    """The same as lines. A session's last line counts even if it has no line end."""
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
    """Reads the log segments below a run's folder; each call continues where the last one stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def fresh(self) -> Iterator[Chunk]:
        """The new data, in order."""
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
        except OSError:  # unreadable, or gone: the middle of a long log is not kept
            return b""
        self._offsets[segment] = offset + len(data)
        return data


def _sessions(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _SESSION.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda pair: int(pair[0][1]))]
