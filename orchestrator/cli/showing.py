"""`show` and `why`: one run as it is, and how it came to be so. Reads the ledger; `why` may ask platforms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.cli import health, hints, story
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import Output, clock_text, size_text
from orchestrator.cli.watching import Sight
from orchestrator.client import live
from orchestrator.clock import utc_text
from orchestrator.core import wire
from orchestrator.core.checkpoint import newest
from orchestrator.core.event import (
    Assigned,
    CheckpointAccepted,
    Ended,
    Event,
    Started,
    StopRequested,
    Wish,
    Withdrawn,
)
from orchestrator.core.lifecycle import Phase
from orchestrator.core.notes import Notes
from orchestrator.core.offer import Route
from orchestrator.core.order import Order
from orchestrator.core.run import RunRecord
from orchestrator.ledger import Stored

NOTES_SHOWN = 12


@dataclass(frozen=True)
class Stay:
    """One session as the history tells it. `to_step` is of its newest accepted checkpoint."""

    order: Order
    assigned_at: float
    started_at: float | None = None
    over_at: float | None = None
    to_step: int | None = None
    ending: str = ""


def stays(history: Iterable[Event]) -> tuple[Stay, ...]:
    """The run's sessions, in order."""
    found: list[Stay] = []
    for event in history:
        if not found and not isinstance(event, Assigned):
            continue
        match event:
            case Assigned(at=at, order=order):
                found.append(Stay(order, at))
            case Started(at=at):
                found[-1] = replace(found[-1], started_at=at)
            case StopRequested(wish=wish):
                found[-1] = replace(found[-1], ending=f"asked to leave ({wish.value})")
            case CheckpointAccepted(checkpoint=checkpoint):
                found[-1] = replace(found[-1], to_step=max(found[-1].to_step or 0, checkpoint.ref.step))
            case Ended(at=at):
                found[-1] = replace(found[-1], over_at=at, ending=story.ended_text(event))
            case Withdrawn(at=at, reason=reason):
                found[-1] = replace(found[-1], over_at=at, ending=f"never launched: {reason}")
            case _:
                continue
    return tuple(found)


# --- show -------------------------------------------------------------------------------------------------


def show(call: Call) -> int:
    """Everything about one run; with --follow, the live view."""
    with call.home.runs() as ledger:
        run = ledger.find(call.options.run)
        if call.options.follow:
            from orchestrator.cli import following

            return following.follow(call, ledger, run)
        record, history = ledger.record(run), ledger.history(run)
        owner = ledger.owner()
    reading = live.read(call.home.folders, run, record.session.name if record.session else None)
    busy = live.preparing(call.home.folders, run) if record.phase is Phase.PREPARING else ""
    sight = Sight(record, reading, call.clock.now(), call.clock.monotonic(), busy)
    sessions = stays(stored.event for stored in history)
    call.out.document({
        "run": run, "phase": record.standing, "submitted_at": record.submitted_at,
        "ended_at": record.ended_at, "reason": record.standing_reason, "until": record.until,
        "wish": record.wish, "progress": sight.progress,
        "seconds_left": sight.progress.seconds_left, "session": record.session, "reading": reading,
        "sessions": sessions, "checkpoints": record.accepted, "notes": notes_shown(record),
        "strays": record.strays,
        "cooldowns": record.cooldowns, "micro_batch_caps": dict(record.micro_batch_caps),
        "controller": owner, "job": record.job,
    })  # fmt: skip
    out = call.out
    _title(out, record)
    out.facts(_facts(sight))
    if not record.phase.final and owner is None:
        out.facts([("controller", f"none runs: `{call.command('up', '--detach')}` brings one back")])
    _show_sessions(out, record, sessions, call.clock.now())
    _show_notes(out, record)
    if not record.phase.final and owner is not None:
        health.tell_absence(call, owner)
    return Exit.OK


def _title(out: Output, record: RunRecord) -> None:
    phase = record.standing
    out.say(f"{out.paint(record.run, 'bold')}  {out.paint(phase.value, out.phase_colour(phase))}")


def _facts(sight: Sight) -> list[tuple[str, str]]:
    record, found = sight.record, sight.progress
    done = f"{found.step:,} of {found.total:,} {record.job.work.unit} ({found.share:.0%})"
    rows = [
        ("submitted", utc_text(record.submitted_at)),
        ("ended", utc_text(record.ended_at) if record.ended_at else ""),
        ("progress", ", ".join([done, *sight.figures()])),
    ]
    because = _because(record)
    if not record.phase.final and (record.session is not None or not because):
        rows.append(("where", sight.whereabouts()))
    if record.session is not None:
        order = record.session.order
        rows.append(("", f"micro-batch {order.micro_batch} × {order.devices}, {order.precision.value}"))
    if because:
        rows.append(("because", because))
    if record.wish is not None:
        rows.append(("asked", f"to {record.wish.value}"))
    best = newest(record.accepted)
    if best is not None:
        rows.append(("checkpoints", f"{len(record.accepted)} kept, the newest at step {best.ref.step:,}, "
                                    f"{size_text(best.size)}"))  # fmt: skip
    rows += [("clearing up", f"{s.session} on {s.platform}/{s.accelerator}: {_stray_text(s.ended)}")
             for s in record.strays]  # fmt: skip
    return rows


