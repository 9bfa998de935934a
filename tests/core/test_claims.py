"""Our own use of the offers: what was used after a survey is subtracted, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.claims import Claim, claims, less, uncounted, used
from orchestrator.core.event import Confirmed, Launched, Prepared, Requeued, Started
from orchestrator.core.offer import Offer, Quota
from orchestrator.core.order import Outcome
from orchestrator.core.run import CLOSED_SECONDS, RunRecord, apply
from orchestrator.core.session import ClosedSession
from tests.core import runs
from tests.core.runs import NOW, TRAITS

HOUR = 3600.0


def with_budget(seconds: float, started_at: float | None) -> RunRecord:
    """A run whose session may use this many seconds of a quota in total."""
    assigned = runs.assigned()
    order = replace(assigned.order, budget_seconds=seconds - TRAITS.wall_margin_seconds)
    record = runs.record(replace(assigned, order=order), Prepared(NOW), Launched(NOW))
    return record if started_at is None else apply(record, Started(started_at, "aaaa"))


def offers(left: float, *, pool: str = "", slot_pool: str = "") -> tuple[Offer, ...]:
    quota = Quota(left, NOW + 100 * HOUR, pool=pool)
    return tuple(Offer("here", name, TRAITS, 2, quota, slot_pool=slot_pool) for name in ("cpu", "T4"))


@pytest.mark.parametrize(
    ("started", "asked", "claimed"),
    [
        (None, 0.0, 1000.0),  # it waits, or it was not yet seen to run
        (100.0, 50.0, 1000.0),  # asked before it ran
        (100.0, 400.0, 700.0),  # asked while it ran: that much is counted
        (100.0, 5000.0, 0.0),
    ],
)
def test_a_session_claims_what_is_left_of_its_budget(
    started: float | None, asked: float, claimed: float
) -> None:
    record = with_budget(1000.0, None if started is None else NOW + started)
    [claim] = claims([record], (), {"here": NOW + asked}, NOW + asked)
    assert claim == Claim(f"{runs.RUN}-s01", "here", "cpu", claimed)


def test_one_that_is_over_claims_what_was_not_counted_and_no_slot() -> None:
    running = with_budget(1000.0, NOW + 100.0)
    ended = apply(running, replace(runs.ended(Outcome.STOPPED), at=NOW + 500.0))
    closed = apply(ended, Requeued(NOW + 510.0, "", 0))
    assert closed.closed == (ClosedSession(f"{runs.RUN}-s01", "here", "cpu", NOW, 1000.0, NOW + 500.0),)
    [claim] = claims([closed], closed.closed, {"here": NOW + 300.0}, NOW + 600.0)
    assert (claim.seconds, claim.slot) == (200.0, False)
    assert claims([closed], closed.closed, {"here": NOW + 500.0}, NOW + 600.0) == ()
    assert claims([ended], closed.closed, {"here": NOW + 300.0}, NOW + 600.0)[0].slot, "counted once"


def test_one_given_up_claims_to_its_wall_until_it_is_seen_to_be_over() -> None:
    running = with_budget(1000.0, NOW + 100.0)
    lost = apply(running, replace(runs.ended(Outcome.LOST, confirmed=False), at=NOW + 500.0))
    stray = apply(lost, Requeued(NOW + 510.0, "", 1))
    assert stray.closed == ()
    [claim] = claims([stray], (), {"here": NOW + 600.0}, NOW + 600.0)
    wall = NOW + 100.0 + HOUR + TRAITS.slack_seconds
    assert claim == Claim(f"{runs.RUN}-s01", "here", "cpu", wall - NOW - 600.0)
    over = apply(stray, Confirmed(NOW + 900.0, f"{runs.RUN}-s01"))
    [claim] = claims([over], over.closed, {"here": NOW + 600.0}, NOW + 900.0)
    assert (claim.seconds, claim.slot) == (300.0, False)


def test_one_given_up_before_it_began_claims_no_more_than_a_session_can_use() -> None:
    """It may wait for long before it begins; its time in the queue is nobody's quota."""
    waiting = with_budget(1000.0, None)
    lost = apply(waiting, replace(runs.ended(Outcome.NO_CAPACITY, confirmed=False), at=NOW + 10.0))
    stray = apply(lost, Requeued(NOW + 11.0, "", 0))
    [claim] = claims([stray], (), {"here": NOW + 5.0}, NOW + 12.0)
    assert claim.seconds == HOUR + TRAITS.slack_seconds


