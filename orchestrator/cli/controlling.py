"""`up` and `down`: starts and stops the controller, prints its events and handles its signals."""

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
from orchestrator.errors import InputError


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

    def stop(_signal: int, _frame: FrameType | None) -> None:
        """Sets no Event, because the interrupted code may hold the Event's lock."""
        nonlocal stop_asked
        stop_asked = True

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)

    def write(line: dict[str, object], text: str) -> None:
        with contextlib.suppress(OSError):  # a log that cannot be written must not stop the controller
            call.out.record(line)
            # Indented, so that a session's text cannot pose as one of our lines.
            call.out.say(text.replace("\n", "\n  "))
            sys.stdout.flush()

    def say(text: str) -> None:
        now = call.clock.now()
        write({"at": now, "text": text}, f"{utc_text(now)} {text}")

    def told(record: RunRecord, event: Event) -> None:
        now = call.clock.now()
        text = f"{utc_text(now)} {record.run} {story.event_text(event)}"
        write({"at": now, "run": record.run, "event": event}, text)

    return call.client.controller.run(
        until_idle=call.options.until_idle,
        standby=call.options.standby,
        stopped=lambda: stop_asked,
        told=told,
        say=say,
    )


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
