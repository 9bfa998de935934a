"""Who comes first, and what is left for the next."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.calendar import Calendar
from orchestrator.core.event import Slice
from orchestrator.core.job import RouteWish
from orchestrator.core.layout import queued
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Offer
from orchestrator.core.queueing import (
    AGEING,
    RESERVE_SECONDS,
    Waiting,
    expected_stay,
    fired_at,
    in_order,
    lay_out,
    place,
)
from orchestrator.core.route import Case, judge
from orchestrator.core.run import apply
from tests.core.offers import DAY, HOUR, MINUTE, NOW, cpu, gpu, kaggle, record, ways_of
from tests.core.runs import assigned
from tests.core.runs import record as tiny


def waiting(
    hours: float,
    *offers: Offer,
    age: float = 0.0,
    due: float = 0.0,
    planned: float = 0.0,
    fired: float = 0.0,
    sessions: int = 0,
) -> Waiting:
    found = record(hours, submitted_at=NOW - age)
    return Waiting(found, ways_of(found, *offers), due, planned, fired, sessions)


def names(queue: list[Waiting], now: float = NOW) -> list[str]:
    return [each.record.run for each in in_order(queue, now)]


def test_the_least_work_comes_first() -> None:
    assert names([waiting(4, gpu()), waiting(1, gpu()), waiting(2, gpu())]) == ["run-1", "run-2", "run-4"]


def test_a_near_deadline_comes_before_all_and_a_far_one_does_not() -> None:
    queue = [waiting(4, gpu(), due=NOW + 20 * HOUR), waiting(3, gpu(), due=NOW + 30 * DAY), waiting(1, gpu())]
    assert names(queue) == ["run-4", "run-1", "run-3"]


def test_no_run_starves() -> None:
    """However many small runs arrive, a large one's turn comes: none that is submitted more than R / AGEING
    after it goes before it."""
    large = waiting(5, gpu())
    work = min(way.need for way in large.ways)
    bound = work / AGEING
    for later in (0.5 * bound, bound + 1.0):
        small = replace(waiting(0.01, gpu()), record=record(0.01, submitted_at=NOW + later))
        first = names([large, small], NOW + later)[0]
        assert (first == "run-5") == (later > bound)


def test_what_the_first_take_is_not_there_for_the_next() -> None:
    offers = (kaggle(), gpu(), cpu())
    queue = [waiting(hours, *offers) for hours in (1.0, 3.0, 6.0)]
    places = {place.waiting.record.run: place for place in lay_out(queue, Calendar(offers, [], NOW))}
    assert places["run-1"].start == NOW
    second = places["run-3"].legs[0]
    assert second.way.place == ("kaggle", "T4x2")
    assert second.start > NOW
    assert places["run-6"].legs[0].way.place == ("here", "RTX3050")
    assert places["run-6"].start == NOW


def test_a_place_is_kept_for_a_schedule_that_fires_soon() -> None:
    soon = replace(waiting(2, gpu()), planned=NOW + 3 * HOUR)
    places = list(lay_out([waiting(4, gpu()), soon], Calendar([gpu()], [], NOW)))
    assert places[0].start == NOW + 3 * HOUR
    assert places[1].start == NOW
    assert places[1].legs[0].end <= NOW + 3 * HOUR


def test_the_run_of_a_fire_comes_before_all_others() -> None:
    later, sooner = (waiting(9, gpu(), fired=NOW - age) for age in (MINUTE, HOUR))
    sooner = replace(sooner, record=replace(sooner.record, run="sooner"))
    urgent = waiting(4, gpu(), due=NOW + HOUR)
    assert names([waiting(1, gpu()), later, urgent, sooner]) == ["sooner", "run-9", "run-4", "run-1"]


def test_a_run_has_what_was_kept_for_it_in_its_slice_or_until_its_first_session() -> None:
    fresh = replace(record(1), schedule="nightly")
    sliced = replace(fresh, generation=3, slice=Slice(NOW + HOUR, NOW + 9 * HOUR))
    assert fired_at(record(1)) is None, "no schedule submitted it"
    assert fired_at(fresh) == NOW
    assert fired_at(replace(fresh, generation=1)) is None
    assert fired_at(sliced) == NOW + HOUR
    assert fired_at(replace(sliced, asleep=True)) is None
    assert fired_at(replace(sliced, phase=Phase.DONE)) is None


def test_nothing_is_kept_for_one_that_fires_much_later() -> None:
    late = replace(waiting(2, gpu()), planned=NOW + RESERVE_SECONDS + HOUR)
    assert [place.waiting.record.run for place in lay_out([late], Calendar([gpu()], [], NOW))] == []


def test_a_session_is_expected_to_end_when_it_is_done_or_at_its_budget() -> None:
    running = apply(tiny(), assigned()).session
    assert running is not None
    order = replace(running.order, expected_steps_per_second=1.0, budget_seconds=3000.0)
    by_work = replace(running, order=order)
    assert expected_stay(by_work, 1000, running.assigned_at).end == running.assigned_at + 1010.0
    assert expected_stay(by_work, 10**6, running.assigned_at).end == running.assigned_at + 3000.0


def test_a_session_that_is_overdue_is_expected_to_take_a_little_longer() -> None:
    running = apply(tiny(), assigned()).session
    assert running is not None
    late = running.assigned_at + 10 * DAY
    assert late < expected_stay(running, 10, late).end <= late + DAY


def test_a_run_takes_no_more_of_the_calendar_than_its_window_leaves() -> None:
    given = replace(record(100), slice=Slice(NOW - HOUR, NOW + 9 * HOUR))
    calendar = Calendar((gpu(),), (), NOW)
    place(queued(given, ways_of(given, gpu()), NOW), calendar)
    second = place(waiting(1.0, gpu()), calendar)
    assert second.start is not None
    assert NOW + 8 * HOUR < second.start <= NOW + 9 * HOUR


def test_nothing_is_taken_of_an_offer_that_the_router_rejects_for_good() -> None:
    late = record(10, route=RouteWish(finish_within_seconds=39 * HOUR))  # 40 h on the RTX3050
    assert [way.offer.accelerator for way in ways_of(late, gpu(), kaggle())] == ["T4x2"]
    assert judge(late, Case((gpu(), kaggle())), NOW).others == ()


def test_a_run_that_sleeps_after_one_session_takes_no_more_of_the_calendar() -> None:
    offer = kaggle()
    calendar = Calendar((offer,), (), NOW)
    first = place(waiting(60.0, offer, sessions=1), calendar)
    assert len(first.legs) == 1
    second = place(waiting(1.0, offer), calendar)
    assert second.start is not None
    assert second.start <= first.legs[0].end + HOUR
