"""`show` and `why`: a run's state now and how it came about. Reads the ledger; `why` may ask platforms."""

from __future__ import annotations

from orchestrator.cli import curves, gpus, health, hints, pythons, story, watching
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import Output, clock_text
from orchestrator.client import SessionSummary, live
from orchestrator.client.attendance import attendance
from orchestrator.client.looking import Look, look
from orchestrator.client.own_python import of_run
from orchestrator.client.sessions import sessions
from orchestrator.clock import utc_text
from orchestrator.core.checkpoint import newest
from orchestrator.core.event import ActionFailed
from orchestrator.core.lifecycle import Awaited, Phase
from orchestrator.core.notes import Notes
from orchestrator.core.offer import Route, UntilKind
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import count_text, date, number_text, size_text

NOTES_SHOWN = 12
PLACES_SHOWN = 3
IN_SLICES = "in slices, and it sleeps in between: `orchestrator plan` lays them out"


# --- show -------------------------------------------------------------------------------------------------


def show(call: Call) -> int:
    """Shows everything about one run; with --follow, the live view."""
    run = call.client.run(call.options.run)
    if call.options.follow:
        from orchestrator.cli import following

        return following.follow(call, run)
    found = look(call.client, run.name)
    record, owner, reading = found.record, found.controller, found.live
    attended = attendance(call.client)
    history = sessions(stored.event for stored in found.events)
    told = of_run(call.client, record)
    call.out.document({
        "run": run.name, "phase": record.standing, "submitted_at": record.submitted_at,
        "ended_at": record.ended_at, "reason": record.standing_reason, "until": record.until,
        "wish": record.wish, "progress": found.progress,
        "seconds_left": found.progress.seconds_left, "forecast": found.forecast,
        "session": record.session, "reading": reading,
        "sessions": [_session_json(each) for each in history], "checkpoints": record.accepted,
        "outputs": record.outputs,
        "notes": notes_shown(record), "strays": record.strays,
        "cooldowns": record.cooldowns, "micro_batch_caps": dict(record.micro_batch_caps),
        "controller": owner, "controller_state": attended.state, "unattended_since": attended.since,
        "job": record.job, "pythons": told, "gpu_use": gpus.newest_use(found, history),
    })  # fmt: skip
    out = call.out
    if not record.phase.final:
        health.tell_first(call, attended)
    _title(out, record)
    out.facts([*_facts(call, found), *pythons.facts(told), *gpus.facts(found, history)])
    _show_sessions(out, record, history, call.clock.now())
    curves.section(call, run)
    _show_notes(out, record)
    if record.phase is Phase.FAILED:
        hints.next_commands(call, run.name, ("logs",), ("retry",))
    return Exit.OK


def _title(out: Output, record: RunRecord) -> None:
    phase = record.standing
    out.say(f"{out.paint(record.run, 'bold')}  {out.paint(phase.value, out.phase_colour(phase))}")


def _session_json(session: SessionSummary) -> dict[str, object]:
    return {
        "order": session.order, "assigned_at": session.assigned_at, "started_at": session.started_at,
        "over_at": session.over_at, "to_step": session.to_step, "ending": _ending_text(session),
        "gpu_use": session.gpu_use,
    }  # fmt: skip


def _ending_text(session: SessionSummary) -> str:
    """How it ended or is about to end; empty if it continues."""
    if session.withdrawn:
        return f"never launched: {session.message}"
    if session.outcome is not None:
        return story.ending_text(session.outcome, session.message, session.step)
    return f"asked to leave ({session.stop.value})" if session.stop is not None else ""


