"""How long sessions lived → when the next one is expected to be lost, and what follows for the estimate."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.assign import again, assign
from orchestrator.core.estimate import (
    INTERVAL_SECONDS,
    LOSS_SHARE_MAX,
    MTBF_BATCH_SECONDS,
    MTBF_LENT_SECONDS,
    MTBF_OWNED_SECONDS,
    Terms,
    interval_seconds,
    loss_seconds,
    mean_time_to_failure,
)
from orchestrator.core.lifecycle import Wish
from orchestrator.core.lifetimes import RECENT_SECONDS, Lifetime, lifetime, summed
from orchestrator.core.offer import Lifetimes, Offer, Traits
from orchestrator.core.order import Outcome
from orchestrator.core.session import Session
from tests.core.runs import NOW, TRAITS, choice, ended, job, record, running

HOUR = 3600.0
LENT = Traits(owned=False, setup_seconds=60.0)
BATCH = replace(LENT, durable_mid_run=False)
OWNED = Traits()


def session(**changes: object) -> Session:
    found = record(*running(started_at=NOW)).session
    assert found is not None
    return replace(found, **changes)  # type: ignore[arg-type]


# --- One session ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "outcome", "told", "lost"),
    [
        (session(), Outcome.LOST, {}, True),
        (session(), Outcome.LOST, {"reported": True}, False),  # its agent gave up: no internet, superseded
        (session(), Outcome.LOST, {"forgone": True}, False),
        (session(stop=Wish.HOLD), Outcome.LOST, {}, False),
        (session(traits=replace(TRAITS, session_seconds=1800.0)), Outcome.LOST, {}, False),  # at its limit
        *((session(), outcome, {}, False) for outcome in Outcome if outcome is not Outcome.LOST),
    ],
)
def test_only_what_the_platform_took_away_is_lost(
    found: Session, outcome: Outcome, told: dict[str, bool], lost: bool
) -> None:
    event = replace(ended(outcome), at=NOW + 1800.0)
    lived = lifetime(found, event, **{"reported": False, **told})
    assert lived == Lifetime(NOW + 1800.0, 1800.0, lost)


@pytest.mark.parametrize(
    ("left_at", "seconds"),
    [
        (NOW + 1200.0, 1200.0),  # noticed 15 minutes late
        (None, 2100.0),
        (NOW + 9 * HOUR, 2100.0),  # the agent's clock is wrong
        (NOW - HOUR, 2100.0),
    ],
)
def test_a_lost_session_lived_until_it_was_last_heard(left_at: float | None, seconds: float) -> None:
    event = replace(ended(Outcome.LOST, confirmed=False), at=NOW + 2100.0, left_at=left_at)
    lived = lifetime(session(), event, reported=False)
    assert lived is not None
    assert (lived.seconds, lived.lost) == (seconds, True)


def test_one_that_was_never_seen_to_run_says_nothing() -> None:
    assert lifetime(session(started_at=None), ended(Outcome.LOST), reported=False) is None


def test_old_sessions_say_nothing() -> None:
    old, new = Lifetime(NOW - RECENT_SECONDS, 60.0, True), Lifetime(NOW - 1.0, HOUR, False)
    assert summed([old, new], NOW) == Lifetimes(1, 0, HOUR)
    assert summed([old], NOW) is None


# --- Many sessions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traits", "lived", "low", "high"),
    [
        (LENT, None, MTBF_LENT_SECONDS, MTBF_LENT_SECONDS),
        (BATCH, None, MTBF_BATCH_SECONDS, MTBF_BATCH_SECONDS),
        (OWNED, None, MTBF_OWNED_SECONDS, MTBF_OWNED_SECONDS),
        (LENT, Lifetimes(1, 1, 1200.0), 1.2 * HOUR, 2 * HOUR),  # one loss is not yet the truth
        (LENT, Lifetimes(5, 5, 5 * 1200.0), 0.6 * HOUR, 0.8 * HOUR),
        (LENT, Lifetimes(64, 64, 64 * 1200.0), 1200.0, 1400.0),
        (LENT, Lifetimes(9, 7, 9 * 1.5 * HOUR), 1.9 * HOUR, 2.2 * HOUR),
        (LENT, Lifetimes(5, 5, 5 * 12 * HOUR), 10 * HOUR, 12 * HOUR),
        (LENT, Lifetimes(9, 0, 9 * 12 * HOUR), 200 * HOUR, 250 * HOUR),  # never lost in 108 hours
        (BATCH, Lifetimes(5, 5, 5 * 1200.0), 1200.0, 2 * HOUR),  # a handful outweighs 100 hours
        (OWNED, Lifetimes(5, 5, 5 * 1200.0), 1200.0, 2 * HOUR),
        (OWNED, Lifetimes(3, 0, 3.0), 0.99 * MTBF_OWNED_SECONDS, 1.01 * MTBF_OWNED_SECONDS),
    ],
)
def test_a_handful_of_sessions_outweighs_the_assumption(
    traits: Traits, lived: Lifetimes | None, low: float, high: float
) -> None:
    found = mean_time_to_failure(Offer("there", "T4", traits, lifetimes=lived))
    assert low <= found <= high


lives = st.builds(
    lambda lost, whole, seconds: Lifetimes(lost + whole, lost, seconds),
    st.integers(0, 64), st.integers(0, 64), st.floats(0.0, 64 * 12 * HOUR),
)  # fmt: skip


@given(st.sampled_from([LENT, BATCH, OWNED]), lives, st.floats(1.0, 30 * 24 * HOUR))
def test_any_history_gives_a_finite_estimate(traits: Traits, lived: Lifetimes, need: float) -> None:
    offer = Offer("there", "T4", traits, lifetimes=lived)
    assert 0 < mean_time_to_failure(offer) < math.inf
    lost = loss_seconds(job(), offer, Terms(60.0, 1.0, math.inf, 1.0), need)
    assert 0 <= lost <= LOSS_SHARE_MAX * need
    worse = replace(offer, lifetimes=replace(lived, lost=lived.lost + 1, sessions=lived.sessions + 1))
    assert mean_time_to_failure(worse) < mean_time_to_failure(offer)


# --- What follows ---------------------------------------------------------------------------------------


def lost_share(offer: Offer, need: float = 10 * HOUR) -> float:
    return loss_seconds(job(), offer, Terms(60.0, 1.0, math.inf, 1.0), need) / need


def test_a_session_that_keeps_nothing_cannot_finish_what_is_longer_than_sessions_live() -> None:
    """Ten hours in sessions that all end after 90 minutes: the estimate must not say 10 h and a half."""
    ends_early = Lifetimes(20, 20, 20 * 1.5 * HOUR)
    assert lost_share(Offer("there", "T4", BATCH, lifetimes=ends_early)) > 10
    assert lost_share(Offer("there", "T4", LENT, lifetimes=ends_early)) < 0.1


def test_what_is_lost_grows_with_the_measured_rate() -> None:
    shares = [
        lost_share(Offer("there", "T4", LENT, lifetimes=Lifetimes(20, 20, 20 * each)))
        for each in (1200.0, 1.5 * HOUR, 12 * HOUR)
    ]
    assert shares == sorted(shares, reverse=True)
    assert 0.05 < shares[0] < 0.1, "half a minute, a save and a set-up every 20 minutes"
    assert shares[2] < 0.01


def test_the_expected_interval_is_the_agents() -> None:
    lossy = Offer("there", "T4", LENT, lifetimes=Lifetimes(64, 64, 64 * 1.5 * HOUR))
    assert interval_seconds(job(), replace(lossy, lifetimes=None)) == INTERVAL_SECONDS
    expected = math.sqrt(2 * mean_time_to_failure(lossy))
    assert interval_seconds(job(), lossy) == pytest.approx(expected)


def test_the_order_tells_the_agent_what_was_measured_and_a_parked_one_still_fits() -> None:
    lossy = replace(choice().offer, lifetimes=Lifetimes(9, 7, 9 * HOUR))
    assert assign(record(), choice()).mean_time_to_failure is None
    order = assign(record(), choice(lossy))
    assert order.mean_time_to_failure == mean_time_to_failure(lossy)
    parked = replace(order, mean_time_to_failure=1.0, generation=7, session="other-s07")
    assert again(parked, order) is parked
