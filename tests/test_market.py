"""What is left of the offers after our own sessions are subtracted."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from orchestrator.core.assign import assign
from orchestrator.core.claims import claims
from orchestrator.core.job import Work
from orchestrator.core.offer import Offer, Quota, UntilKind
from orchestrator.core.run import CLOSED_SECONDS, RunRecord
from orchestrator.engine.market import Market
from orchestrator.engine.surveying import Surveyed, survey
from orchestrator.platforms.platform import Platform
from orchestrator.platforms.simulated.scenario import Faults, QuotaWindow
from tests.core.runs import NOW, TRAITS, assigned, job, record
from tests.test_engine import Small, scenario

HOUR = 3600.0


def waiting(run: str) -> RunRecord:
    cpu = job().profiles[0][1]
    return replace(record(), run=run, job=job(profiles=(("T4", cpu), ("T4x2", cpu))))


def running(run: str, accelerator: str) -> RunRecord:
    found = record(assigned())
    assert found.session is not None
    order = replace(found.session.order, run=run, session=f"{run}-s01", platform="k", accelerator=accelerator)
    return replace(found, run=run, session=replace(found.session, order=order))


@pytest.mark.parametrize(("pool", "full"), [("gpu", True), ("", False)])
def test_offers_of_one_pool_share_their_slots(pool: str, full: bool) -> None:
    market = Market(("k",))
    market.surveys.due(NOW, 0.0)
    offers = tuple(Offer("k", name, TRAITS, slots=2, slot_pool=pool) for name in ("T4", "T4x2"))
    market.take(Surveyed("k", offers), NOW)
    market.begin((running("a", "T4"), running("b", "T4x2")), NOW)
    assert market.has_room() is not full
    route = market.route(waiting("c"), ())
    assert route is not None
    assert (route.chosen is None) == full
    if full:
        assert {each.until.kind for each in route.rejections} == {UntilKind.SLOT}


def test_a_window_that_has_ended_since_the_survey_leaves_a_session_its_whole_time() -> None:
    """A run that waits for a refresh wakes before the next survey. The last survey saw the quota of the old
    window."""
    market = Market(("k",))
    market.surveys.due(NOW, 0.0)
    quota = Quota(500.0, refresh_at=NOW + 30.0, window_seconds=7 * 86400.0, allowed_seconds=30 * HOUR)
    traits = replace(TRAITS, session_seconds=12 * HOUR, wall_margin_seconds=2700.0)
    market.take(Surveyed("k", (Offer("k", "T4", traits, slots=2, quota=quota),)), NOW)
    market.begin((), NOW)
    before = market.route(waiting("a"), ())
    assert before is not None
    assert [each.until.at for each in before.rejections] == [NOW + 30.0]
    market.begin((running("b", "T4"),), NOW + 30.0)
    after = market.route(waiting("a"), ())
    assert after is not None
    assert after.chosen is not None
    assert assign(waiting("a"), after.chosen).budget_seconds == 12 * HOUR - 2700.0
    assert after.chosen.offer.quota is not None
    assert after.chosen.offer.quota.left_seconds == 30 * HOUR - HOUR  # the other's budget
    assert after.chosen.offer.quota.refresh_at == NOW + 30.0 + 7 * 86400.0


def test_any_process_can_compute_what_the_engine_claims(tmp_path: Path) -> None:
    """The ledger is enough, at every moment of runs that share a quota, however old the last survey is."""
    rich = QuotaWindow(4 * 3600.0, 7 * 86400.0)
    world = Small(tmp_path, box=replace(scenario(slots=2), quota=rich))
    world.platforms["box"].faults = Faults(killed=0.3)
    for run in ("first", "second", "third"):
        world.submit(run, work=Work(total=3000, global_batch=16))
    compared = 0
    while not all(world.record(run).phase.final for run in ("first", "second", "third")):
        world.engine.tick()
        world.clock.advance(7.0)
        now, market = world.clock.now(), world.engine._market
        tracked = [each.record for each in world.engine._tracked.values()]
        market.begin(tracked, now)
        for as_of in ({"box": now}, dict(market.surveys.as_of)):
            of_engine = claims(tracked, market._closed.values(), as_of, now)
            of_ledger = claims(
                world.ledger.live(), world.ledger.closed_since(now - CLOSED_SECONDS), as_of, now
            )
            assert set(of_engine) == set(of_ledger)
            compared += len(of_engine)
    assert compared > 100
    world.ledger.close()


def test_a_survey_with_a_figure_that_is_none_closes_its_platform_only() -> None:
    class Strange:
        def survey(self) -> tuple[Offer, ...]:
            return (Offer("k", "T4", TRAITS, quota=Quota(math.nan)),)

    market = Market(("k", "h"))
    market.surveys.due(NOW, 0.0)
    market.take(survey("k", cast(Platform, Strange())), NOW)
    market.take(Surveyed("h", (Offer("h", "T4", TRAITS),)), NOW)
    market.begin((), NOW)
    route = market.route(waiting("a"), ())
    assert route is not None
    assert route.chosen is not None
    assert route.chosen.offer.platform == "h"
    [rejected] = route.rejections
    assert "quota left of T4 is nan" in rejected.reason