def test_one_first_seen_at_its_end_claims_what_it_may_have_run_unseen() -> None:
    """Its platform shows a machine late: it ran since soon after the session was ordered."""
    record = with_budget(100.0, NOW + 500.0)
    ended = apply(record, replace(runs.ended(Outcome.STOPPED), at=NOW + 500.0))
    closed = apply(ended, Requeued(NOW + 510.0, "", 0)).closed
    [claim] = claims([], closed, {"here": NOW + 300.0}, NOW + 520.0)
    assert claim.seconds == 100.0
    [claim] = claims([], closed, {"here": NOW + 450.0}, NOW + 520.0)
    assert claim.seconds == 50.0


def test_what_closed_long_ago_is_forgotten() -> None:
    record = with_budget(1000.0, NOW)
    for number in range(3):
        at = NOW + number * CLOSED_SECONDS * 0.75
        record = apply(record, replace(runs.ended(Outcome.STOPPED), at=at))
        record = apply(record, Requeued(at, "", 0))
        assigned = runs.assigned(number + 2)
        for event in (assigned, Prepared(at), Launched(at), Started(at, "aaaa")):
            record = apply(record, event)
    assert [each.session[-3:] for each in record.closed] == ["s02", "s03"]


def test_a_clock_that_was_ahead_claims_nothing_of_the_future() -> None:
    closed = ClosedSession("s", "here", "cpu", NOW, 10 * HOUR, NOW + 5 * HOUR)
    assert uncounted(closed, as_of=NOW + HOUR, now=NOW + 2 * HOUR) == HOUR


def test_offers_of_one_pool_share_claims_and_slots() -> None:
    taken = (Claim("a", "here", "cpu", 100.0), Claim("b", "here", "T4", 50.0, slot=False))
    apart = less(
        [replace(o, quota=replace(o.quota, pool=o.accelerator)) for o in offers(1000.0) if o.quota],
        taken,
        NOW,
    )
    assert [o.quota.left_seconds for o in apart if o.quota] == [900.0, 950.0]
    together = less(offers(1000.0, pool="gpu"), taken, NOW)
    assert [o.quota.left_seconds for o in together if o.quota] == [850.0, 850.0]
    assert used(offers(1.0), taken) == {("here", "cpu"): 1, ("here", "T4"): 0}
    assert used(offers(1.0, slot_pool="all"), taken) == {("here", "cpu"): 1, ("here", "T4"): 1}


@pytest.mark.parametrize(
    ("claim", "left"),
    [
        (None, {"T4": 10.0, "A100": 10.0}),
        (Claim("a", "here", "T4", 2 * HOUR), {"T4": 7.0, "A100": 7.0}),
        (Claim("a", "here", "A100", HOUR), {"T4": 2.0, "A100": 2.0}),
        (Claim("a", "here", "A100", 2 * HOUR), {"T4": 0.0, "A100": 0.0}),
        (Claim("a", "there", "A100", HOUR), {"T4": 10.0, "A100": 10.0}),
    ],
)
def test_accelerators_with_other_rates_share_one_balance(claim: Claim | None, left: dict[str, float]) -> None:
    rates = {"T4": 1.5, "A100": 8.0}
    offered = [Offer("here", name, TRAITS, 2, Quota.of_units(10.0, rate)) for name, rate in rates.items()]
    found = less(offered, () if claim is None else (claim,), NOW)
    assert {o.accelerator: o.quota.units(o.quota.left_seconds) for o in found if o.quota} == pytest.approx(
        left
    )
