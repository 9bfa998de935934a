"""`schedule`, and `submit` of a job that has one, in words. Times are in the schedule's own zone."""

from __future__ import annotations

from argparse import Namespace

from orchestrator import cron
from orchestrator.cli import leaving as shown
from orchestrator.cli import routing
from orchestrator.cli.call import Call, Exit
from orchestrator.client import Run
from orchestrator.client.deadlines import none_of_a_schedule
from orchestrator.client.lost import sentence
from orchestrator.client.registering import Registration, ScheduleChange, ScheduleStatus
from orchestrator.core.job import Recurrence
from orchestrator.core.schedule import Fire, FireOutcome, Schedule
from orchestrator.core.wording import count_text, span
from orchestrator.cron import Upcoming
from orchestrator.errors import InputError

FIRES_SHOWN = 10
COMING_SHOWN = 3
COUNT = 10
_WHAT = {
    "registered": "registered",
    "edited": "edited",
    "restarted": "restarted: the next fire begins a new run",
    "unchanged": "unchanged",
}


def schedule(call: Call) -> int:
    """`schedule WHAT [NAME]`."""
    return {
        "list": _list, "show": _show, "next": _next, "pause": _pause, "resume": _resume, "run": _run,
        "rm": _rm,
    }[call.options.what](call)  # fmt: skip


# --- submit -----------------------------------------------------------------------------------------------


def check(given: Namespace) -> None:
    """Raises InputError for options of `submit` that no scheduled job can have."""
    if given.deadline is not None:
        raise none_of_a_schedule(given.job)
    if given.follow and not given.now:
        raise InputError("a schedule has nothing to follow yet: add --now, which fires it once at once")


def submit(call: Call) -> int:
    """Registers the schedule of a job, and with --now fires it once at once."""
    from orchestrator.cli.submitting import followed, tell_unlocked

    given = call.options
    done = call.client.schedules.register(
        given.job, platforms=given.platform, now=given.now, unless_running=given.unless_running
    )
    status, zone = done.status, done.status.schedule.recurrence.timezone
    call.out.done = f"the schedule {status.name} was {done.what}"
    tell_unlocked(call, done.plan)
    name = _run_name(done)
    run = Run(call.client, name) if name else None
    follows = given.follow and run is not None
    (call.out.record if follows else call.out.document)(_registration_json(done))
    call.out.say(f"{call.out.paint(status.name, 'bold')}  {_WHAT[done.what]}")
    call.out.facts([
        ("changed", ", ".join(done.changes)),
        *_schedule_facts(status),
        ("now", _fire_text(done.fire, zone) if done.fire else ""),
        ("route now", routing.choice_text(done.plan.route.chosen, done.plan.job)
         if done.plan.route.chosen is not None else ""),
        ("controller", "started in the background; it stays as long as the schedule fires"
         if done.controller_started and status.state == "active" else "running"),
    ])  # fmt: skip
    if done.what in ("registered", "edited"):
        shown.show(call.out, done.plan)
    if done.not_fired:
        call.out.remark(f"not fired now: {done.not_fired}")
    for what, runs in done.lost.items():
        call.out.remark(sentence(what, runs))
    for warning in done.warnings:
        call.out.remark(warning)
    if follows and run is not None:
        return followed(call, run)
    _next_commands(call, status.name, paused=status.state == "paused")
    return Exit.OK


def _run_name(done: Registration) -> str:
    """The run that firing it now gave, or that was under way already."""
    return done.under_way if done.fire is None else done.fire.run


def _registration_json(done: Registration) -> dict[str, object]:
    return {
        "schedule": _status_json(done.status), "registered": done.what, "changes": done.changes,
        "run": _run_name(done) or None, "fire": done.fire,
        "not_fired": done.not_fired or None, "verdict": done.plan.verdict,
        "leaves": shown.document(done.plan), "controller_started": done.controller_started,
        "warnings": done.warnings,
    }  # fmt: skip


def _next_commands(call: Call, name: str, *, paused: bool) -> None:
    words = (("show", name), ("run", name), ("resume" if paused else "pause", name))
    call.out.say()
    call.out.facts(("next", call.command("schedule", *each)) for each in words)


# --- list, show, next -------------------------------------------------------------------------------------


