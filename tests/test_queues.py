"""Sessions in a platform's queue: they wait as long as it promises and pay nothing before the start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.charges import charges
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.estimate import estimate, terms
from orchestrator.core.event import Began, Ended, Event, Launched, Started, Submitted
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Offer, Quota, Traits
from orchestrator.core.order import Outcome
from orchestrator.core.session import Observation, Sighting
from orchestrator.core.speed import Evidence, Rate
from orchestrator.core.watch import Watch
from orchestrator.platforms.simulated.scenario import QuotaWindow
from tests.core import runs
from tests.core.runs import NOW, RUN
from tests.test_engine import Make, Small, scenario, small

__all__ = ["small"]  # a fixture

HOUR = 3600.0
WALL_SECONDS = 1800.0  # of the scenario's sessions


def ends(world: Small, run: str) -> list[Outcome]:
    return [each.event.outcome for each in world.ledger.history(run) if isinstance(each.event, Ended)]


def moments(world: Small, run: str) -> dict[type[Event], float]:
    """When each kind of event happened first."""
    return {type(each.event): each.event.at for each in reversed(world.ledger.history(run))}


def test_a_session_that_waits_for_longer_than_its_wall_is_waited_for(small: Make) -> None:
    world = small(box=scenario(queue_seconds=4 * HOUR, pending_seconds_max=5 * HOUR))
    world.submit("first")
    assert world.until(world.phase("first", Phase.LAUNCHING))
    assert world.until(lambda: world.record("first").phase is not Phase.LAUNCHING, seconds=4.5 * HOUR)
    at = moments(world, "first")
    assert at[Started] - at[Launched] > WALL_SECONDS, "the seed draws a long wait"
    assert ends(world, "first") == []
    session = world.record("first").session
    assert session is not None
    assert session.wall_at == pytest.approx(at[Started] + WALL_SECONDS)
    assert world.until(world.phase("first", Phase.DONE), seconds=10 * HOUR)
    assert ends(world, "first") == [Outcome.COMPLETED]


def test_a_session_that_waits_for_longer_than_promised_is_given_up(small: Make) -> None:
    world = small(full=scenario(queue_seconds=1e6, pending_seconds_max=0.5 * HOUR))
    world.submit("first")
    assert world.until(world.phase("first", Phase.LAUNCHING))
    assert world.until(lambda: ends(world, "first") != [], seconds=HOUR)
    assert ends(world, "first") == [Outcome.NO_CAPACITY]
    at = moments(world, "first")
    assert 0.5 * HOUR <= at[Ended] - at[Launched] <= HOUR


def test_a_controller_that_was_away_does_not_count_the_wait_against_the_wall(small: Make) -> None:
    """Nothing was heard for longer than the session's limit, but the session spent that time in the queue."""
    world = small(box=scenario(queue_seconds=4 * HOUR, pending_seconds_max=5 * HOUR))
    world.submit("first")
    assert world.until(world.phase("first", Phase.LAUNCHING))
    world.clock.advance(WALL_SECONDS + 120.0)
    world.restart("box")
    assert world.until(world.phase("first", Phase.DONE), seconds=6 * HOUR)
    assert ends(world, "first") == [Outcome.COMPLETED]


def test_quota_counts_from_the_start(small: Make) -> None:
    """A quota of one session's limit: the wait is not charged to it."""
    queue = scenario(queue_seconds=4 * HOUR, pending_seconds_max=5 * HOUR)
    world = small(box=replace(queue, quota=QuotaWindow(WALL_SECONDS + 120.0, 7 * 86400.0)))
    world.submit("first")
    assert world.until(world.phase("first", Phase.DONE), seconds=10 * HOUR)
    [charge] = charges((each.event for each in world.ledger.history("first")), world.clock.now())
    at = moments(world, "first")
    assert charge.began_at == pytest.approx(at[Started], abs=60.0)
    assert charge.began_at - at[Launched] > WALL_SECONDS
    assert charge.seconds < WALL_SECONDS


def test_the_first_sight_of_its_machine_begins_a_session_whose_agent_is_not_heard() -> None:
    record = runs.record(*runs.launched())
    watch = Watch(0.0).see(Observation(Sighting.RUNNING), 10.0, 2.0)
    seen = decide(record, Inputs(NOW + 500.0, 10.0, watch=watch))
    assert [type(event) for event in seen.events] == [Began]
    assert seen.record.session is not None
    assert seen.record.session.wall_at == NOW + 500.0 + 3600.0
    again = decide(
        seen.record, Inputs(NOW + 510.0, 12.0, watch=watch.see(Observation(Sighting.RUNNING), 12.0, 2.0))
    )
    assert not again.events, "it begins once"
    [charge] = charges([*(Submitted(RUN, runs.job(), NOW), *runs.launched()), *seen.events], NOW + 600.0)
    assert (charge.began_at, charge.until) == (NOW + 500.0, NOW + 600.0)


def test_an_expected_wait_lengthens_the_estimate_by_each_session_and_costs_no_quota() -> None:
    job, rate = (
        runs.job(work=Work(total=100_000, global_batch=16)),
        Rate(16.0, 16.0, 16.0, 0.0, None, Evidence.CLAIM, "a test"),
    )
    quota = Quota(1e9, NOW + 1e9, 1e9, 1e9)
    at_once = Offer("here", "cpu", Traits(session_seconds=10_000.0), quota=quota)
    later = replace(at_once, wait_seconds=3600.0)
    one, other = (
        estimate(job, offer, rate, terms(job, offer), now=NOW, done_steps=0) for offer in (at_once, later)
    )
    assert other.sessions == one.sessions > 5
    assert other.finish - one.finish == pytest.approx(one.sessions * 3600.0)
    assert other.quota_seconds == one.quota_seconds
