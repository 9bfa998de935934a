"""`logs`: the logs of a run's sessions as one stream, in the order of their generations; or the controller's.

Reads the logs that the controller has collected so far; asks no platform.
"""

from __future__ import annotations

import codecs
import shutil
import sys
from collections.abc import Callable

from orchestrator.cli import controlling, story, streams
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.terminal import last_state
from orchestrator.client import Run, interrupt
from orchestrator.client.interrupt import Interrupt
from orchestrator.client.logs import SO_FAR, chunks, lines
from orchestrator.clock import utc_text
from orchestrator.errors import InputError

_HELD_MAX = 1 << 20  # characters of an unfinished line


def logs(call: Call) -> int:
    """Prints the run's log; with --follow it continues until the run is over. With --controller it prints
    what the controller logged."""
    if call.options.controller:
        return _of_controller(call)
    if call.options.run is None:
        raise InputError("say which run, or --controller for the controller's own log")
    tail = _tail(call)
    run = call.client.run(call.options.run)
    empty = True
    with interrupt.noticed() as away:
        data = chunks(
            call.client, run.name, follow=call.options.follow, tail=tail, stop=lambda: _is_over(away)
        )
        if call.out.as_json:
            for line in lines(data):
                empty = False
                call.out.record({"session": line.session, "line": line.text})
                streams.check()
        else:
            printer = _printer(call, run)
            for session, new in data:
                empty = False
                printer(session, new)
                streams.check()
            printer("", b"")
    if away.seen:
        return Exit.INTERRUPTED
    if empty and tail != 0:
        over = run.record().phase.final
        call.out.remark(f"{run.name} has no log {'(`prune` removes old logs)' if over else 'yet'}")
    return Exit.OK


def _of_controller(call: Call) -> int:
    if call.options.run is not None or call.options.raw:
        raise InputError("--controller shows the controller's log: it takes no RUN and no --raw")
    tail = _tail(call)
    empty = True
    with interrupt.noticed() as away:
        for entry in call.client.controller.log(
            tail=tail, follow=call.options.follow, stop=lambda: _is_over(away)
        ):
            empty = False
            call.out.record(entry.json())
            call.out.say(controlling.text_of(entry))
            streams.check()
            call.out.flush()
    if away.seen:
        return Exit.INTERRUPTED
    if empty and tail != 0:
        call.out.remark("the controller has not logged anything yet")
    return Exit.OK


def _tail(call: Call) -> int | None:
    tail: int | None = call.options.tail
    if tail is not None and tail < 0:
        raise InputError(f"--tail {tail}: give 0 or more lines")
    return tail


def _is_over(away: Interrupt) -> bool:
    streams.check()
    return away.seen


Printer = Callable[[str, bytes], None]


def _printer(call: Call, run: Run) -> Printer:
    """Returns a function that prints a session's data. The session "" ends the stream."""
    if call.options.raw and not sys.stdout.isatty():
        return _byte_printer()
    lines, before = Lines(in_place=call.options.follow and call.out.is_terminal), ""

    def write(session: str, data: bytes) -> None:
        nonlocal before
        if session != before:
            lines.end()
            if session and not call.options.raw:
                call.out.say(_headline(call, run, session))
                sys.stdout.flush()
        before = session
        lines.take(data)

    return write


def _byte_printer() -> Printer:
    """Prints the bytes unchanged: for a file or a program, never for a terminal."""

    def write(_session: str, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    return write


class Lines:
    """Prints a session's bytes as harmless lines on standard output.

    With `in_place` it also shows an unfinished line, and overwrites it when more of the line arrives.
    """

    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._shown = ""  # the part of the unfinished line that is on the screen

    def take(self, data: bytes, *, last: bool = False) -> None:
        *lines, self._held = (self._held + self._decoder.decode(data, last)).split("\n")
        if last or len(self._held) > _HELD_MAX:
            lines, self._held = [*lines, *([self._held] if self._held else [])], ""
        said = "".join(f"{last_state(line)}\n" for line in lines)
        held = self._fitting(last_state(self._held)) if self._in_place else ""
        if said or held != self._shown:
            over = "\r\x1b[K" if self._shown else ""
            sys.stdout.buffer.write(
                (over + said + held).encode(sys.stdout.encoding, sys.stdout.errors or "replace")
            )
            sys.stdout.buffer.flush()
        self._shown = held

    def end(self) -> None:
        """Ends an unfinished line."""
        self.take(b"", last=True)
        self._decoder.reset()

    def _fitting(self, text: str) -> str:
        """Cut to one row, because only one row can be overwritten; a character may be two columns wide."""
        columns = shutil.get_terminal_size().columns
        return text.expandtabs()[: columns - 1 if text.isascii() else columns // 2]


def _headline(call: Call, run: Run, session: str) -> str:
    name = session.removesuffix(SO_FAR)
    words = [story.short_session(name)]
    if name != session:
        words.append("so far, as its platform shows it")
    for each in run.sessions():
        if each.name == name:
            words += [story.place(each.order), story.resume_text(each.order), utc_text(each.assigned_at)]
    return call.out.paint(f"── {' · '.join(words)} ──", "dim")