def _list(call: Call) -> int:
    found, unreadable = call.client.schedules.all(), call.client.schedules.unreadable()
    call.out.document({"schedules": [_status_json(each) for each in found], "unreadable": unreadable})
    for reason in unreadable.values():
        call.out.remark(f"{reason}; it does not fire")
    if not found and unreadable:
        return Exit.OK
    if not found:
        call.out.say("there are no schedules: `submit` of a job with `schedule:` registers one")
        return Exit.OK
    rows = [
        (each.name, each.state, each.schedule.recurrence.mode.value, _starts_text(each), each.run or "–",
         "–" if each.phase is None else each.phase.value)
        for each in found
    ]  # fmt: skip
    call.out.table(("SCHEDULE", "STATE", "MODE", "FIRES NEXT", "LAST RUN", "PHASE"), rows, spare=(2, 5, 4, 1))
    notes = [(each.name, each.reason) for each in found if each.reason and each.state != "paused"]
    if notes:
        call.out.say()
        call.out.facts(notes)
    _tell_absence(call, found)
    return Exit.OK


def _show(call: Call) -> int:
    name = call.options.name
    found, fires = call.client.schedules.one(name), call.client.schedules.fires(name, FIRES_SHOWN)
    coming = call.client.schedules.upcoming(name, COMING_SHOWN)
    zone = found.schedule.recurrence.timezone
    call.out.document({
        "schedule": _status_json(found), "job": found.schedule.job, "fires": [_fire_json(f) for f in fires],
        "upcoming": [_coming_json(each) for each in coming],
    })  # fmt: skip
    call.out.say(f"{call.out.paint(found.name, 'bold')}  {found.state}")
    call.out.facts([
        *_schedule_facts(found),
        *(("after that", cron.local_text(each.planned, zone)) for each in coming[1:]),
        ("last run", f"{found.run}, {found.phase.value}" if found.phase else found.run),
        ("waiting", count_text(len(found.schedule.waiting), "fire") if found.schedule.waiting else ""),
        ("registered", cron.local_text(found.schedule.created_at, zone)),
        ("edited", cron.local_text(found.schedule.edited_at, zone) if found.schedule.edited_at else ""),
    ])  # fmt: skip
    if fires:
        call.out.say()
        call.out.table(("PLANNED", "OUTCOME", "RUN", "WHY"), [
            (cron.local_text(each.planned, zone), each.outcome.value, each.run or "–", each.reason)
            for each in fires
        ])  # fmt: skip
    _tell_absence(call, (found,))
    return Exit.OK


def _next(call: Call) -> int:
    name, count = call.options.name, call.options.count
    found = call.client.schedules.upcoming(name, count)
    call.out.document({"upcoming": [_coming_json(each) for each in found]})
    if not found:
        call.out.say("nothing is planned" + (f": {_why_not(call, name)}" if name else ""))
        return Exit.OK
    rows = [(each.name, _local(each, each.planned), _local(each, each.window_end)) for each in found]
    call.out.table(("SCHEDULE", "FIRES", "WINDOW CLOSES"), rows)
    _warn_of_absence(call)
    return Exit.OK


def _why_not(call: Call, name: str) -> str:
    found = call.client.schedules.one(name)
    return found.reason if found.state != "paused" else f"paused {found.reason}"


def _local(each: Upcoming, at: float | None) -> str:
    zone = each.job.schedule.timezone if each.job.schedule is not None else "UTC"
    return "–" if at is None else cron.local_text(at, zone)


# --- pause, resume, run, rm -------------------------------------------------------------------------------


def _pause(call: Call) -> int:
    done = call.client.schedules.pause(call.options.name)
    text = "paused: it fires no more until it is resumed" if done.changed else "is already paused"
    return _answered(call, done, text)


def _resume(call: Call) -> int:
    done = call.client.schedules.resume(call.options.name)
    text = f"{'resumed' if done.changed else 'is not paused'}; {_when(done.status)}"
    return _answered(call, done, text)


def _run(call: Call) -> int:
    done = call.client.schedules.run(call.options.name)
    assert done.fire is not None
    return _answered(call, done, _done_text(done.fire))


def _rm(call: Call) -> int:
    done = call.client.schedules.remove(call.options.name)
    unread = "" if done.status is not None else ", though it could not be read"
    text = f"removed{unread}; its runs stay"
    if done.runs:
        named = ", ".join(done.runs[:3])
        release = call.command("release", done.runs[0])
        text += f". {named}: held once its slice is over; `{release}` lets it run on without a schedule"
    return _said(call, done.name, done.status, text, runs=done.runs, started=done.controller_started)


def _answered(call: Call, done: ScheduleChange, text: str) -> int:
    return _said(
        call, done.status.name, done.status, text,
        changed=done.changed, fire=done.fire, started=done.controller_started,
    )  # fmt: skip


