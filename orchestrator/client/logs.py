"""The logs of a run's sessions as one stream, in the order of their generations.

Reads what the controller has collected of the logs, and before that the newest lines that a platform shows of
a running session. Asks no platform, and does not interpret the logs.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client import live
from orchestrator.client.looking import rests
from orchestrator.errors import InputError
from orchestrator.files import open_own
from orchestrator.home import Folders

if TYPE_CHECKING:
    from orchestrator.client.client import Client

LOOK_SECONDS = 0.5
SO_FAR = " so far"  # after the name of a session whose log has not been collected yet
_READ_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16  # at a time, from the end
_OVERLAP_CHARS = 1000
_SESSION = re.compile(r".*-s(\d+)")

Chunk = tuple[str, bytes]


@dataclass(frozen=True)
class LogLine:
    """One line that a session wrote, without its line end. Bytes that are not UTF-8 are replaced."""

    session: str
    text: str


def chunks(
    client: Client,
    run: str,
    *,
    follow: bool,
    tail: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Chunk]:
    """(session, bytes) of the run's log; with `tail`, of what was there before only so many of the newest
    lines. With `follow` it continues until the run rests, or until `stop` returns True between two looks."""
    reader, never = _Reader(client.home.folders.run(run)), threading.Event()
    spoken = _Spoken(client.home.folders, run)
    with client.ledgers.runs() as ledger:
        while not stop():
            record = ledger.record(run)  # first, so that all output before the end is read
            resting, session = rests(record), record.session
            if tail is not None:
                said = 0 if session is None or reader.holds(session.name) else spoken.count(session.name)
                reader.skip_to(max(0, tail - said))
            yield from reader.fresh()
            if session is not None and not reader.has(session.name):
                yield from (
                    each if tail is None else _last(each, tail) for each in spoken.fresh(session.name)
                )
            tail = None
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


def _last(chunk: Chunk, lines: int) -> Chunk:
    """Only so many of its lines."""
    session, data = chunk
    whole = data.splitlines(keepends=True)
    return session, b"".join(whole[len(whole) - min(lines, len(whole)) :])


class _Spoken:
    """The newest lines of a running session's log as its platform shows them; the whole log comes later."""

    def __init__(self, folders: Folders, run: str) -> None:
        self._folders = folders
        self._run = run
        self._before: tuple[str, str] = ("", "")

    def count(self, session: str) -> int:
        """How many lines there are."""
        found = live.read(self._folders, self._run, session)
        return 0 if found is None else len(found.observation.log.splitlines())

    def fresh(self, session: str) -> Iterator[Chunk]:
        """The lines that were not there at the last look. They are the session's SO_FAR."""
        found = live.read(self._folders, self._run, session)
        log = "" if found is None else found.observation.log
        before = self._before[1] if self._before[0] == session else ""
        self._before = session, log or before
        if log and log != before:
            yield f"{session}{SO_FAR}", f"{_after(before, log)}\n".encode()


def _after(before: str, log: str) -> str:
    """The end of `log` that follows what was already in `before`; both are ends of the same log."""
    known = before[-_OVERLAP_CHARS:]
    at = log.rfind(known) if known else -1
    return log[at + len(known) :].lstrip("\n") if at >= 0 else log


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

    def skip_to(self, lines: int) -> None:
        """Starts that many lines before the end. Reads from the end, and no more of the logs than that."""
        for session in reversed(_sessions(self._folder)):
            for segment in sorted((session / "log").glob("[0-9]*.log"), reverse=True):
                offset, found = _offset_of(segment, lines)
                self._offsets[segment] = offset
                lines -= found

    def holds(self, session: str) -> bool:
        """Whether there is a log of this session."""
        return any((self._folder / session / "log").glob("[0-9]*.log"))

    def has(self, session: str) -> bool:
        """Whether anything of this session's log was read."""
        return any(segment.parent.parent.name == session for segment in self._offsets)

    def _read(self, segment: Path) -> bytes:
        offset = self._offsets.get(segment, 0)
        try:
            with open_own(segment) as stream:
                stream.seek(offset)
                data = stream.read(_READ_BYTES)
        except (OSError, InputError):  # unreadable, or gone: the middle of a long log is not kept
            return b""
        self._offsets[segment] = offset + len(data)
        return data


def _offset_of(segment: Path, lines: int) -> tuple[int, int]:
    """Where the newest `lines` lines of a file begin, and how many there are. A last line without an end
    counts."""
    try:
        with open_own(segment) as stream:
            at = end = stream.seek(0, os.SEEK_END)
            found = 0
            while at and lines:
                start = max(0, at - _TAIL_BYTES)
                stream.seek(start)
                data = stream.read(at - start)
                last = len(data)
                while (last := data.rfind(b"\n", 0, last)) >= 0:
                    if start + last + 1 == end:
                        continue  # the end of the last line, not of the one before
                    found += 1
                    if found == lines:
                        return start + last + 1, found
                at = start
            return (0, found + 1) if lines and end else (end, 0)
    except (OSError, InputError):
        return 0, 0


def _sessions(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _SESSION.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda pair: int(pair[0][1]))]
