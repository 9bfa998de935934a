"""The quotas of a world with a real ledger and platforms whose true use is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.client import quota
from orchestrator.client.quota import Quotas
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase
from orchestrator.engine.market import Market
from orchestrator.engine.surveying import Surveyed, survey
from orchestrator.platforms.simulated import QuotaWindow
from tests.test_engine import Make, Small, scenario, small

__all__ = ["small"]

HOUR = 3600.0
WEEK = QuotaWindow(allowed_seconds=2 * HOUR, window_seconds=168 * HOUR)


def asked(world: Small) -> list[Surveyed]:
    return [survey(name, platform) for name, platform in world.platforms.items()]


def look(world: Small) -> Quotas:
    now = world.clock.now()
    return quota.of(asked(world), Market(tuple(world.platforms)), world.ledger, now, now)


def test_our_count_is_what_the_platform_counts(small: Make) -> None:
    world = small(cloud=scenario(quota=WEEK, pending_seconds=0.0))
    world.submit("first", work=Work(total=8000, global_batch=16))
    assert world.until(world.phase("first", Phase.DONE))
    [pool] = look(world).pools
    [used] = pool.runs
    [truth] = world.platforms["cloud"].history.quota_used.values()
    assert used.sessions == len(world.platforms["cloud"].history.launches)
    assert used.seconds == pytest.approx(truth, abs=20.0 * used.sessions)
    assert pool.balance.used == pytest.approx(truth)
    assert used.spent.useful > 0.95 * used.seconds
    assert used.spent.redone == used.spent.open == 0
    assert not pool.running
    assert not pool.planned


def test_a_queued_run_is_planned_with_its_quota(small: Make) -> None:
    world = small(cloud=scenario(slots=2, quota=replace(WEEK, allowed_seconds=1805.0)))
    for run in ("first", "second"):
        world.submit(run, work=Work(total=8000, global_batch=16))
        world.clock.advance(1.0)
    [pool] = look(world).pools
    first, second = pool.planned
    assert first.run == "first"
    assert first.quota_seconds is not None
    assert first.quota_seconds > 8000 / 5.0, "set-up and save are included"
    assert (second.run, second.quota_seconds) == ("second", None), "the first run takes all that is left"
    assert second.at == pool.quota.refresh_at


def test_a_window_that_was_refreshed_holds_only_what_came_after(small: Make) -> None:
    world = small(cloud=scenario(quota=QuotaWindow(2 * HOUR, 4 * HOUR)))
    world.submit("first")
    assert world.until(world.phase("first", Phase.DONE))
    world.clock.advance(4 * HOUR)
    [pool] = look(world).pools
    assert pool.runs == ()
    assert pool.balance.used == 0


def test_a_session_that_ended_since_the_platform_was_asked_is_counted_as_the_controller_counts_it(
    small: Make,
) -> None:
    world = small(cloud=scenario(quota=WEEK, pending_seconds=0.0))
    answers, asked_at = asked(world), world.clock.now()
    world.submit("first", work=Work(total=8000, global_batch=16))
    assert world.until(world.phase("first", Phase.DONE))
    market = Market(tuple(world.platforms))
    [pool] = quota.of(answers, market, world.ledger, asked_at, world.clock.now()).pools
    [used] = pool.runs
    assert pool.quota.left_seconds == WEEK.allowed_seconds
    assert pool.free_seconds <= WEEK.allowed_seconds - used.seconds


def test_only_the_platforms_that_were_asked_for_are_told_of(small: Make) -> None:
    world = small(box=scenario(), cloud=scenario(quota=WEEK), other=scenario(quota=WEEK))
    now = world.clock.now()
    found = quota.of(asked(world), Market(tuple(world.platforms)), world.ledger, now, now, ("box", "cloud"))
    assert [pool.platform for pool in found.pools] == ["cloud"]
    assert found.without_quota == ("box",)
