"""`logs`: what a run's sessions said, as one stream in the order of their generations.

Reads what the controller has brought of their logs; asks no platform.
"""

from __future__ import annotations

import codecs
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.cli import interrupt, story
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.terminal import last_state
from orchestrator.clock import utc_text
from orchestrator.core.event import Assigned
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.ledger import Ledger

LOOK_SECONDS = 0.5
_READ_BYTES = 1 << 20
_HELD_MAX = 1 << 20  # characters of a line that has not ended
_SESSION = re.compile(r".*-s(\d+)")


def logs(call: Call) -> int:
    """Prints the run's log; with --follow goes on until the run is over."""
    with call.home.runs() as ledger:
        run = ledger.find(call.options.run)
        reader = Reader(call.home.folders.run(run))
        printer = _printer(call, ledger, run)
        never = threading.Event()
        with interrupt.noticed() as away:
            while not away.seen:
                resting = _resting(ledger.record(run))  # looked up first: what comes before the end is read
                for session, data in reader.fresh():
                    printer(session, data)
                if resting or not call.options.follow:
                    break
                call.clock.wait(never, LOOK_SECONDS)
        printer("", b"")
        if away.seen:
            return Exit.INTERRUPTED
        if reader.is_empty:
            over = ledger.record(run).phase.final
            call.out.remark(f"{run} has no log {'(any more: `prune` removes old ones)' if over else 'yet'}")
    return Exit.OK


def _resting(record: RunRecord) -> bool:
    return record.phase.final or (record.standing is Phase.HELD and record.wish is None)


class Reader:
    """The log segments below a run's folder, read from where the last call left off."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    @property
    def is_empty(self) -> bool:
        return not any(self._offsets.values())

    def fresh(self) -> Iterator[tuple[str, bytes]]:
        """(session, bytes) of what is new, in order."""
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


Printer = Callable[[str, bytes], None]


def _printer(call: Call, ledger: Ledger, run: str) -> Printer:
    """Takes data of a session; the session "" ends the stream."""
    if call.out.as_json:
        return _json_printer(call)
    if call.options.raw and not sys.stdout.isatty():
        return _byte_printer()
    lines, before = Lines(in_place=call.options.follow and call.out.is_terminal), ""

    def write(session: str, data: bytes) -> None:
        nonlocal before
        if session != before:
            lines.end()
            if session and not call.options.raw:
                call.out.say(_headline(call, ledger, run, session))
                sys.stdout.flush()
        before = session
        lines.take(data)

    return write


def _byte_printer() -> Printer:
    """The bytes as they are: for a file or a program, never for a terminal."""

    def write(_session: str, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    return write


class Lines:
    """A session's bytes as harmless lines on standard output. `in_place`: a line that has not ended yet is
    shown as well, and written over when there is more of it."""

    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._shown = ""  # of the line that has not ended

    def take(self, data: bytes, *, last: bool = False) -> None:
        *lines, self._held = (self._held + self._decoder.decode(data, last)).split("\n")
        if last or len(self._held) > _HELD_MAX:
            lines, self._held = [*lines, *([self._held] if self._held else [])], ""
        said = "".join(f"{last_state(line)}\n" for line in lines)
        held = self._fitting(last_state(self._held)) if self._in_place else ""
        if said or held != self._shown:
            over = "\r\x1b[K" if self._shown else ""
            sys.stdout.buffer.write((over + said + held).encode(sys.stdout.encoding, "replace"))
            sys.stdout.buffer.flush()
        self._shown = held

    def end(self) -> None:
        """What has not ended is a line of its own."""
        self.take(b"", last=True)
        self._decoder.reset()

    def _fitting(self, text: str) -> str:
        """On one row, or it could not be written over; characters may be two columns wide."""
        columns = shutil.get_terminal_size().columns
        return text.expandtabs()[: columns - 1 if text.isascii() else columns // 2]


def _json_printer(call: Call) -> Printer:
    before, held = "", b""

    def write(session: str, data: bytes) -> None:
        nonlocal before, held
        if session != before and held:
            call.out.record({"session": before, "line": held.decode(errors="replace")})
            held = b""
        before = session
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            call.out.record({"session": session, "line": line.decode(errors="replace")})

    return write


def _headline(call: Call, ledger: Ledger, run: str, session: str) -> str:
    words = [story.short_session(session)]
    for stored in ledger.history(run):
        if isinstance(stored.event, Assigned) and stored.event.order.session == session:
            order = stored.event.order
            words += [story.place(order), story.resume_text(order), utc_text(stored.event.at)]
    return call.out.paint(f"── {' · '.join(words)} ──", "dim")
