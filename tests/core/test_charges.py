"""What sessions are charged: tables of events → seconds by kind, and that the parts add up to the whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import wire
from orchestrator.core.assign import assign
from orchestrator.core.charges import Balance, Spent, balance, charges, total, window_began_at
from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.event import (
    Assigned,
    Began,
    CheckpointAccepted,
    CheckpointCorrupt,
    Ended,
    Event,
    Launched,
    Prepared,
    Requeued,
    Started,
    Withdrawn,
)
from orchestrator.core.offer import Quota
from orchestrator.core.order import Outcome
from tests.core.runs import NOW, TRAITS, choice, record

HOUR = 3600.0


def order_of(number: int, resume_step: int = 0, *, wall: float | None = 12 * HOUR) -> Assigned:
    order = assign(replace(record(), generation=number - 1), choice())
    return Assigned(NOW, replace(order, resume_step=resume_step), replace(TRAITS, session_seconds=wall), "")


def kept(step: int, created: float, number: int = 1, accepted: float | None = None) -> CheckpointAccepted:
    found = Accepted(CheckpointRef(step, number, "aaaa"), 10, {}, NOW + created if created else 0.0)
    return CheckpointAccepted(NOW + (created if accepted is None else accepted), found)


def over(at: float, outcome: Outcome = Outcome.STOPPED, left: float | None = None) -> Ended:
    return Ended(NOW + at, outcome, "", confirmed=True, left_at=None if left is None else NOW + left)


def session(
    *events: Event, number: int = 1, resume_step: int = 0, at: float = 0.0, started: float | None = 100.0
) -> tuple[Event, ...]:
    """A session launched at `at`. Its machine runs at once, and its agent is first seen `started` seconds
    later."""
    seen = () if started is None else (Began(NOW + at), Started(NOW + at + started, "aaaa"))
    return (order_of(number, resume_step), Prepared(NOW + at), Launched(NOW + at), *seen, *events)


def fallen_back(number: int, *, from_step: int, to_step: int) -> tuple[Event, ...]:
    """A session that was to resume from a corrupt checkpoint."""
    before, after = order_of(number, from_step), order_of(number, to_step)
    return before, CheckpointCorrupt(NOW, "0000000200-g01-aaaa", "altered", after.order), Prepared(NOW)


TABLE: dict[str, tuple[tuple[Event, ...], float, Spent]] = {
    "one checkpoint, then its end": (
        session(kept(100, 1100), over(1200)), 5000, Spent(set_up=100, useful=1000, lost=100),
    ),
    "what is installed after the agent is seen is set-up, by the pace of the checkpoints": (
        session(kept(100, 1100), kept(200, 1600), over(1600)), 5000, Spent(set_up=600, useful=1000),
    ),
    "a pace that would have begun before the agent was seen": (
        session(kept(100, 200), kept(200, 1600), over(1600)), 5000, Spent(set_up=100, useful=1500),
    ),
    "no checkpoint: all after the set-up is lost": (
        session(over(2100, Outcome.LOST)), 5000, Spent(set_up=100, lost=2000),
    ),
    "never seen, then lost: charged as set-up": (
        session(over(50, Outcome.LOST), started=None), 5000, Spent(set_up=50),
    ),
    "an agent that found another device": (
        session(over(130, Outcome.NO_CAPACITY)), 5000, Spent(set_up=100, lost=30),
    ),
    "it runs: after the last checkpoint nobody knows yet": (
        session(kept(100, 1100)), 1500, Spent(set_up=100, useful=1000, open=400),
    ),
    "it was not seen to run yet: it may wait, which costs nothing": (session(started=None), 70, Spent()),
    "what it waited in a queue is not charged": (
        session(Began(NOW + 5000), Started(NOW + 5100, "aaaa"), kept(100, 6100), over(6200), started=None),
        9000, Spent(set_up=100, useful=1000, lost=100),
    ),
    "it waited, and its agent was seen as soon as it ran": (
        session(Started(NOW + 5000, "aaaa"), kept(100, 6100), over(6200), started=None),
        9000, Spent(set_up=0, useful=1100, lost=100),
    ),
    "it waited, ran, and was lost before its agent spoke": (
        session(Began(NOW + 5000), over(5300, Outcome.LOST), started=None), 9000, Spent(set_up=300),
    ),
    "brought after the end (no uplink): the agent's time counts": (
        session(over(2000), kept(100, 1100, accepted=2050)), 5000, Spent(set_up=100, useful=1000, lost=900),
    ),
    "an agent of which only the outbox told, after the end": (
        (*session(over(2000), started=None), Started(NOW + 2050, "aaaa"), kept(100, 1100), kept(200, 1600)),
        5000, Spent(set_up=600, useful=1000, lost=400),
    ),
    "an old ledger, brought after the end: nothing says that anything was lost": (
        session(over(2000), kept(100, 0, accepted=2050), kept(200, 0, accepted=2050)), 5000,
        Spent(set_up=100, useful=1900),
    ),
    "the controller slept: the agent's word is when it left": (
        session(kept(100, 1100), over(40000, left=1200)), 50000, Spent(set_up=100, useful=1000, lost=100),
    ),
    "the controller slept and the agent said nothing: the platform's limit": (
        session(kept(100, 1100), over(90000)), 99999,
        Spent(set_up=100, useful=1000, lost=12 * HOUR + 60 - 1100),
    ),
    "an agent whose clock is wrong stays within its session": (
        session(kept(100, 9000), over(1200, left=-500)), 5000, Spent(set_up=100),
    ),
    "two sessions, one after the other": (
        session(kept(100, 1100), over(1200))
        + session(kept(200, 3600, 2), over(3600), number=2, resume_step=100, at=2000), 5000,
        Spent(set_up=200, useful=2500, lost=100),
    ),
    "after a corrupt checkpoint the same steps are done again": (
        session(kept(100, 1100), kept(200, 2100), over(2100)) + fallen_back(2, from_step=200, to_step=100)
        + (Launched(NOW + 3000), Began(NOW + 3000), Started(NOW + 3100, "bbbb"), kept(300, 5100, 2))
        + (over(5100),), 9000,
        Spent(set_up=200, useful=2000 + 1000, redone=1000),
    ),
    "lost steps are lost once, and useful where they are done anew": (
        session(kept(100, 1100), over(3100, Outcome.LOST))
        + session(kept(400, 7100, 2), over(7100), number=2, resume_step=100, at=4000), 9000,
        Spent(set_up=200, useful=1000 + 3000, lost=2000),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_a_charge_is_told_apart(case: str) -> None:
    events, now, expected = TABLE[case]
    found = charges(events, NOW + now)
    spent = total(found)
    for part in ("set_up", "redone", "useful", "lost", "open"):
        assert getattr(spent, part) == pytest.approx(getattr(expected, part)), part
    assert spent.seconds == pytest.approx(sum(charge.seconds for charge in found))


@pytest.mark.parametrize(
    "events",
    [
        (order_of(1), Withdrawn(NOW, "not prepared")),
        (order_of(1), Prepared(NOW), over(1, Outcome.QUOTA_EXHAUSTED)),
        session(over(60, Outcome.NO_CAPACITY), started=None),
    ],
    ids=["given up before its launch", "refused", "never became visible"],
)
def test_a_session_that_never_ran_is_charged_nothing(events: tuple[Event, ...]) -> None:
    assert charges(events, NOW + 5000) == ()


def test_a_charge_names_its_session_and_offer() -> None:
    [charge] = charges(session(kept(100, 1100), over(1200)), NOW + 5000)
    assert (charge.session, charge.platform, charge.accelerator) == ("tiny-abcdefgh-s01", "here", "cpu")
    assert (charge.began_at, charge.until, charge.running) == (NOW, NOW + 1200, False)
    [running] = charges(session(), NOW + 500)
    assert (running.until, running.running) == (NOW + 500, True)


# --- The balance with the platform's figure -------------------------------------------------------------

QUOTA = Quota(left_seconds=20 * HOUR, refresh_at=NOW + 100 * HOUR, window_seconds=168 * HOUR,
              allowed_seconds=30 * HOUR)  # fmt: skip


def test_what_the_platform_counts_beyond_ours_is_others() -> None:
    found = balance({"cpu": QUOTA}, charges(session(kept(100, 1100), over(2 * HOUR)), NOW + 5 * HOUR))
    assert (found.used, found.ours.seconds, found.others) == pytest.approx((10 * HOUR, 2 * HOUR, 8 * HOUR))
    assert found.since == NOW - 68 * HOUR


def test_a_session_over_the_refresh_counts_by_the_part_in_each_window() -> None:
    window = replace(QUOTA, refresh_at=NOW + 168 * HOUR + 600)
    found = balance({"cpu": window}, charges(session(kept(100, 1100), over(1200)), NOW + 5000))
    assert found.ours == Spent(useful=500, lost=100)


def test_a_window_of_the_past_holds_nothing_of_ours_and_others_may_be_below_zero() -> None:
    window = replace(QUOTA, refresh_at=NOW + 168 * HOUR + 5000)
    assert balance({"cpu": window}, charges(session(over(1200)), NOW + 6000)).ours == Spent()
    untouched = replace(QUOTA, left_seconds=30 * HOUR)
    found = balance({"cpu": untouched}, charges(session(over(HOUR)), NOW + 2 * HOUR))
    assert found.others == pytest.approx(-HOUR)


def test_a_quota_that_says_little_is_balanced_as_far_as_it_goes() -> None:
    found = balance({"cpu": Quota(left_seconds=HOUR)}, charges(session(over(1200)), NOW + 5000))
    assert found == Balance(None, None, Spent(set_up=100, lost=1100), None)
    assert window_began_at(Quota(left_seconds=HOUR, refresh_at=NOW)) is None


def test_a_balance_in_units_weighs_each_accelerator_by_its_rate() -> None:
    slow, fast = (Quota.of_units(20.0, rate, allowed=30.0) for rate in (1.0, 8.0))
    [charge] = charges(session(over(HOUR)), NOW + 5000)
    ours = [charge, replace(charge, accelerator="A100", until=charge.began_at + HOUR / 2)]
    found = balance({charge.accelerator: slow, "A100": fast}, ours)
    assert (found.used, found.our_units, found.others) == pytest.approx((10.0, 5.0, 5.0))
    assert found.ours.seconds == pytest.approx(1.5 * HOUR)


# --- Properties -----------------------------------------------------------------------------------------

moments = st.floats(min_value=-1e5, max_value=1e6, allow_nan=False)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Event, ...]:
    """Sessions with any times, in any order: clocks jump, controllers sleep, agents report wrong times."""
    events: tuple[Event, ...] = ()
    for number in range(1, draw(st.integers(1, 4)) + 1):
        steps = draw(st.lists(st.tuples(st.integers(1, 500), moments, moments), max_size=5))
        accepted = [kept(step, created, number, at) for step, created, at in steps]
        ended = over(draw(moments), draw(st.sampled_from(Outcome)), draw(st.none() | moments))
        tail: list[Event] = [ended, *accepted] if draw(st.booleans()) else [*accepted, ended]
        started = draw(st.none() | moments)
        resume_step = draw(st.integers(0, 400))
        events += session(
            *tail, number=number, resume_step=resume_step, at=draw(moments), started=started
        )  # fmt: skip
        events += (Requeued(NOW, "", 0),)
    return events if draw(st.booleans()) else events[:-2]


@given(histories(), moments, moments)
def test_the_parts_are_never_negative_and_always_the_whole(
    events: tuple[Event, ...], now: float, since: float
) -> None:
    for charge in charges(events, NOW + now):
        for part in (charge, charge.since(NOW + since)):
            spent = part.spent
            assert min(spent.set_up, spent.redone, spent.useful, spent.lost, spent.open) >= 0
            assert spent.seconds == pytest.approx(part.seconds, abs=1e-3)
            assert part.running or spent.open == 0


def test_events_of_a_ledger_from_before_these_fields_still_load() -> None:
    for event, field in ((over(5), "left_at"), (kept(100, 7), "created_at")):
        document = json.loads(wire.encode(event))
        holder = document if field in document else document["checkpoint"]
        del holder[field]
        assert getattr(wire.decode(type(event), document), "at", None) == event.at