def _said(
    call: Call, name: str, status: ScheduleStatus | None, text: str, *, changed: bool = True,
    runs: tuple[str, ...] = (), fire: Fire | None = None, started: bool,
) -> int:  # fmt: skip
    if started:
        call.out.remark("no controller was running: started one in the background")
    call.out.done = f"{name} {text}"
    call.out.document({
        "schedule": None if status is None else _status_json(status), "changed": changed, "runs": runs,
        "fire": fire, "text": text, "controller_started": started,
    })  # fmt: skip
    call.out.say(f"{name} {text}")
    return Exit.OK


# --- Words ------------------------------------------------------------------------------------------------


def recurrence_facts(given: Recurrence) -> list[tuple[str, str]]:
    """What a job says about when it runs again."""
    english = cron.explain(given.cron)
    line = given.cron if not english else f"{given.cron} ({english[:1].lower()}{english[1:]})"
    continues = given.mode.value == "continue"
    return [
        ("fires", f"{line}, {given.timezone} time"),
        ("mode", "continue: one growing run" if continues else f"fresh, overlap: {given.overlap.value}"),
        ("window", "" if given.window is None else cron.window_text(given.window)),
        ("catch-up", f"{given.catch_up.value} of the fires missed while no controller runs"),
        ("jitter", f"up to {span(given.jitter_seconds)} later" if given.jitter_seconds else ""),
    ]


def _schedule_facts(status: ScheduleStatus) -> list[tuple[str, str]]:
    return [*recurrence_facts(status.schedule.recurrence), ("next", _next_text(status)), *_reason(status)]


def _reason(status: ScheduleStatus) -> list[tuple[str, str]]:
    return [(status.state, status.reason)] if status.state != "active" and status.reason else []


def _starts_text(status: ScheduleStatus) -> str:
    zone = status.schedule.recurrence.timezone
    return "–" if status.next_at is None else cron.local_text(status.next_at, zone)


def _next_text(status: ScheduleStatus) -> str:
    zone = status.schedule.recurrence.timezone
    closes = "" if status.window_end is None else f", until {cron.local_text(status.window_end, zone)}"
    return f"{_starts_text(status)}{closes}"


def _when(status: ScheduleStatus) -> str:
    if status.next_at is None:
        return f"it does not fire: {status.reason}"
    return f"it fires next at {_next_text(status)}"


def _done_text(fire: Fire) -> str:
    what = {
        FireOutcome.SUBMITTED: f"fired: submitted {fire.run}",
        FireOutcome.WOKEN: f"fired: woke {fire.run}",
        FireOutcome.WAITING: "fired: its run waits",
        FireOutcome.SKIPPED: "fired, and was skipped",
        FireOutcome.MISSED: "was missed",
    }[fire.outcome]
    return what + (f": {fire.reason}" if fire.reason else "")


def _fire_text(fire: Fire, zone: str) -> str:
    return f"{_done_text(fire)} ({cron.local_text(fire.planned, zone)})"


def _tell_absence(call: Call, found: tuple[ScheduleStatus, ...]) -> None:
    if any(each.state == "active" for each in found):
        _warn_of_absence(call)


def _warn_of_absence(call: Call) -> None:
    from orchestrator.cli import health

    health.tell_absence(call, call.client.ledgers.owner())


def _status_json(status: ScheduleStatus) -> dict[str, object]:
    kept: Schedule = status.schedule
    zone = kept.recurrence.timezone
    return {
        "name": status.name, "state": status.state, "reason": status.reason or None,
        "next_at": status.next_at,
        "next_local": None if status.next_at is None else cron.local_text(status.next_at, zone),
        "window_end": status.window_end, "run": status.run or None, "phase": status.phase,
        "last_fire": None if status.last is None else _fire_json(status.last),
        "recurrence": kept.recurrence, "store": kept.store, "waiting": kept.waiting,
        "created_at": kept.created_at, "edited_at": kept.edited_at, "paused_at": kept.paused_at,
    }  # fmt: skip


def _fire_json(fire: Fire) -> dict[str, object]:
    return {
        "planned": fire.planned, "at": fire.at, "outcome": fire.outcome, "run": fire.run or None,
        "reason": fire.reason or None, "count": fire.count,
    }  # fmt: skip


def _coming_json(each: Upcoming) -> dict[str, object]:
    return {
        "schedule": each.name, "planned": each.planned, "local": _local(each, each.planned),
        "window_end": each.window_end,
    }  # fmt: skip
