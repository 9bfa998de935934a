"""The live view of one run, for `submit --follow` and `show --follow`. It lasts until the run is over.

It only reads: Ctrl-C ends the view, never the run. It decides only when there is something new to show.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.cli import hints, streams, watching
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import clock_text
from orchestrator.cli.story import NEWS, event_text, short_session
from orchestrator.cli.watching import View
from orchestrator.client import Run, interrupt
from orchestrator.client.interrupt import Interrupt
from orchestrator.client.looking import Look, looks
from orchestrator.core.checkpoint import newest
from orchestrator.core.event import Assigned, Event
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import count_text, number_text, size_text

Beside = Callable[[Look, View], None]

ORPHAN_SECONDS = 4.0  # the view says that no controller runs after this long without one


def follow(
    call: Call, run: Run, lay_out: Callable[[RunRecord], Path] | None = None, beside: Beside | None = None
) -> int:
    """Shows the run until it is over or held, or the user presses Ctrl-C; returns the exit code.

    `lay_out` copies a finished run's newest checkpoint into a folder and returns that folder. `beside` is
    called with each look, and with the view, so that it can remark something between two looks; it also
    sees to it that a controller runs.
    """
    view = watching.view(call.out, run.name)
    watched = None
    try:
        with interrupt.noticed() as away, view:
            watched = _watch(call, run, view, away, beside)
    except KeyboardInterrupt:
        pass
    if watched is None:
        call.out.record({"run": run.name, "view": "ended"})
        call.out.say(f"\nThe view has ended; {run.name} continues. To look again:")
        hints.next_commands(call, run.name, ("show", "-f"), ("cancel",))
        return Exit.INTERRUPTED
    return _end(call, *watched, lay_out)


def _watch(
    call: Call, run: Run, view: View, away: Interrupt, beside: Beside | None
) -> tuple[RunRecord, list[Event]] | None:
    """Shows the run until it rests; returns None if the user presses Ctrl-C first."""
    history: list[Event] = []
    alone_told = False
    for look in looks(call.client, run.name):
        for stored in look.events:
            history.append(stored.event)
            if isinstance(stored.event, NEWS) or call.out.as_json:
                view.event(_session_of(history), stored.event, _news_text(stored.event))
        if beside is not None:
            beside(look, view)
        if look.rests:
            return look.record, history
        view.show(look)
        if beside is None:  # else it says itself what it does
            alone_told = _tell_absence(call, look, view, told=alone_told)
        streams.check()
        if away.seen:
            break
    return None


def _session_of(history: list[Event]) -> str:
    """The session that the newest of these events is about."""
    found = next((event for event in reversed(history) if isinstance(event, Assigned)), None)
    return short_session(found.order.session) if found else ""


def _news_text(event: Event) -> str:
    if isinstance(event, Assigned):
        return f"{event_text(event).partition(' on ')[2]}".join(("starts on ", ""))
    return event_text(event)


def _tell_absence(call: Call, look: Look, view: View, *, told: bool) -> bool:
    """Says once that no controller looks after the run; returns whether it has been said."""
    if look.controller is not None:
        return False
    if not told and look.alone_seconds >= ORPHAN_SECONDS:
        up = call.command("up", "--detach")
        view.remark(f"no controller is running, so nothing new is decided; start one with `{up}`")
        return True
    return told


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
            {"run": run, "phase": record.standing, "sessions": sessions, "reason": record.reason,
             "checkpoint": best, "outputs": record.outputs, "folder": place}
        )  # fmt: skip
        kept = (
            []
            if best is None
            else [("checkpoint", f"step {number_text(best.ref.step)}, {size_text(best.size)}, verified")]
        )
        out.facts([("how", record.reason), *kept, ("folder", str(place) if place else "")])
        hints.next_commands(call, run, ("show",), ("why",), ("logs",), *_to_pull(record, "-o", "DIR"))
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
            "outputs": record.outputs,
        }
    )
    if best is not None:
        out.facts(
            [("checkpoint", f"step {number_text(best.ref.step)}, {size_text(best.size)}, in the home store")]
        )
    if record.standing is Phase.HELD:
        hints.next_commands(call, run, ("why",), *hints.for_held(record))
        return Exit.HUMAN
    again = (("retry",),) if record.phase is Phase.FAILED else ()
    hints.next_commands(call, run, ("why",), ("logs",), *again, *_to_pull(record))
    return Exit.FAILED


def _to_pull(record: RunRecord, *options: str) -> tuple[tuple[str, ...], ...]:
    """The commands that bring home what the run left."""
    checkpoint = (("pull", *options),) if record.accepted else ()
    outputs = (("pull", "--outputs", *options),) if record.outputs else ()
    return (*checkpoint, *outputs)
