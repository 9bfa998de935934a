"""A place is kept for what a schedule will do: with the real engine, ledger and router, on one machine."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.core.event import Assigned, Deferred
from orchestrator.core.job import Claim, Mode, Overlap, Recurrence, Window, Work
from orchestrator.core.replay import Answer, replay
from orchestrator.core.schedule import Schedule, Steps
from orchestrator.core.session import Session
from orchestrator.engine.reserving import LOOK_SECONDS, Reserving
from orchestrator.ledger import Ledger
from orchestrator.platforms.simulated.scenario import Scenario, SimulatedOffer
from orchestrator.unforeseen import raise_again
from tests.core.runs import job
from tests.simulation.clock import VirtualClock
from tests.test_engine import Make, Small, small

__all__ = ["small"]  # a fixture
MINUTE, HOUR = 60.0, 3600.0
STEPS_PER_SECOND = 5.0
CASE_BYTES_MAX = 2000  # of what is journalled of the offers and the place in the queue, for one machine
OWN = SimulatedOffer("cpu", STEPS_PER_SECOND, session_seconds=None, memory_gb=64.0, disk_gb=100.0)
BOX = Scenario(seed=1, offers=(OWN,), checkpoint_seconds=300.0, poll_seconds=30.0, owned=True)


def work(hours: float) -> dict[str, object]:
    """A job's work that takes so many hours on the machine, and a profile that says so."""
    claim = Claim((STEPS_PER_SECOND, STEPS_PER_SECOND), 16, "cpu", "a test", "2026-11-25")
    profile = replace(job().profiles[0][1], claim=claim)
    total = max(1, round(hours * HOUR * STEPS_PER_SECOND))
    return {"work": Work(total=total, global_batch=16), "profiles": (("default", profile),)}


def daily(at: float, **changes: object) -> Recurrence:
    """Every day at the time of day of this instant."""
    line = f"{datetime.fromtimestamp(at, UTC):%-M %-H} * * *"
    return replace(Recurrence(line, mode=Mode.FRESH), **changes)  # type: ignore[arg-type]


def register(world: Small, recurrence: Recurrence, hours: float) -> None:
    now = world.clock.now()
    nightly = job(name="nightly", schedule=recurrence, **work(hours))
    world.ledger.schedules.add(Schedule("nightly", nightly, "home", now, now))


