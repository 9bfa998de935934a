"""The best sequence of sessions over several offers: what is open in, where to train until when out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.calendar import Calendar, Opening, Stay
from orchestrator.core.itinerary import DONE, FASTER, LIMIT, PROMISED, QUOTA, fastest, itinerary, legs
from orchestrator.core.job import OfferPattern, RouteWish, Rule, RuleEffect
from orchestrator.core.offer import Itinerary, Offer, Unavailable, until_time
from tests.core.offers import DAY, HOUR, MINUTE, NOW, cpu, gpu, job, kaggle, record, ways_of, weekly


def planned(hours: float, *offers: Offer, stays: tuple[Stay, ...] = (), **changes: Any) -> Itinerary:
    found = record(hours, **changes)
    openings = {(o.platform, o.accelerator): o for o in Calendar(offers, stays, NOW).openings()}
    plan = itinerary(found.job, ways_of(found, *offers), openings, now=NOW)
    assert plan is not None
    return plan


def told(plan: Itinerary) -> list[tuple[str, str]]:
    return [(hop.accelerator, hop.why_it_ends) for hop in plan.hops]


def busy(offer: Offer, until: float) -> Stay:
    return Stay(offer.platform, offer.accelerator, NOW - HOUR, NOW + until)


def test_quota_that_is_left_first_and_then_the_own_gpu() -> None:
    """ "T4x2 now until the quota is used up, then the RTX3050": earlier than on either alone."""
    short = kaggle(quota=weekly(left=6 * HOUR))
    mixed = planned(10, short, gpu())
    assert told(mixed) == [("T4x2", QUOTA), ("RTX3050", DONE)]
    assert mixed.hops[0].start == NOW
    assert mixed.finish < min(planned(10, gpu()).finish, planned(10, short).finish)


def test_a_short_wait_for_a_much_faster_offer() -> None:
    assert told(planned(1, kaggle(), cpu(), stays=(busy(kaggle(), 40 * MINUTE),))) == [("T4x2", DONE)]
    assert (
        planned(1, kaggle(), cpu(), stays=(busy(kaggle(), 40 * MINUTE),)).hops[0].start == NOW + 40 * MINUTE
    )


def test_a_long_wait_is_spent_on_the_slower_offer() -> None:
    mixed = planned(4, kaggle(), gpu(), stays=(busy(kaggle(), 8 * HOUR),))
    assert told(mixed) == [("RTX3050", FASTER), ("T4x2", DONE)]
    assert mixed.hops[0].end == NOW + 8 * HOUR


def test_no_detour_that_gains_little() -> None:
    """In a day on the CPU, a run does a hundredth of that on the GPU, and has a session more to go wrong."""
    assert told(planned(4, kaggle(), cpu(), stays=(busy(kaggle(), DAY),))) == [("T4x2", DONE)]


def test_a_slot_that_somebody_needs_later_is_left_by_then() -> None:
    opening = Opening("here", "RTX3050", NOW, NOW + 3 * HOUR, NOW + 9 * HOUR)
    found = record(2)
    plan = itinerary(found.job, ways_of(found, gpu()), {("here", "RTX3050"): opening}, now=NOW)
    assert plan is not None
    assert told(plan) == [("RTX3050", PROMISED), ("RTX3050", DONE)]
    assert [plan.hops[0].end, plan.hops[1].start] == [NOW + 3 * HOUR, NOW + 9 * HOUR]


def test_what_is_promised_to_others_is_not_there() -> None:
    found = record(4)
    opening = Opening("kaggle", "T4x2", NOW, promised=(29 * HOUR,))
    plan = itinerary(found.job, ways_of(found, kaggle()), {("kaggle", "T4x2"): opening}, now=NOW)
    assert plan is not None
    assert plan.hops[0].quota_seconds <= HOUR
    assert plan.hops[1].start == NOW + 3 * DAY


def test_walls_and_windows_of_a_long_run() -> None:
    plan = planned(40, kaggle())
    assert told(plan) == [("T4x2", LIMIT), ("T4x2", LIMIT), ("T4x2", QUOTA), ("T4x2", DONE)]
    assert plan.hops[3].start == NOW + 3 * DAY
    assert sum(hop.quota_seconds for hop in plan.hops[:3]) <= 30 * HOUR
    assert [hop.from_step for hop in plan.hops[1:]] == [hop.to_step for hop in plan.hops[:-1]]
    assert plan.hops[-1].to_step == 40 * 3600


def test_an_offer_that_opens_later_is_reached_then() -> None:
    closed = gpu(unavailable=Unavailable("the box is off", until_time(NOW + HOUR)))
    assert planned(1, closed).hops[0].start == NOW + HOUR


def test_nothing_is_planned_where_nothing_opens() -> None:
    found = record(1)
    assert itinerary(found.job, ways_of(found, kaggle(slots=0)), {}, now=NOW) is None
    assert legs((), {}, NOW) == ()


@pytest.mark.parametrize(
    ("free_in", "expected"), [(0.0, [("T4x2", DONE)]), (3.5 * HOUR, [("RTX3050", DONE)])]
)
def test_a_preferred_offer_wins_within_a_quarter(free_in: float, expected: list[tuple[str, str]]) -> None:
    """Without the rule, the run would move to the T4x2 as soon as that is free."""
    rule = Rule("home first", RuleEffect.PREFER, OfferPattern(owned=True), origin="job")
    stays = (busy(kaggle(), free_in),)
    assert told(planned(1, kaggle(), gpu(), stays=stays, route=RouteWish(rules=(rule,)))) == expected


def test_what_needs_a_person_is_planned_only_if_nothing_else_is_there() -> None:
    manual = replace(kaggle(), traits=replace(kaggle().traits, human_start=True))
    assert told(planned(1, manual, gpu())) == [("RTX3050", DONE)]
    assert told(planned(1, manual)) == [("T4x2", DONE)]


def test_the_range_holds_the_finish() -> None:
    plan = planned(10, kaggle(), gpu())
    assert NOW < plan.finish_low < plan.finish < plan.finish_high


def test_a_long_run_is_extrapolated() -> None:
    walled = replace(gpu(), traits=replace(gpu().traits, session_seconds=2 * HOUR))
    assert planned(20, walled).finish == pytest.approx(NOW + 80 * HOUR, rel=0.05)


def test_the_fastest_way_is_the_one_with_the_least_training() -> None:
    found = fastest(ways_of(record(1), cpu(), gpu(), kaggle()))
    assert found is not None
    assert found.place == ("kaggle", "T4x2")
    assert job(1).work.total == 3600
