"""What must hold for schedules in every world: no fire is missed or doubled beyond its policy.

Each check is proved by a planted bug: tests/simulation/test_planted_bugs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise, takewhile

from orchestrator import cron
from orchestrator.core.event import Assigned, Slept, Submitted, Woken
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.schedule import LATE_SECONDS, FireOutcome, Schedule, instant_text
from tests.simulation.checks import Check
from tests.simulation.scheduled import ScheduledWorld
from tests.simulation.world import World

ROUNDING = 1e-3  # seconds


def each_fire_does_what_it_says_once(world: World) -> list[str]:
    """A fire that submitted has one run, and a run of a schedule one fire; so has each slice that was
    given."""
    assert isinstance(world, ScheduledWorld)
    found = []
    for schedule, fires in world.everything():
        runs = [run for run in map(world.record, world.ledger.known()) if run.schedule == schedule.name]
        origins = Counter(run.origin for run in runs)
        told = Counter(instant_text(f.planned) for f in fires if f.outcome is FireOutcome.SUBMITTED)
        found += [f"{schedule.name}: {n} runs, and {told[at]} fires of {at}" for at, n in origins.items()
                  if told[at] != n]  # fmt: skip
        found += [f"{schedule.name}: no run of the fire {at}" for at in told if at not in origins]
        woken = Counter(f.planned for f in fires if f.outcome is FireOutcome.WOKEN)
        slices = Counter(at for run in runs for at in _given(world, run.run))
        found += [f"{schedule.name}: the slice of {at} was given {slices[at]} times" for at in woken
                  if slices[at] != 1]  # fmt: skip
    return found


def _given(world: World, run: str) -> tuple[float, ...]:
    """The planned instants whose slices the run was given, besides its first."""
    events = (item.event for item in world.ledger.history(run))
    return tuple(event.slice.planned for event in events if isinstance(event, Woken) and event.slice)


def each_planned_instant_is_handled_once(world: World) -> list[str]:
    """All that was planned while a schedule was neither paused nor over has a fire, and nothing else has.
    Worlds where a clock jumped are exempt from the count: there, nobody can say what was planned."""
    assert isinstance(world, ScheduledWorld)
    if world.clock_jumps:
        return []
    found = []
    for schedule, fires in world.everything():
        handled = world.ended_at.get(schedule.name, schedule.last)
        planned = _planned(world, schedule, handled)
        asked = world.asked[schedule.name]
        own = [fire for fire in fires if fire.planned <= handled and fire.planned not in asked]
        count = sum(fire.count for fire in own)
        if count != len(planned):
            found.append(f"{schedule.name}: {len(planned)} were planned, and {count} handled")
        found += [f"{schedule.name}: {f.planned} was never planned" for f in own if f.planned not in planned]
    return found


def _planned(world: ScheduledWorld, schedule: Schedule, until: float) -> set[float]:
    coming = (p.planned for p in cron.planned_after(schedule.recurrence, schedule.name, schedule.created_at))
    pauses = [*world.pauses[schedule.name]]
    if schedule.paused_at is not None:
        pauses.append((schedule.paused_at, float("inf")))
    return {at for at in takewhile(lambda at: at <= until, coming)
            if not any(since < at <= to for since, to in pauses)}  # fmt: skip


def nothing_is_missed_while_a_controller_looks(world: World) -> list[str]:
    """A fire was missed only if no controller looked within a minute of it."""
    assert isinstance(world, ScheduledWorld)
    if world.clock_jumps or world.naps:
        return []
    found = []
    for schedule, fires in world.everything():
        jitter = schedule.recurrence.jitter_seconds
        for fire in fires:
            late = fire.planned + jitter, fire.planned + LATE_SECONDS
            if fire.outcome is FireOutcome.MISSED and any(late[0] <= at <= late[1] for at in world.ticks):
                found.append(f"{schedule.name}: {fire.planned} was missed: {fire.reason}")
    return found


def nothing_runs_outside_its_window(world: World) -> list[str]:
    """A session is ordered only while the run is awake, and has left when its window closes. Agents that
    freeze and machines that cannot be stopped are exempt, and worlds where a clock jumped."""
    assert isinstance(world, ScheduledWorld)
    found = []
    closes: dict[str, float] = {}
    for run in world.runs:
        record: RunRecord | None = None
        for item in world.ledger.history(run):
            if isinstance(item.event, Submitted):
                record = submit(item.event)
                continue
            assert record is not None
            if isinstance(item.event, Assigned) and record.slice is not None:
                until = record.slice.until
                if record.asleep or (until is not None and item.event.at >= until):
                    found.append(f"{item.event.order.session} was ordered while its run slept")
                if until is not None:
                    closes[item.event.order.session] = until - world.began_at
            record = apply(record, item.event)
    return found if world.clock_jumps else [*found, *_overstaying(world, closes)]


def _overstaying(world: World, closes: dict[str, float]) -> Iterable[str]:
    for platform in world.platforms.values():
        faults = platform.scenario.faults
        if faults.freeze or faults.wedged or faults.double_start:
            continue
        for life in platform.history.lifetimes:
            until = closes.get(life.session)
            if until is not None and (life.ended_at or 0.0) > max(until, life.started_at) + ROUNDING:
                yield f"{life.session} ran until {life.ended_at} s, but its window closed at {until:.0f} s"


def sleep_is_told_once(world: World) -> list[str]:
    """A run that sleeps says so once for each slice and each change of its date, not again and again."""
    found = []
    for run in world.runs:
        events = [item.event for item in world.ledger.history(run)]
        found += [
            f"{run} said twice that it sleeps"
            for one, other in pairwise(events)
            if isinstance(one, Slept) and isinstance(other, Slept) and one.until == other.until
            and one.reason == other.reason
        ]  # fmt: skip
    return found


ALL: tuple[Check, ...] = (
    each_fire_does_what_it_says_once,
    each_planned_instant_is_handled_once,
    nothing_is_missed_while_a_controller_looks,
    nothing_runs_outside_its_window,
    sleep_is_told_once,
)
