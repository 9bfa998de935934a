"""What a platform takes away is measured, survives the controller, and decides how often sessions save."""

from __future__ import annotations

import pytest

from orchestrator.client import routing
from orchestrator.core.estimate import mean_time_to_failure
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Choice
from orchestrator.core.order import Order
from orchestrator.engine.market import Market
from orchestrator.engine.surveying import survey
from orchestrator.platforms.simulated import Faults
from tests.test_engine import Make, Small, scenario, small

__all__ = ["small"]

LONG = Work(total=20_000, global_batch=16)


def order(world: Small) -> Order:
    session = world.record("first").session
    assert session is not None
    return session.order


def generation(world: Small, number: int) -> bool:
    session = world.record("first").session
    return session is not None and session.generation >= number


def chosen(world: Small) -> Choice:
    """Where a run like the first would go now, for a process that is no controller."""
    now = world.clock.now()
    market = Market(tuple(world.platforms))
    answers = [survey(name, platform) for name, platform in world.platforms.items()]
    routing.fill(market, answers, world.ledger, now, now)
    world.submit("second")
    route = market.route(world.record("second"), ())
    assert route is not None
    assert route.chosen is not None
    return route.chosen


def test_sessions_that_vanish_make_the_next_one_save_in_time(small: Make) -> None:
    world = small(box=scenario(slots=2, faults=Faults(killed=1.0)))
    world.submit("first", work=LONG)
    assert world.until(lambda: generation(world, 1))
    assert order(world).mean_time_to_failure is None, "nothing is known yet"
    assert world.until(lambda: generation(world, 6), seconds=20_000.0)
    told = order(world).mean_time_to_failure
    deaths = [
        life for life in world.platforms["box"].history.lifetimes if life.session != order(world).session
    ]
    assert told is not None
    assert told < 4 * 3600.0
    kept = world.ledger.lifetimes("box", "cpu")
    assert [each.lost for each in kept] == [True] * len(deaths)
    world.restart("box")
    assert world.until(lambda: generation(world, 7), seconds=20_000.0)
    again = order(world).mean_time_to_failure
    assert again is not None
    assert again == pytest.approx(told, rel=0.3), "a new controller knows them all"
    choice = chosen(world)
    assert choice.offer.lifetimes is not None
    assert choice.offer.lifetimes.lost == len(kept) + 1
    text = routing.losses_text(choice, world.record("second").job)
    assert "sessions on box/cpu are lost about every" in text
    assert f"({len(kept) + 1} of the last {len(kept) + 1}); checkpoints about every" in text


@pytest.mark.soak
def test_sessions_that_end_by_themselves_are_no_losses(small: Make) -> None:
    world = small(box=scenario(slots=2))
    world.submit("first", work=LONG)  # through several session limits
    assert world.until(world.phase("first", Phase.DONE), seconds=20_000.0)
    lived = world.ledger.lifetimes("box", "cpu")
    assert len(lived) == len(world.platforms["box"].history.lifetimes) > 1
    assert not any(each.lost for each in lived)
    choice = chosen(world)
    assert mean_time_to_failure(choice.offer) > 4 * 3600.0
    text = routing.losses_text(choice, world.record("second").job)
    assert text == f"none of {len(lived)} sessions on box/cpu was lost so far"


def test_lifetimes_and_rates_are_kept_apart(small: Make) -> None:
    world = small(box=scenario())
    world.submit("first")
    assert world.until(world.phase("first", Phase.DONE))
    assert len(world.ledger.measurements("first")) == 1
    assert len(world.ledger.lifetimes("box", "cpu")) == 1
    assert world.ledger.lifetimes("box", "T4") == ()
