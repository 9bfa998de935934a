"""The live view of one run: what `submit --follow` and `show --follow` look at until the run is over.

Only looks: Ctrl-C ends the view, never the run. Decides nothing but when there is something new to show.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli import hints, interrupt, watching
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.interrupt import Interrupt
from orchestrator.cli.output import clock_text, count_text, size_text
from orchestrator.cli.story import NEWS, event_text, short_session
from orchestrator.cli.watching import Sight, View
from orchestrator.client import live
from orchestrator.core.checkpoint import newest
from orchestrator.core.event import Assigned, Event
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.ledger import Ledger, Stored

LOOK_SECONDS = 0.25
OWNER_SECONDS = 2.0
ORPHAN_SECONDS = 4.0  # so long no controller may be seen before it is said


@dataclass
class _Orphan:
    """Since when nobody controls the run, when that was last looked up, and whether it was said."""

    since: float | None = None
    looked: float | None = None
    told: bool = False


def follow(call: Call, ledger: Ledger, run: str, lay_out: Callable[[RunRecord], Path] | None = None) -> int:
    """Shows the run until it is over, held, or the user looks away; returns the exit code.

    `lay_out` is asked to lay a finished run's newest checkpoint out, and says where it did.
    """
    view = watching.view(call.out, run)
    watched = None
    try:
        with interrupt.noticed() as away, view:
            watched = _watch(call, ledger, run, view, away)
    except KeyboardInterrupt:
        pass
    if watched is None:
        call.out.record({"run": run, "view": "ended"})
        call.out.say(f"\nThe view has ended; {run} goes on. To look again:")
        hints.next_commands(call, run, ("show", "-f"), ("cancel",))
        return Exit.INTERRUPTED
    return _end(call, *watched, lay_out)


def _watch(
    call: Call, ledger: Ledger, run: str, view: View, away: Interrupt
) -> tuple[RunRecord, list[Event]] | None:
    """Until the run rests, or (None) the user looks away."""
    never, orphan = threading.Event(), _Orphan()
    history: list[Event] = []
    seq = 0
    while not away.seen:
        fresh: tuple[Stored, ...] = ledger.history(run, after=seq)
        record = ledger.record(run)
        for stored in fresh:
            seq = stored.seq
            history.append(stored.event)
            if isinstance(stored.event, NEWS) or call.out.as_json:
                view.event(_session_of(history), stored.event, _news_text(stored.event))
        if record.phase.final or (record.standing is Phase.HELD and record.wish is None):
            return record, history
        reading = live.read(call.home.folders, run, record.session.name if record.session else None)
        busy = live.preparing(call.home.folders, run) if record.phase is Phase.PREPARING else ""
        view.show(Sight(record, reading, call.clock.now(), call.clock.monotonic(), busy))
        _look_for_controller(call, ledger, orphan, view)
        call.clock.wait(never, LOOK_SECONDS)
    return None


def _session_of(history: list[Event]) -> str:
    """The session that the newest of these events is about."""
    found = next((event for event in reversed(history) if isinstance(event, Assigned)), None)
    return short_session(found.order.session) if found else ""


def _news_text(event: Event) -> str:
    if isinstance(event, Assigned):
        return f"{event_text(event).partition(' on ')[2]}".join(("starts on ", ""))
    return event_text(event)


def _look_for_controller(call: Call, ledger: Ledger, orphan: _Orphan, view: View) -> None:
    now = call.clock.monotonic()
    if orphan.looked is not None and now - orphan.looked < OWNER_SECONDS:
        return
    orphan.looked = now
    if ledger.owner() is not None:
        orphan.since, orphan.told = None, False
        return
    orphan.since = orphan.since if orphan.since is not None else now
    if not orphan.told and now - orphan.since >= ORPHAN_SECONDS:
        orphan.told = True
        view.remark(f"no controller runs: nothing new is decided until {call.command('up', '--detach')}")


# --- The end ----------------------------------------------------------------------------------------------


def _end(
    call: Call, record: RunRecord, history: list[Event], lay_out: Callable[[RunRecord], Path] | None
) -> int:
    out, run = call.out, record.run
    sessions = sum(isinstance(event, Assigned) for event in history)
    took = clock_text((record.ended_at or call.clock.now()) - record.submitted_at)
    best = newest(record.accepted)
    out.say()
    if record.phase is Phase.DONE:
        words = f"done in {took}, in {count_text(sessions, 'session')}"
        out.say(f"{out.paint(run, 'bold')}  {out.paint(words, 'green')}")
        place = lay_out(record) if lay_out is not None and best is not None else None
        out.record(
            {"run": run, "phase": record.standing, "sessions": sessions, "checkpoint": best, "folder": place}
        )
        if best is not None:
            out.facts([("checkpoint", f"step {best.ref.step:,}, {size_text(best.size)}, verified"),
                       ("folder", str(place) if place else "")])  # fmt: skip
        hints.next_commands(call, run, ("show",), ("why",), ("logs",), ("pull", "-o", "DIR"))
        return Exit.OK
    style = "yellow" if record.standing is Phase.HELD else "red"
    reason = record.standing_reason.removeprefix(f"{record.phase}; ")
    out.say(f"{out.paint(run, 'bold')}  {out.paint(record.standing.value, style)} after {took}: {reason}")
    out.record(
        {
            "run": run,
            "phase": record.standing,
            "sessions": sessions,
            "reason": record.standing_reason,
            "checkpoint": best,
        }
    )
    if best is not None:
        out.facts([("checkpoint", f"step {best.ref.step:,}, {size_text(best.size)}, in the home store")])
    if record.standing is Phase.HELD:
        hints.next_commands(call, run, ("why",), ("release",), ("cancel",))
        return Exit.HUMAN
    hints.next_commands(call, run, ("why",), ("logs",), *((("pull",),) if best else ()))
    return Exit.FAILED
