"""Registers, edits, pauses and removes schedules, and says how they are doing. See `client.schedules`.

Decides what an edit may change and what is refused. Fires happen in the controller; only one that a person
asks for is written here, in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from orchestrator import cron
from orchestrator.client import controlling, lost, planning, routing, submitting
from orchestrator.client.fetching_inputs import Fetching
from orchestrator.client.planning import Plan
from orchestrator.client.wiring import Wired
from orchestrator.core.edits import clash, differences
from orchestrator.core.event import Event, Unscheduled
from orchestrator.core.job import Mode
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.core.schedule import (
    Fire,
    Planned,
    Schedule,
    Steps,
    has_more,
    revived,
)
from orchestrator.core.wording import date
from orchestrator.cron import Upcoming
from orchestrator.engine import scheduling
from orchestrator.errors import BackendError, InputError, LedgerConflict, OrchestratorError
from orchestrator.ledger import Ledger
from orchestrator.ledger.schedules import LOOK_NOW, unknown
from orchestrator.stores import deposits

if TYPE_CHECKING:
    from orchestrator.client.client import Client

Result = TypeVar("Result")
TRIES_MAX = 8  # of a change that somebody else's comes before
_TIMES = ("cron", "timezone", "window")


@dataclass(frozen=True)
class ScheduleStatus:
    """How a schedule is doing. `next_at` is when it fires next, in unix seconds, `window_end` when that
    window closes; None if it does not fire. `state` is active, paused, or ended, and `reason` why it ended,
    or why it has no next fire. `run` is the run that it submitted last, and `phase` that run's phase. `last`
    is what became of its newest planned instant."""

    name: str
    schedule: Schedule
    state: str
    reason: str = ""
    next_at: float | None = None
    window_end: float | None = None
    run: str = ""
    phase: Phase | None = None
    last: Fire | None = None


@dataclass(frozen=True)
class Registration:
    """What registering did: `what` is registered, edited, restarted or unchanged, and `changes` the keys of
    the job that an edit changed. `plan` says where a run would go now. `fire` is what firing it now did;
    `not_fired` says why it did not, and `under_way` is the run for whose sake. `lost` and `warnings` as in
    `Submission`."""

    status: ScheduleStatus
    what: str
    changes: tuple[str, ...]
    plan: Plan
    controller_started: bool
    fire: Fire | None = None
    not_fired: str = ""
    under_way: str = ""
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScheduleChange:
    """The answer to a wish about a schedule. If `changed` is False, it was so already. `status` is the state
    afterwards, and `fire` what firing it now did."""

    status: ScheduleStatus
    changed: bool
    controller_started: bool = False
    fire: Fire | None = None


@dataclass(frozen=True)
class ScheduleRemoval:
    """What removing a schedule did. `status` is its last state; None if it could not be read. `runs` are
    those that wait for a person once their slice is over."""

    name: str
    status: ScheduleStatus | None
    runs: tuple[str, ...]
    controller_started: bool


# --- Looking ----------------------------------------------------------------------------------------------


def statuses(client: Client) -> tuple[ScheduleStatus, ...]:
    """See `Schedules.all`."""
    with client.ledgers.existing() as ledger:
        if ledger is None:
            return ()
        return tuple(_status(ledger, each, client.clock.now()) for each in ledger.schedules.all())


def status(client: Client, name: str) -> ScheduleStatus:
    """See `Schedules.one`."""
    with _ledger(client, name) as ledger:
        return _status(ledger, _found(ledger, name), client.clock.now())


def fires(client: Client, name: str, limit: int | None) -> tuple[Fire, ...]:
    """See `Schedules.fires`."""
    with _ledger(client, name) as ledger:
        _found(ledger, name)
        return ledger.schedules.fires(name, limit)


def upcoming(client: Client, name: str | None, count: int) -> tuple[Upcoming, ...]:
    """See `Schedules.upcoming`."""
    if count < 1:
        raise InputError(f"the count of fires is {count}; it must be 1 or more")
    now = client.clock.now()
    with client.ledgers.existing() as ledger:
        if name is None:
            wanted = () if ledger is None else ledger.schedules.all()
        elif ledger is None:
            raise unknown(name, ())
        else:
            wanted = (_found(ledger, name),)
    found = [each for schedule in wanted for each in _coming(schedule, now, count)]
    return tuple(sorted(found, key=lambda each: (each.planned, each.name))[:count])


def _coming(schedule: Schedule, now: float, count: int) -> Iterator[Upcoming]:
    if schedule.active:
        after = max(schedule.counts_from(now), now)
        for each in islice(cron.planned_after(schedule.recurrence, schedule.name, after), count):
            yield Upcoming(schedule.name, schedule.job, each.planned, each.closes)


def _status(ledger: Ledger, schedule: Schedule, now: float) -> ScheduleStatus:
    first = next(_coming(schedule, now, 1), None)
    state, reason = "active", ""
    if schedule.paused_at is not None:
        state, reason = "paused", f"since {date(schedule.paused_at)}"
    elif schedule.ended:
        state, reason = "ended", schedule.ended
    elif first is None:
        reason = scheduling.no_next(schedule)
    run = next(iter(ledger.summaries(run=schedule.run)), None) if schedule.run else None
    return ScheduleStatus(
        schedule.name,
        schedule,
        state,
        reason,
        None if first is None else first.planned,
        None if first is None else first.window_end,
        schedule.run,
        None if run is None else run.phase,
        next(iter(ledger.schedules.fires(schedule.name, 1)), None),
    )


@contextmanager
def _ledger(client: Client, name: str) -> Iterator[Ledger]:
    with client.ledgers.existing() as ledger:
        if ledger is None:
            raise unknown(name, ())
        yield ledger


def _found(ledger: Ledger, name: str) -> Schedule:
    found = ledger.schedules.one(name)
    if found is None:
        raise unknown(name, [each.name for each in ledger.schedules.all()])
    return found


# --- Registering ------------------------------------------------------------------------------------------


def register(
    client: Client,
    job: str | os.PathLike[str],
    platforms: tuple[str, ...],
    *,
    now: bool,
    unless_running: bool = False,
) -> Registration:
    """See `Schedules.register`."""
    client.home.tighten()
    wired = client.wired()
    parsed = planning.parse(wired, job, platforms)
    if parsed.job.schedule is None:
        raise InputError(f"{job} has no schedule: submit it as it is, or add `schedule:` to it")
    warnings = submitting.config_warnings(wired)
    planning.check_secrets(wired, parsed.job)
    with client.ledgers.made() as ledger:
        market = routing.market(wired, ledger)
        route = routing.route_in(market, ledger, RunRecord(parsed.job.name, parsed.job, client.clock.now()))
        submitting.check_route(route)
        for secret in parsed.job.secrets:
            wired.secret(secret)
        frozen = planning.freeze(parsed, wired.folders.home, Fetching(wired))
        plan = planning.planned(wired, frozen, route, ledger, market.offers())
        at = client.clock.now()
        wanted = Schedule(parsed.job.name, frozen.job, wired.config.home_store, created_at=at, last=at)
        warnings += plan.warnings
        warnings += _share(wired, ledger, wanted) if ledger.is_shared else ()
        what, changes = _tried(lambda: _put(ledger, wanted))
        fire, not_fired, under_way = None, "", ""
        if now:
            with submitting.alone(client.home) if unless_running else nullcontext():
                fired = _fired(client, ledger, wanted.name, unless_running=unless_running)
            fire, not_fired, under_way = fired.fire, fired.refusal, fired.under_way
        started = controlling.ensure(client.home, client.clock, ledger) is None
        missing = {each: tuple(runs) for each, runs in lost.lost(ledger, wired.config).items()}
        status = _status(ledger, _found(ledger, wanted.name), client.clock.now())
    return Registration(status, what, changes, plan, started, fire, not_fired, under_way, missing, warnings)


def _share(wired: Wired, ledger: Ledger, wanted: Schedule) -> tuple[str, ...]:
    """Puts what its runs will need into their home store: the controller that fires it may be on another
    machine. Returns warnings."""
    before = ledger.schedules.one(wanted.name)
    store = wanted.store if before is None else _home_store(before, wanted, _run_of(ledger, before))
    place = deposits.of_schedule(wanted.name)
    return submitting.share(wired, RunRecord(place, wanted.job, wanted.created_at, store=store))


def _put(ledger: Ledger, wanted: Schedule) -> tuple[str, tuple[str, ...]]:
    before = ledger.schedules.one(wanted.name)
    if before is None:
        ledger.schedules.add(wanted)
        return "registered", ()
    run = _run_of(ledger, before)
    wanted = replace(wanted, store=_home_store(before, wanted, run))
    changes = differences(before, wanted.job, wanted.store)
    over = run is not None and run.phase.final and run.phase is not Phase.DONE
    restarts = before.recurrence.mode is Mode.CONTINUE and over
    if not changes and not restarts:
        return "unchanged", ()
    after, freed = _edited(before, wanted, changes, run)
    if restarts:
        after = replace(revived(after, wanted.created_at), run="")
    ledger.schedules.take(before, Steps(after, LOOK_NOW, changes=freed))
    return ("edited" if changes else "restarted"), changes


def _run_of(ledger: Ledger, schedule: Schedule) -> RunRecord | None:
    return next(ledger.records([schedule.run]), None) if schedule.run else None


def _home_store(before: Schedule, wanted: Schedule, run: RunRecord | None) -> str:
    """A run that goes on keeps its home store."""
    continues = before.recurrence.mode is wanted.recurrence.mode is Mode.CONTINUE
    if run is None or not continues:
        return wanted.store
    goes_on = not run.phase.final or (run.phase is Phase.DONE and has_more(wanted, run))
    return run.store if goes_on else wanted.store


def _edited(
    before: Schedule, wanted: Schedule, changes: tuple[str, ...], run: RunRecord | None
) -> tuple[Schedule, tuple[tuple[RunRecord, tuple[Event, ...]], ...]]:
    """The edited schedule keeps its history and its pause. If its times change, they count from the edit. A
    run that it does not continue any more waits for a person once its slice is over."""
    after = replace(
        before, job=wanted.job, store=wanted.store, edited_at=wanted.created_at, edition=before.edition + 1
    )
    if any(f"schedule.{name}" in changes for name in _TIMES):
        after = replace(after, last=max(before.last, wanted.created_at))
    under_way = run is not None and not run.phase.final
    if "schedule.mode" in changes:
        goes = run is not None and under_way and before.recurrence.mode is Mode.CONTINUE
        freed = ((run, (Unscheduled(wanted.created_at),)),) if goes and run is not None else ()
        return replace(revived(after, wanted.created_at), run="", waiting=()), freed
    continues = before.recurrence.mode is Mode.CONTINUE and run is not None
    if continues and run is not None and (under_way or has_more(after, run)):
        _check_goes_on(after, run)
        after = after if under_way else revived(after, wanted.created_at)
    return after, ()


def _check_goes_on(after: Schedule, run: RunRecord) -> None:
    why = clash(run, after.job)
    if why:
        raise InputError(
            f"the schedule {after.name} continues the run {run.run}, and this edit would change what it "
            f"computes: {why}. Undo that; or `orchestrator schedule rm {after.name}` and submit again, which "
            "begins a new run; or give the job another name"
        )


# --- Wishes -----------------------------------------------------------------------------------------------


def pause(client: Client, name: str) -> ScheduleChange:
    """See `Schedules.pause`."""
    return _changed(client, name, lambda before, now: (
        before if before.paused_at is not None else replace(before, paused_at=now)
    ))  # fmt: skip


def resume(client: Client, name: str) -> ScheduleChange:
    """See `Schedules.resume`."""
    return _changed(client, name, lambda before, now: (
        before if before.paused_at is None else replace(before, paused_at=None, last=max(before.last, now))
    ))  # fmt: skip


def _changed(client: Client, name: str, change: Callable[[Schedule, float], Schedule]) -> ScheduleChange:
    def put() -> bool:
        before = _found(ledger, name)
        after = change(before, client.clock.now())
        if after != before:
            ledger.schedules.take(before, Steps(after, LOOK_NOW))
        return after != before

    with _ledger(client, name) as ledger:
        changed = _tried(put)
        found = _status(ledger, _found(ledger, name), client.clock.now())
        needed = found.schedule.active or bool(_under_way(ledger, name))
        started = needed and controlling.ensure(client.home, client.clock, ledger) is None
    return ScheduleChange(found, changed, started)


def run(client: Client, name: str) -> ScheduleChange:
    """See `Schedules.run`."""
    with _ledger(client, name) as ledger:
        done = _fired(client, ledger, name)
        if done.fire is None:
            raise InputError(done.refusal)
        started = controlling.ensure(client.home, client.clock, ledger) is None
        found = _status(ledger, _found(ledger, name), client.clock.now())
    return ScheduleChange(found, True, started, fire=done.fire)


def _refusal(ledger: Ledger, schedule: Schedule, now: float) -> str:
    """Why it cannot fire now; empty if it can."""
    recurrence = schedule.recurrence
    if recurrence.window is not None and cron.closes_at(recurrence, now) is None:
        opens = cron.opens_after(recurrence, now)
        when = "" if opens is None else f", which opens at {cron.local_text(opens, recurrence.timezone)}"
        window = cron.window_text(recurrence.window)
        return f"the schedule {schedule.name} fires only in its window {window}{when}"
    last = _run_of(ledger, schedule)
    done = recurrence.mode is Mode.CONTINUE and last is not None and last.phase is Phase.DONE
    if not done or last is None or has_more(schedule, last):
        return ""
    return (
        f"the schedule {schedule.name} has finished: {last.run} is done. Raise work.total, or choose mode: "
        "fresh, and submit again"
    )


@dataclass(frozen=True)
class _Fired:
    """What firing now did, or why it did not: its `refusal`, and the run that is `under_way`."""

    fire: Fire | None
    refusal: str = ""
    under_way: str = ""


def _fired(client: Client, ledger: Ledger, name: str, *, unless_running: bool = False) -> _Fired:
    """Fires it now, as the controller would."""
    folders = client.home.folders

    def put() -> _Fired:
        schedule, now = _found(ledger, name), client.clock.now()
        if refusal := _refusal(ledger, schedule, now):
            return _Fired(None, refusal)
        if unless_running and (run := _awake(ledger, schedule)):
            return _Fired(None, f"{run} is under way", run)
        asked = Planned(now, now, cron.closes_at(schedule.recurrence, now))
        steps = scheduling.carry_out(ledger, folders, schedule, now, asked=asked)
        return _Fired(next(each for each in steps.fires if each.planned == now))

    return _tried(put)


def _awake(ledger: Ledger, schedule: Schedule) -> str:
    """A run of this job that is under way. The growing one is not while it sleeps: firing wakes it."""
    active = [phase for phase in Phase if not phase.final]
    names = [each.run for each in ledger.summaries(active) if each.name == schedule.name]
    grows = schedule.run if schedule.recurrence.mode is Mode.CONTINUE else ""
    found = (each.run for each in ledger.records(names) if not (each.asleep and each.run == grows))
    return next(found, "")


def unreadable(client: Client) -> dict[str, str]:
    """See `Schedules.unreadable`."""
    with client.ledgers.existing() as ledger:
        return {} if ledger is None else ledger.schedules.unreadable()


def remove(client: Client, name: str) -> ScheduleRemoval:
    """See `Schedules.remove`."""

    def put() -> tuple[ScheduleStatus | None, tuple[str, ...]]:
        now, found = client.clock.now(), None
        limited = ((each, each.slice) for each in _under_way(ledger, name))
        sliced = [each for each, given in limited if given is not None and not given.gone]
        freed = tuple((each, (Unscheduled(now),)) for each in sliced)
        if name in ledger.schedules.unreadable():
            ledger.schedules.remove_unreadable(name, freed)
        else:
            before = _found(ledger, name)
            found = _status(ledger, before, now)
            ledger.schedules.remove(before, Steps(before, None, changes=freed))
        return found, tuple(each.run for each in sliced)

    with _ledger(client, name) as ledger:
        status, runs = _tried(put)
        if ledger.is_shared and not _under_way(ledger, name):
            with suppress(OrchestratorError):  # what stays is small, and of use if it is registered again
                wired = client.wired()
                store = wired.config.home_store if status is None else status.schedule.store
                deposits.remove(wired.store(store), deposits.of_schedule(name))
        started = bool(runs) and controlling.ensure(client.home, client.clock, ledger) is None
    return ScheduleRemoval(name, status, runs, started)


def _under_way(ledger: Ledger, name: str) -> list[RunRecord]:
    records: Iterable[RunRecord] = ledger.records(ledger.schedules.runs_of(name))
    return [each for each in records if each.schedule == name]


def _tried(change: Callable[[], Result]) -> Result:
    """The change's result. It is tried again if the controller's own change came first."""
    for _ in range(TRIES_MAX - 1):
        try:
            return change()
        except LedgerConflict:
            continue
    try:
        return change()
    except LedgerConflict as error:
        raise BackendError(str(error), backend="ledger") from error