def _facts(call: Call, look: Look) -> list[tuple[str, str]]:
    record, found = look.record, look.progress
    done = (
        f"{number_text(found.step)} of {number_text(found.total)} {record.job.work.unit} ({found.share:.0%})"
    )
    if found.counted:
        done = f"done; {count_text(found.step, 'save')}"
    rows = [
        ("submitted", utc_text(record.submitted_at)),
        ("ended", utc_text(record.ended_at) if record.ended_at else ""),
        ("progress", ", ".join([done, *watching.figures(look)])),
        ("expected end", _end_text(look)),
        ("last metrics", _metrics_text(call, record) if record.phase.final else ""),
    ]
    because = _because(record)
    if not record.phase.final and (record.session is not None or not because):
        rows.append(("where", watching.whereabouts(look)))
    if record.session is not None:
        order = record.session.order
        rows.append(("", f"micro-batch {order.micro_batch} × {order.devices}, {order.precision.value}"))
    if because:
        rows.append(("because", because))
    last = look.events[-1].event if look.events else None
    if isinstance(last, ActionFailed):
        rows.append(("just now", story.event_text(last)))
    if record.wish is not None:
        rows.append(("asked to", record.wish.value))
    best = newest(record.accepted)
    if best is not None:
        newest_text = f"the newest at step {number_text(best.ref.step)}, {size_text(best.size)}"
        rows.append(("checkpoints", f"{len(record.accepted)} kept, {newest_text}"))
    if record.outputs:
        rows.append(("outputs", _outputs_text(call, record)))
    rows += [("cleaning up", f"{s.session} on {s.platform}/{s.accelerator}: {_stray_text(s.ended)}")
             for s in record.strays]  # fmt: skip
    return rows


def _outputs_text(call: Call, record: RunRecord) -> str:
    """`8.2 MB of 3 sessions, the newest s04: …`, with the command that copies them."""
    size = size_text(sum(each.size for each in record.outputs))
    newest_of = max(each.ref.generation for each in record.outputs)
    whose = f"of {count_text(len(record.outputs), 'session')}, the newest s{newest_of:02d}"
    return f"{size} {whose}: `{call.command('pull', record.run, '--outputs')}`"


def _metrics_text(call: Call, record: RunRecord) -> str:
    """`loss 0.033; accuracy 0.91 at step 100`: what its last session reported, and its newest checkpoint."""
    last = live.last(call.home.folders, record.run)
    status = last.observation.status if last is not None else None
    loss = f"loss {number_text(status.loss)}" if status is not None and status.loss is not None else ""
    best = newest(record.accepted)
    named = ", ".join(f"{name} {number_text(value)}" for name, value in best.metrics.items()) if best else ""
    return "; ".join(
        filter(None, (loss, f"{named} at step {number_text(best.ref.step)}" if named and best else ""))
    )


def _end_text(look: Look) -> str:
    """`2026-11-20 21:52Z, after 2 further sessions`; empty if nothing can be said of it."""
    forecast, sliced = look.forecast, look.in_slices
    if forecast is None:
        return IN_SLICES if sliced else ""
    more = forecast.sessions - 1
    after = f", after {count_text(more, 'further session')}" if more else ""
    return date(forecast.end) + after + (", in slices" if sliced else "")


def _because(record: RunRecord) -> str:
    """Why it does not move; empty if it does, or if its session says why."""
    still = record.session is None and record.standing in (Phase.HELD, Phase.FAILED, Phase.CANCELLED)
    return record.fault or (record.standing_reason if still else "")


def _stray_text(ended: bool) -> str:
    return "over" if ended else "given up as lost and fenced; may still be running"


def _show_sessions(out: Output, record: RunRecord, sessions: tuple[SessionSummary, ...], now: float) -> None:
    if not sessions:
        return
    rows = [
        (
            story.short_session(each.name),
            story.place(each.order),
            number_text(each.from_step),
            "–" if each.to_step is None else number_text(each.to_step),
            clock_text((each.over_at or record.ended_at or now) - each.assigned_at),
            _ending_text(each) or _present_text(record),
        )
        for each in sessions
    ]
    out.say()
    headers = ("SESSION", "WHERE", "FROM STEP", "TO STEP", "TOOK", "HOW IT ENDED")
    out.table(headers, rows, right=frozenset({2, 3, 4}), spare=(2,))


def _present_text(record: RunRecord) -> str:
    """How the run's session is, which is not known to be closed."""
    if record.awaits is Awaited.OUTPUT:
        return "over; its output is awaited"
    return "not known to have ended" if record.fault else record.phase.value


def notes_shown(record: RunRecord) -> tuple[str, ...]:
    """The run's notes for people, with their counts."""
    return Notes(record.notes, record.note_times).shown()


