"""`up` and `down`: what the controller's process prints, hears of signals, and becomes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

from orchestrator.cli import shield, story
from orchestrator.cli.call import Call, Exit
from orchestrator.clock import utc_text
from orchestrator.core.event import Event
from orchestrator.core.run import RunRecord


def up(call: Call) -> int:
    """Runs the controller here until it is told to stop, or sees that one runs in the background."""
    if call.options.detach:
        started = call.client.controller.start()
        call.out.document({"started": started.by_us, "controller": started.owner})
        call.out.say(
            "a controller runs in the background"
            if started.by_us
            else f"a controller runs already: {started.owner}"
        )
        return Exit.OK
    shield.up()
    outdated = _control(call)
    sys.stdout.flush()
    if outdated:  # a new process, so that nothing this one has under way runs beside the next controller
        os.execv(sys.executable, [sys.executable, "-P", "-m", "orchestrator", *sys.argv[1:]])
    # What workers are doing right now is idempotent and is decided again by the next controller.
    os._exit(Exit.OK)


def _control(call: Call) -> bool:
    """Whether it left because the config is another now."""
    stop_asked = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        """Sets no Event: its lock may be held by the very code that the signal interrupts."""
        nonlocal stop_asked
        stop_asked = True

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)

    def write(line: dict[str, object], text: str) -> None:
        with contextlib.suppress(OSError):  # a log that cannot be written ends no controller
            call.out.record(line)
            call.out.say(text.replace("\n", "\n  "))  # so that no session's text passes for a line of ours
            sys.stdout.flush()

    def say(text: str) -> None:
        now = call.clock.now()
        write({"at": now, "text": text}, f"{utc_text(now)} {text}")

    def told(record: RunRecord, event: Event) -> None:
        now = call.clock.now()
        text = f"{utc_text(now)} {record.run} {story.event_text(event)}"
        write({"at": now, "run": record.run, "event": event}, text)

    return call.client.controller.run(
        until_idle=call.options.until_idle, stopped=lambda: stop_asked, told=told, say=say
    )


def down(call: Call) -> int:
    """Ends the controller, not the sessions."""
    owner = call.client.controller.stop()
    call.out.document({"ended": owner})
    if owner is None:
        call.out.say("no controller runs")
    else:
        call.out.say(f"the controller (process {owner.pid}) has left; sessions go on by themselves")
    return Exit.OK
