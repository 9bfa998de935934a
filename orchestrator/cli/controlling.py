"""`up` and `down`: starts and stops the controller, prints and logs its events, and handles its signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from orchestrator.cli import shield, story
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import simple
from orchestrator.client.controller_log import STATED, ControllerLog, Entry, Level
from orchestrator.clock import utc_text
from orchestrator.core.event import Ended, Event
from orchestrator.core.lifecycle import Kind
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.errors import InputError

WAITS_TEXT = b"stopping once this tick is over; sessions continue. A second signal stops at once\n"
LINE_CHARACTERS_MAX = 2000  # of a line for people, about ten of a terminal
_LEVELS = {
    Kind.GAVE_UP: Level.ERROR,
    Kind.FAULTED: Level.ERROR,
    Kind.ACTION_FAILED: Level.WARNING,
    Kind.CORRUPT: Level.WARNING,
    Kind.HELD: Level.WARNING,
    Kind.TURNED_AWAY: Level.WARNING,
    Kind.WITHDRAWN: Level.WARNING,
}
_CALM = frozenset({Outcome.COMPLETED, Outcome.STOPPED})


def up(call: Call) -> int:
    """Runs the controller here until a signal stops it; with --standby, once no other one runs. With
    --detach, makes sure that one runs in the background."""
    if call.options.detach:
        started = call.client.controller.start()
        call.out.document({"started": started.by_us, "controller": started.owner})
        call.out.say(
            "started a controller in the background"
            if started.by_us
            else f"a controller is already running: {started.owner}"
        )
        return Exit.OK
    shield.up()
    outdated = _control(call)
    sys.stdout.flush()
    if (
        outdated
    ):  # a new process, so that no work of this one runs beside the next controller, or as a standby
        os.execv(sys.executable, [sys.executable, "-P", "-m", "orchestrator", *sys.argv[1:]])
    # The workers' unfinished actions are idempotent, and the next controller decides them again.
    os._exit(Exit.OK)


def _control(call: Call) -> bool:
    """Returns whether the controller left because the config changed."""
    stop_asked = False

    def stop(number: int, _frame: FrameType | None) -> None:
        """Sets no Event, because the interrupted code may hold the Event's lock."""
        nonlocal stop_asked
        if stop_asked:  # also if the first one waits for something that never comes
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop_asked = True
        if os.isatty(2):
            with contextlib.suppress(OSError):
                os.write(2, WAITS_TEXT)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    speaker = _Speaker(call)
    return call.client.controller.run(
        until_idle=call.options.until_idle,
        standby=call.options.standby,
        stopped=lambda: stop_asked,
        told=speaker.told,
        say=speaker.say,
        warn=speaker.warn,
    )


class _Speaker:
    """Writes what the controller says into its log, and onto standard output, unless that is the log."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._mask = call.client.controller.mask()
        self._log = ControllerLog(call.home.path)
        self._alone = self._log.is_standard_output
        self._complained = False

    def say(self, text: str) -> None:
        self._write(Entry(self._call.clock.now(), STATED, text))

    def warn(self, text: str) -> None:
        self._write(Entry(self._call.clock.now(), STATED, text, Level.WARNING))

    def told(self, record: RunRecord, event: Event) -> None:
        order = record.session.order if record.session is not None else getattr(event, "order", None)
        self._write(
            Entry(
                self._call.clock.now(),
                event.kind.value,
                story.event_text(event),
                _level(event),
                record.run,
                order.session if order is not None else "",
                order.platform if order is not None else "",
            ),
            event,
        )

    def _write(self, entry: Entry, event: Event | None = None) -> None:
        entry = Entry(**{**vars(entry), "text": self._mask(entry.text)})
        self._log.write(entry)
        if self._alone:
            return
        with contextlib.suppress(OSError):  # output that cannot be written must not stop the controller
            self._call.out.record({**entry.json(), "body": _masked(simple(event), self._mask)})
            self._call.out.say(text_of(entry))
            sys.stdout.flush()
            if self._log.trouble and not self._complained:
                self._complained = True
                self._call.out.remark(f"the controller's log cannot be written: {self._log.trouble}")


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    """JSON with every text masked. Masking the encoded line could cut an escape in two."""
    if isinstance(value, dict):
        return {mask(key): _masked(each, mask) for key, each in value.items()}
    if isinstance(value, list):
        return [_masked(each, mask) for each in value]
    return mask(value) if isinstance(value, str) else value


def _level(event: Event) -> Level:
    if isinstance(event, Ended):
        return Level.INFO if event.outcome in _CALM else Level.WARNING
    return _LEVELS.get(event.kind, Level.INFO)


def text_of(entry: Entry) -> str:
    """An entry as people read it. Later lines are indented, so that a session's text cannot pose as one, and
    enormous ones are cut."""
    text = "\n  ".join(map(_cut, entry.text.split("\n")))
    if not entry.at:
        return f"  {text}"
    level = f"{entry.level.upper()}: " if entry.level is not Level.INFO else ""
    run = f"{entry.run} " if entry.run else ""
    return f"{utc_text(entry.at)} {level}{run}{text}"


def _cut(line: str) -> str:
    more = len(line) - LINE_CHARACTERS_MAX
    return line if more <= 0 else f"{line[:LINE_CHARACTERS_MAX]} … (cut; {more:,} more characters in --json)"


def down(call: Call) -> int:
    """Stops the controller and the standbys of this machine, but not the sessions."""
    done = call.client.controller.end()
    if done.goes_on is not None and not done.standbys:
        from orchestrator.client.controlling import elsewhere

        raise InputError(elsewhere(done.goes_on))
    call.out.document({"ended": done.owner, "standbys_ended": done.standbys, "standbys": done.waiting})
    for each in done.standbys:
        call.out.say(f"stopped the standby ({each})")
    if done.goes_on is not None:
        call.out.say(f"the controller goes on: {done.goes_on}")
    elif done.owner is not None:
        call.out.say(f"stopped the controller (process {done.owner.pid}); sessions continue without it")
    elif not done.standbys:
        call.out.say("no controller is running")
    if done.waiting:
        call.out.say(
            f"a standby takes over: {done.waiting[0]}; to stop all of it, run `orchestrator down` there"
        )
    return Exit.OK