def _because(record: RunRecord) -> str:
    """Why it stands still; empty for a run that goes on, or whose session says it."""
    still = record.session is None and record.standing in (Phase.HELD, Phase.FAILED, Phase.CANCELLED)
    return record.fault or (record.standing_reason if still else "")


def _stray_text(ended: bool) -> str:
    return "over" if ended else "given up for lost, fenced, perhaps still running"


def _show_sessions(out: Output, record: RunRecord, sessions: tuple[Stay, ...], now: float) -> None:
    if not sessions:
        return
    rows = [
        (
            story.short_session(stay.order.session),
            story.place(stay.order),
            f"{stay.order.resume_step:,}",
            "–" if stay.to_step is None else f"{stay.to_step:,}",
            clock_text((stay.over_at or record.ended_at or now) - stay.assigned_at),
            stay.ending or record.standing.value,
        )
        for stay in sessions
    ]
    out.say()
    headers = ("SESSION", "WHERE", "FROM STEP", "TO STEP", "TOOK", "HOW IT ENDED")
    out.table(headers, rows, right=frozenset({2, 3, 4}))


def notes_shown(record: RunRecord) -> tuple[str, ...]:
    """The run's notes for people, with their counts."""
    return Notes(record.notes, record.note_times).shown()


def _show_notes(out: Output, record: RunRecord) -> None:
    notes = notes_shown(record)
    if notes:
        out.say()
        left_out = len(notes) - NOTES_SHOWN
        more = [("note", f"… {left_out} earlier ones: see `why`")] if left_out > 0 else []
        out.facts([*more, *(("note", note) for note in notes[-NOTES_SHOWN:])])


# --- why --------------------------------------------------------------------------------------------------


def why(call: Call) -> int:
    """The story in words with times, then the route: the present one of a queued run, else that of its
    newest decision."""
    with call.home.runs() as ledger:
        run = ledger.find(call.options.run)
        record, history = ledger.record(run), ledger.history(run)
        owner = ledger.owner()
        decided = _journalled_route(history)
        present: Route | None = None
        if record.phase is Phase.QUEUED or (record.standing is Phase.HELD and record.wish is Wish.RELEASE):
            from orchestrator.cli import routing

            present = routing.route_of(call.wired(), ledger, record)
    call.out.document({
        "run": run, "phase": record.standing, "reason": record.standing_reason, "until": record.until,
        "route_now": present, "route_decided": decided[1] if decided else None,
        "route_decided_at": decided[0] if decided else None,
        "events": [
            {"seq": s.seq, "at": s.event.at, "text": story.event_text(s.event), "event": s.event,
             "inputs": s.inputs}
            for s in history
        ],
    })  # fmt: skip
    if call.out.as_json:
        return Exit.OK
    out = call.out
    _title(out, record)
    out.say()
    out.facts((utc_text(at), text) for at, text in story.told(stored.event for stored in history))
    reading = live.read(call.home.folders, run, record.session.name if record.session else None)
    if record.phase is Phase.LAUNCHING and reading is not None and reading.waiting:
        out.say(f"\n{story.short_session(reading.session)} is {reading.waiting}.")
    if record.phase is Phase.QUEUED:
        until = story.until_text(record.until, call.clock.now())
        out.say(f"\nIt waits{until}: {record.reason or 'for its first decision'}")
    if present is not None:
        _show_route(call, record, present, "now")
    elif decided is not None:
        _show_route(call, record, decided[1], f"decided {utc_text(decided[0])}")
    if record.standing is Phase.HELD:
        hints.next_commands(call, run, ("release",), ("cancel",))
    elif not record.phase.final:
        health.tell_absence(call, owner)
    return Exit.OK


def _journalled_route(history: tuple[Stored, ...]) -> tuple[float, Route] | None:
    """The newest route that was decided on, with its time."""
    for stored in reversed(history):
        given = stored.inputs.get("route") if isinstance(stored.inputs, dict) else None
        if given is None:
            continue
        try:
            return stored.event.at, wire.decode(Route, given)
        except ValueError:  # of an older version, or with figures that are not finite
            continue
    return None


def _show_route(call: Call, record: RunRecord, route: Route, when: str) -> None:
    from orchestrator.cli import routing

    rows: list[tuple[str, str]] = []
    if route.chosen is not None:
        rows.append(("route", f"{routing.choice_text(route.chosen, record.job)} ({when})"))
        rows.append(("rate", routing.rate_text(route.chosen, record.job)))
    else:
        rows.append(("route", f"none ({when})"))
    rows += [("possible", routing.choice_text(choice, record.job)) for choice in route.others]
    rows += [("claim", f"{name}: {text}") for name, text in routing.claims(record.job)]
    rows += [("in force", rule) for rule in route.rules]
    call.out.say()
    call.out.facts(rows)
    routing.show_rejections(call.out, route.rejections)