def register_growing(world: Small, after: float, window_hours: float, hours: float) -> float:
    """One run that trains every day in a window, which opens in so many seconds. Returns when it opens."""
    opens = world.clock.now() + after
    opens -= opens % MINUTE
    minute = int(opens % 86400 // 60)
    window = Window(minute, int(minute + window_hours * 60) % (24 * 60))
    register(world, daily(opens, mode=Mode.CONTINUE, window=window), hours)
    return opens


def session(world: Small, run: str) -> Session | None:
    return world.record(run).session


def nightly(world: Small) -> str:
    """The run that the schedule submitted last; empty if there is none."""
    found = world.ledger.schedules.one("nightly")
    return "" if found is None else found.run


def starts(world: Small, run: str) -> list[float]:
    return [each.event.at for each in world.ledger.history(run) if isinstance(each.event, Assigned)]


def differences(world: Small, *runs: str) -> list[str]:
    """Decisions that the core would not make again from what is journalled."""
    steps = (step for run in runs for step in replay(world.ledger.history(run)))
    return [str(step) for step in steps if step.answer in (Answer.DIFFERS, Answer.UNJUDGED)]


def test_a_session_that_starts_before_a_fire_has_left_by_then(small: Make) -> None:
    world = small(box=BOX)
    fire = world.clock.now() + 3 * HOUR
    fire -= fire % MINUTE
    register(world, daily(fire), 0.5)
    world.submit("long", **work(20))
    assert world.until(lambda: session(world, "long") is not None)
    first = session(world, "long")
    assert first is not None
    assert first.order.budget_seconds is not None
    assert first.assigned_at + first.order.budget_seconds <= fire
    assert world.until(
        lambda: nightly(world) != "" and starts(world, nightly(world)) != [], 4 * HOUR, step=30.0
    )
    assert starts(world, nightly(world))[0] <= fire + 5 * MINUTE
    assert world.until(lambda: len(starts(world, "long")) > 1, seconds=HOUR, step=30.0), (
        "it goes on afterwards"
    )
    assert differences(world, "long", nightly(world)) == []


def test_nothing_starts_just_before_a_fire_and_the_fire_goes_first(small: Make) -> None:
    """Not even a shorter run, which would come before it in the queue."""
    world = small(box=BOX)
    fire = world.clock.now() + 20 * MINUTE
    fire -= fire % MINUTE
    register(world, daily(fire), 1.0)
    world.submit("long", **work(20))
    world.submit("short", **work(0.5))
    assert world.until(
        lambda: nightly(world) != "" and starts(world, nightly(world)) != [], seconds=HOUR, step=10.0
    )
    assert (starts(world, "long"), starts(world, "short")) == ([], [])
    assert starts(world, nightly(world))[0] <= fire + MINUTE
    waits = next(e.event for e in world.ledger.history("short") if isinstance(e.event, Deferred))
    assert "is expected to open at" in waits.reason
    assert world.until(lambda: starts(world, "short") != [], seconds=2 * HOUR, step=10.0)
    assert starts(world, "long") == []
    assert differences(world, "long", "short", nightly(world)) == []


def test_a_growing_run_has_its_window_to_itself(small: Make) -> None:
    """Its work is the most by far, so without its place it would be the last in the queue."""
    world = small(box=BOX)
    register_growing(world, 20 * MINUTE, 6, 500)
    for number in range(3):
        world.submit(f"other-{number}", **work(2))
    assert world.until(
        lambda: nightly(world) != "" and starts(world, nightly(world)) != [], seconds=HOUR, step=10.0
    )
    grows = nightly(world)
    world.until(lambda: False, seconds=5.5 * HOUR, step=60.0)
    assert [starts(world, f"other-{number}") for number in range(3)] == [[], [], []]
    assert world.until(lambda: world.record(grows).asleep, seconds=HOUR, step=30.0)
    asleep_at = world.clock.now()
    assert world.until(lambda: starts(world, "other-0") != [], seconds=HOUR, step=10.0)
    assert starts(world, "other-0")[0] < asleep_at + 10 * MINUTE


def test_a_run_that_sleeps_takes_nobodys_place(small: Make) -> None:
    """Not even if it has less work left than the one that waits."""
    world = small(box=BOX)
    register_growing(world, 5 * MINUTE, 1, 5)
    assert world.until(lambda: nightly(world) != "" and starts(world, nightly(world)) != [], HOUR, step=10.0)
    assert world.until(lambda: world.record(nightly(world)).asleep, 2 * HOUR, step=30.0)
    world.submit("other", **work(10))
    assert world.until(lambda: starts(world, "other") != [], seconds=5 * MINUTE)


def test_a_paused_schedule_keeps_nothing(small: Make) -> None:
    world = small(box=BOX)
    register(world, daily(world.clock.now() + 20 * MINUTE), 1.0)
    world.submit("other", **work(2))
    assert not world.until(lambda: starts(world, "other") != [], seconds=5 * MINUTE)
    before = world.ledger.schedules.one("nightly")
    assert before is not None
    world.ledger.schedules.take(before, Steps(replace(before, paused_at=world.clock.now()), 0.0))
    assert world.until(lambda: starts(world, "other") != [], seconds=MINUTE)


def test_one_that_fires_all_the_time_keeps_nothing(small: Make) -> None:
    """Otherwise no other run would ever have half an hour."""
    world = small(box=BOX)
    register(world, Recurrence("*/20 * * * *", mode=Mode.FRESH, overlap=Overlap.SKIP), 0.1)
    world.submit("other", **work(2))
    assert world.until(lambda: starts(world, "other") != [], seconds=10 * MINUTE)


def test_what_is_journalled_of_a_place_stays_small(small: Make) -> None:
    world = small(box=BOX)
    register(world, daily(world.clock.now() + 3 * HOUR), 0.5)
    world.submit("long", **work(20))
    assert world.until(lambda: starts(world, "long") != [])
    stored = world.ledger.history("long")
    [case] = [each.inputs["case"] for each in stored if each.inputs is not None and each.inputs.get("case")]
    assert case["openings"][0]["until"] is not None
    assert len(json.dumps(case)) < CASE_BYTES_MAX


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")


def test_the_ledger_is_read_once_a_minute_and_when_something_was_done(ledger: Ledger) -> None:
    now = VirtualClock().now()
    reserving = Reserving(ledger, raise_again)
    recurrence = daily(now + HOUR)
    schedule = Schedule("nightly", job(name="nightly", schedule=recurrence), "home", now, now)
    ledger.schedules.add(schedule)
    assert reserving.look(now, 0.0, False).kept == (), "it reads nothing while there is no schedule"
    assert [each.planned for each in reserving.look(now, 0.0, True).kept] == [now + HOUR - now % MINUTE]
    ledger.schedules.remove(schedule, Steps(schedule, None))
    assert reserving.look(now, LOOK_SECONDS - 1.0, False).kept != ()
    assert reserving.look(now, LOOK_SECONDS, False).kept == ()
    ledger.close()
