"""What a run does in the place that the queue leaves it: start, wait, or make room; and how that is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import wire
from orchestrator.core.assign import assign
from orchestrator.core.calendar import GAP_SECONDS_MIN, Calendar, Opening, Stay
from orchestrator.core.choosing import ALONE_SECONDS, CLAIM_FACTOR, CLAIM_SECONDS_MIN, TURN_SECONDS, plan_text
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import Cooldown, Deferred
from orchestrator.core.job import Prefer, RouteWish, Work
from orchestrator.core.offer import Offer, Route, UntilKind
from orchestrator.core.route import Case, judge
from orchestrator.core.run import RunRecord
from tests.core.offers import HOUR, NOW, cpu, gpu, kaggle, record, weekly
from tests.core.runs import accepted


def case_of(*offers: Offer, stays: tuple[Stay, ...] = (), others: int = 0, **changes: object) -> Case:
    used = {(stay.platform, stay.accelerator): 1 for stay in stays}
    usage = tuple((*place, count) for place, count in used.items())
    case = Case(offers, usage=usage, openings=Calendar(offers, stays, NOW).openings(), others=others)
    return replace(case, **changes)  # type: ignore[arg-type]


def busy(offer: Offer, until: float) -> Stay:
    return Stay(offer.platform, offer.accelerator, NOW - HOUR, NOW + until)


def chosen(found: Route) -> tuple[str, float | None]:
    assert found.chosen is not None
    return found.chosen.offer.accelerator, found.chosen.stay_seconds


def budget(found: Route, run: RunRecord) -> float | None:
    assert found.chosen is not None
    return assign(run, found.chosen).budget_seconds


def test_it_waits_for_a_much_faster_offer_that_opens_soon() -> None:
    run, case = record(1), case_of(kaggle(), cpu(), stays=(busy(kaggle(), HOUR),))
    found = judge(run, case, NOW)
    assert found.chosen is None
    waits = next(each for each in found.rejections if each.accelerator == "cpu")
    assert waits.until.kind is UntilKind.TIME
    assert waits.until.at == NOW + HOUR
    assert waits.reason.startswith("waits for kaggle/T4x2, which is expected to open at ")
    [event] = decide(run, Inputs(NOW, route=found, case=case)).events
    assert isinstance(event, Deferred)
    assert event.until == NOW + HOUR


@pytest.mark.parametrize(
    ("hours", "lasted", "refusals", "goes_to"),
    [
        (0.3, 0.0, 0, None),
        (2.0, 5 * HOUR, 0, None),
        (2.0, 7 * HOUR, 0, "RTX3050"),  # for seven more
        (0.3, 0.0, 1, "RTX3050"),  # who knows what that was
    ],
)
def test_it_waits_for_the_end_of_an_outage_only_if_that_is_likely(
    hours: float, lasted: float, refusals: int, goes_to: str | None
) -> None:
    cooldown = Cooldown("kaggle", "T4x2", NOW + 60.0, "no capacity", 1, NOW, refusals, NOW - lasted)
    run = replace(record(hours), cooldowns=(cooldown,))
    found = judge(run, case_of(kaggle(), gpu()), NOW)
    assert (found.chosen and found.chosen.offer.accelerator) == goes_to


def test_without_a_place_in_a_queue_it_starts_on_what_is_free_as_before() -> None:
    """So a journal of an older version is judged as it was."""
    case = replace(case_of(kaggle(), cpu(), stays=(busy(kaggle(), HOUR),)), openings=())
    assert chosen(judge(record(1), case, NOW)) == ("cpu", None)


def test_a_session_may_use_half_as_much_quota_again_as_is_expected() -> None:
    run = record(4)
    found = judge(run, case_of(kaggle(), gpu()), NOW)
    assert found.itinerary is not None
    length = found.itinerary.hops[0].end - NOW
    assert chosen(found) == ("T4x2", CLAIM_FACTOR * length)
    assert budget(found, run) == CLAIM_FACTOR * length


def test_a_budget_never_exceeds_the_quota_that_is_left() -> None:
    run = record(4)
    left = judge(run, case_of(kaggle(quota=weekly(left=5 * HOUR)), gpu()), NOW)
    assert budget(left, run) == 5 * HOUR


def test_a_short_run_may_be_slower_than_expected() -> None:
    assert chosen(judge(record(0.1), case_of(kaggle()), NOW)) == ("T4x2", CLAIM_SECONDS_MIN)


def test_after_a_session_that_brought_nothing_the_next_has_all_the_time_there_is() -> None:
    assert chosen(judge(replace(record(1), fruitless=1), case_of(kaggle()), NOW)) == ("T4x2", None)


def test_a_session_ends_when_a_faster_offer_opens() -> None:
    case = case_of(kaggle(), gpu(), stays=(busy(kaggle(), 2.5 * HOUR),))
    assert chosen(judge(record(4), case, NOW)) == ("RTX3050", 2.5 * HOUR)


@pytest.mark.parametrize(
    ("saved", "others", "turn"),
    [(True, 0, ALONE_SECONDS), (True, 3, TURN_SECONDS), (False, 0, None), (False, 3, TURN_SECONDS)],
)
def test_on_the_own_machine_runs_take_turns(saved: bool, others: int, turn: float | None) -> None:
    """A run that never saved may save only at its end: nobody ends it for one who is not there."""
    run = replace(record(10), accepted=(accepted(10),) if saved else ())
    assert chosen(judge(run, case_of(gpu(), others=others), NOW)) == ("RTX3050", turn)


def test_a_slot_that_a_more_urgent_run_needs_is_left_for_it() -> None:
    opening = Opening("here", "RTX3050", NOW, NOW + HOUR, NOW + 9 * HOUR)
    assert chosen(judge(record(4), case_of(gpu(), openings=(opening,)), NOW)) == ("RTX3050", HOUR)


def test_a_slot_with_a_quota_is_left_for_it_too() -> None:
    opening = Opening("kaggle", "T4x2", NOW, NOW + HOUR, NOW + 9 * HOUR)
    assert chosen(judge(record(4), case_of(kaggle(), openings=(opening,)), NOW)) == ("T4x2", HOUR)


@pytest.mark.parametrize("opens", [0.0, HOUR])
@pytest.mark.parametrize("prefer", list(Prefer))
def test_a_run_that_is_not_planned_makes_room_as_well(prefer: Prefer, opens: float) -> None:
    """Its speed is only guessed, or it is to be cheap. If the slot is needed at once, it has half an hour."""
    profiles = tuple((name, replace(profile, claim=None)) for name, profile in record().job.profiles)
    run = record(1, profiles=profiles, work=Work(100_000, 64), route=RouteWish(prefer=prefer))
    until = None if opens else NOW + 2 * HOUR
    case = case_of(gpu(), openings=(Opening("here", "RTX3050", NOW + opens, until, NOW + 9 * HOUR),))
    room = GAP_SECONDS_MIN if opens else 2 * HOUR
    assert chosen(judge(run, case, NOW)) == ("RTX3050", room)
    assert chosen(judge(replace(run, fruitless=1), case, NOW)) == ("RTX3050", None)


def test_the_cheapest_offer_is_not_left_for_a_faster_one() -> None:
    run = record(1, route=RouteWish(prefer=Prefer.CHEAPEST))
    assert chosen(judge(run, case_of(kaggle(), gpu()), NOW)) == ("RTX3050", None)


def test_nobody_waits_for_a_speed_that_is_only_guessed() -> None:
    profiles = tuple((name, replace(profile, claim=None)) for name, profile in record().job.profiles)
    run = record(1, profiles=profiles, work=Work(100_000, 64))
    found = judge(run, case_of(kaggle(), cpu(), stays=(busy(kaggle(), HOUR),)), NOW)
    assert chosen(found) == ("cpu", None)


def test_what_a_run_was_judged_by_can_be_judged_again() -> None:
    case = case_of(kaggle(), gpu(), cpu(), stays=(busy(kaggle(), 2 * HOUR),), others=2)
    again = wire.decode(Case, wire.encode(case))
    assert judge(record(4), again, NOW) == judge(record(4), case, NOW)
    assert len(wire.encode(case.openings)) < 1000


# --- In words -------------------------------------------------------------------------------------------


def test_a_mixture_in_words() -> None:
    found = judge(record(10), case_of(kaggle(quota=weekly(left=6 * HOUR)), gpu()), NOW)
    told = plan_text(found, NOW)
    assert told.startswith(
        "kaggle/T4x2 now until its quota is used up, then here/RTX3050: done at about 2026-"
    )
    assert "; here/RTX3050 alone: 2026-" in told


def test_a_wait_in_words() -> None:
    found = judge(record(1), case_of(kaggle(), cpu(), stays=(busy(kaggle(), HOUR),)), NOW)
    assert plan_text(found, NOW).startswith("kaggle/T4x2 from 2026-09-21 15:13Z: done at about 2026-")


def test_a_move_in_words() -> None:
    case = case_of(kaggle(), gpu(), stays=(busy(kaggle(), 2.5 * HOUR),))
    told = plan_text(judge(record(4), case, NOW), NOW)
    assert told.startswith("here/RTX3050 now until 2026-09-21 16:43Z, then kaggle/T4x2: done at about ")


def test_what_was_not_planned_is_not_told() -> None:
    assert plan_text(judge(record(1), Case((gpu(),)), NOW), NOW) == ""