def _show_notes(out: Output, record: RunRecord) -> None:
    notes = notes_shown(record)
    if notes:
        out.say()
        left_out = len(notes) - NOTES_SHOWN
        more = [("note", f"… {left_out} earlier notes: see `why`")] if left_out > 0 else []
        out.facts([*more, *(("note", note) for note in notes[-NOTES_SHOWN:])])


# --- why --------------------------------------------------------------------------------------------------


def why(call: Call) -> int:
    """Prints the story with times, then the route: the present one if the run is queued, else the one of its
    newest decision."""
    run = call.client.run(call.options.run)
    found, routing = look(call.client, run.name), run.route()
    record, history = found.record, found.events
    call.out.document({
        "run": run.name, "phase": record.standing, "reason": record.standing_reason, "until": record.until,
        "route_now": routing.now, "route_decided": routing.decided, "route_decided_at": routing.decided_at,
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
    since = found.live.waits_since if found.live is not None else None
    if record.phase is Phase.LAUNCHING and record.session is not None and since is not None:
        out.say(f"\n{story.short_session(record.session.name)} is {story.waiting_text(since)}.")
    if found.live is not None and found.live.saves and record.session is not None:
        out.say(f"\n{story.short_session(record.session.name)} is {found.live.saving_text}.")
    if record.phase is Phase.QUEUED and record.asleep:
        out.say(f"\nIt is {record.reason}")
    elif record.phase is Phase.QUEUED:
        until = story.until_text(record.until, call.clock.now())
        told = record.waiting_reason(call.clock.now())
        out.say(f"\nIt waits{until}: {told}" if told else f"\nIt waits {_turn_text(record, routing.now)}")
    if routing.now is not None:
        _show_route(call, found, routing.now, "now")
    elif routing.decided is not None and routing.decided_at is not None:
        _show_route(call, found, routing.decided, f"decided {utc_text(routing.decided_at)}")
    if record.standing is Phase.HELD:
        hints.next_commands(call, run.name, *hints.for_held(record))
    elif not record.phase.final:
        health.tell_absence(call, found.controller)
    return Exit.OK


def _turn_text(record: RunRecord, route: Route | None) -> str:
    """What a run waits for that is in nobody's way but has no session."""
    chosen = None if route is None else route.chosen
    if route is None or (chosen is not None and not record.generation and not record.reason):
        return "for its first decision"
    if chosen is not None:
        return f"for its next session: {chosen.offer.platform}/{chosen.offer.accelerator} is free"
    taken = [f"{each.platform}/{each.accelerator}" for each in route.rejections
             if each.until.kind is UntilKind.SLOT]  # fmt: skip
    if not taken:
        return "for an offer to open; what is against each is below"
    more = f" and {len(taken) - PLACES_SHOWN} more" if len(taken) > PLACES_SHOWN else ""
    return f"for a free slot: other runs use {', '.join(taken[:PLACES_SHOWN])}{more}"


def _show_route(call: Call, look: Look, route: Route, when: str) -> None:
    from orchestrator.cli import routing
    from orchestrator.client.routing import claims, rate_is_known

    record, sliced = look.record, look.in_slices
    rows: list[tuple[str, str]] = []
    if route.chosen is not None:
        rows.append(("route", f"{routing.choice_text(route.chosen, record.job, sliced=sliced)} ({when})"))
        rows.append(("rate", routing.rate_text(route.chosen, record.job)))
        rows += routing.losses_fact(route.chosen, record.job)
    else:
        rows.append(("route", f"none ({when})"))
    measured = route.chosen is None or rate_is_known(route.chosen, record.job)
    if sliced:
        rows += [("plan", IN_SLICES)] if measured else []
    else:
        rows += routing.plan_fact(route, call.clock.now())
    rows += [("possible", routing.choice_text(choice, record.job, sliced=sliced)) for choice in route.others]
    rows += [("claim", f"{each.accelerator}: {routing.claim_text(each)}") for each in claims(record.job)]
    rows += [("in force", rule) for rule in route.rules]
    rows += [("to start it", command) for command in routing.starts(route)]
    call.out.say()
    call.out.facts(rows)
    routing.show_rejections(call.out, route.rejections)
