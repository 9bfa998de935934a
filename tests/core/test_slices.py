"""A run that a schedule limits: when it sleeps, what its sessions get, and when it waits for a person."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import slices
from orchestrator.core.action import Collect, Done
from orchestrator.core.assign import assign
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import (
    Assigned,
    Ended,
    Event,
    Held,
    Prepared,
    Released,
    Requeued,
    Slept,
    Slice,
    Submitted,
    Unscheduled,
    Withdrawn,
    Woken,
)
from orchestrator.core.job import Recurrence, Work
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Offer, Traits, UntilKind
from orchestrator.core.order import Outcome
from orchestrator.core.route import Case, judge
from orchestrator.core.run import RunRecord, apply, submit
from tests.core import runs
from tests.core.runs import NOW, RUN, choice, routed

HOUR = 3600.0
TONIGHT = Slice(NOW - 60.0, NOW + HOUR, NOW + 24 * HOUR)
UNLIMITED = Offer("own", "cpu", Traits(wall_margin_seconds=30.0, setup_seconds=10.0))


def record(given: Slice | None = TONIGHT, *events: Event, **changes: object) -> RunRecord:
    found = submit(Submitted(RUN, runs.job(), NOW - 60.0, "home", schedule="nightly", slice=given))
    for event in events:
        found = apply(found, event)
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_session_ends_with_the_window_whatever_else_limits_it() -> None:
    order = assign(record(), choice(), None, NOW)  # its own limit is an hour, too, with a margin of a minute
    assert (order.budget_seconds, order.leave_by) == (HOUR - 60.0, NOW + HOUR - 60.0)
    short = assign(record(), choice(), None, NOW + HOUR / 2)
    assert short.budget_seconds == HOUR / 2 - 60.0
    alone = assign(record(), choice(UNLIMITED), 9 * HOUR, NOW)
    assert (alone.budget_seconds, alone.leave_by) == (HOUR - 30.0, NOW + HOUR - 30.0)


def test_a_slice_without_a_window_is_one_session_that_does_not_move() -> None:
    order = assign(record(Slice(NOW)), choice(UNLIMITED), 9 * HOUR, NOW)
    assert (order.budget_seconds, order.leave_by) == (None, None)
    assert assign(record(None), choice(UNLIMITED), 9 * HOUR, NOW).budget_seconds == 9 * HOUR


def test_a_rest_of_the_window_that_is_not_worth_a_session_is_not_used() -> None:
    case = Case(offers=(runs.OFFER, UNLIMITED))
    assert judge(record(), case, NOW).chosen is not None
    late = judge(record(), case, NOW + HOUR - 115.0)
    assert {choice.offer.platform for choice in (late.chosen, *late.others) if choice} == {"own"}
    [short] = [each for each in late.rejections if each.platform == "here"]
    assert "115 s of its window are left" in short.reason
    assert (short.until.kind, short.until.at) == (UntilKind.TIME, TONIGHT.next_at)


def test_a_growing_run_may_finish_late() -> None:
    """Its schedule says when it runs, so the estimate of one uninterrupted run means little."""
    slow = runs.job(work=Work(total=10**8, global_batch=16))
    growing = replace(slow, schedule=Recurrence("0 1 * * *"))
    for job, chosen in ((slow, False), (growing, True)):
        found = judge(RunRecord(RUN, job, NOW), Case(offers=(UNLIMITED,)), NOW)
        assert (found.chosen is not None) is chosen


def test_a_run_sleeps_when_its_window_closes_and_no_offer_takes_it() -> None:
    decision = decide(record(), Inputs(NOW + HOUR, route=routed()))
    assert decision.events == (
        Slept(NOW + HOUR, "asleep until 2026-09-22 14:13Z: schedule nightly", TONIGHT.next_at),
    )
    asleep = decision.record
    assert (asleep.phase, asleep.asleep, decision.due_at) == (Phase.QUEUED, True, TONIGHT.next_at)
    assert decide(asleep, Inputs(NOW + HOUR, route=routed())).events == ()
    route = judge(asleep, Case(offers=(runs.OFFER,)), NOW + HOUR)
    assert (route.chosen, [each.reason for each in route.rejections]) == (None, [asleep.reason])


def test_a_woken_run_is_routed_again() -> None:
    asleep = decide(record(), Inputs(NOW + HOUR)).record
    awake = apply(asleep, Woken(NOW + 24 * HOUR, Slice(NOW + 24 * HOUR, NOW + 25 * HOUR)))
    assert (awake.asleep, awake.until, awake.reason) == (False, None, "")
    [event] = decide(awake, Inputs(NOW + 24 * HOUR, route=routed())).events
    assert isinstance(event, Assigned)


def test_nothing_is_launched_once_the_window_has_closed() -> None:
    prepared = record(TONIGHT, runs.assigned())
    events = decide(prepared, Inputs(NOW + HOUR)).events
    assert [type(event) for event in events] == [Withdrawn, Slept]
    launching = record(TONIGHT, runs.assigned(), Prepared(NOW))
    assert decide(launching, Inputs(NOW + HOUR)).events == ()  # it may have been launched already


@pytest.mark.parametrize(
    ("given", "outcome", "sleeps"),
    [
        (Slice(NOW, None, NOW + 24 * HOUR), Outcome.STOPPED, True),
        (Slice(NOW, None, NOW + 24 * HOUR), Outcome.LOST, False),  # repeated within the slice
        (TONIGHT, Outcome.STOPPED, False),  # the window is still open
        (None, Outcome.STOPPED, False),
    ],
)
def test_a_session_that_used_its_time_ends_a_slice_without_a_window(
    given: Slice | None, outcome: Outcome, sleeps: bool
) -> None:
    before = record(given, *runs.running(), runs.accept(100), runs.ended(outcome))
    collect = Collect(RUN, f"{RUN}-s01", "here", 1, "aaaa", frozenset(), True, None)
    decision = decide(before, Inputs(NOW, reports=(Done(collect),)))
    assert [type(event) for event in decision.events][:2] == [Requeued, *([Slept] if sleeps else [])]
    assert decision.record.asleep is sleeps


@pytest.mark.parametrize(
    ("limit", "budget", "slice_"),
    [
        (12 * HOUR, 11.9 * HOUR, True),
        (12 * HOUR, 2 * HOUR, False),  # a faster offer opened, or a more urgent run, or the quota ended
        (None, 3 * HOUR, False),  # a turn on the own machine
        (None, None, True),
    ],
)
def test_a_session_that_had_to_make_room_does_not_end_the_slice(
    limit: float | None, budget: float | None, slice_: bool
) -> None:
    asleep = record(Slice(NOW), *runs.running(), runs.ended(Outcome.STOPPED))
    session = asleep.session
    assert session is not None
    traits = replace(session.traits, session_seconds=limit)
    given = replace(session, traits=traits, order=replace(session.order, budget_seconds=budget))
    assert slices.ends_slice(asleep, given) is slice_
    assert not slices.ends_slice(record(), given)


def test_a_machine_that_came_late_costs_the_run_nothing() -> None:
    order = replace(assign(record(), choice(), None, NOW), session=f"{RUN}-s01")
    late = NOW + HOUR - 300.0
    begun = (Assigned(NOW, order, runs.TRAITS, "because"), *runs.launched()[1:])
    for began, fruitless in ((NOW + 60.0, 1), (late, 0)):
        ended = Ended(NOW + HOUR - 60.0, Outcome.STOPPED, "its time was over", True)
        before = record(TONIGHT, *begun, runs.running(started_at=began)[-1], ended)
        collect = Collect(RUN, order.session, "here", 1, "aaaa", frozenset(), True, None)
        decision = decide(before, Inputs(NOW + HOUR - 50.0, reports=(Done(collect),)))
        assert decision.record.fruitless == fruitless


def test_a_run_whose_schedule_is_removed_waits_for_a_person_after_its_slice() -> None:
    free = apply(record(), Unscheduled(NOW))
    assert decide(free, Inputs(NOW + 60.0)).events == ()
    [event] = decide(free, Inputs(NOW + HOUR)).events
    assert isinstance(event, Held)
    assert "orchestrator release" in event.reason
    released = apply(apply(free, event), Released(NOW + HOUR))
    assert (released.slice, released.asleep) == (None, False)


def test_a_hold_and_a_release_of_the_user_do_not_end_the_schedule() -> None:
    asleep = decide(record(), Inputs(NOW + HOUR)).record
    released = apply(apply(asleep, Held(NOW + HOUR, "held on request")), Released(NOW + HOUR))
    assert (released.slice, released.asleep) == (TONIGHT, True)
    [event] = decide(released, Inputs(NOW + HOUR + 1)).events
    assert isinstance(event, Slept)
    assert slices.is_over(released, NOW + HOUR)
