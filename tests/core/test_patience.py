"""How long an ended session's outbox is asked for, and what giving it up would lose."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from orchestrator.core.lifecycle import Wish
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.patience import doubtful, only_there, out_of_patience
from orchestrator.core.reports import RETRY_SECONDS_MAX
from orchestrator.core.session import Session
from tests.core.runs import NOW, TRAITS, record, running

AT_ITS_END = replace(TRAITS, durable_mid_run=False)
SHIPPED = replace(TRAITS, uplink=Uplink.STORE)
HOUR = 3600.0
MANY = 10_000  # failures


def session(traits: Traits, *, ran: float = HOUR, confirmed: bool = True, failures: int = MANY) -> Session:
    found = record(*running()).session
    assert found is not None
    return replace(
        found,
        traits=traits,
        launched_at=NOW - ran,
        ended_at=NOW,
        end_confirmed=confirmed,
        failures=failures,
    )


@pytest.mark.parametrize(
    ("traits", "ran", "hours"),
    [(TRAITS, HOUR, 0.5), (AT_ITS_END, 6 * HOUR, 6), (AT_ITS_END, 200 * HOUR, 72), (SHIPPED, HOUR, 72)],
    ids=["durable", "at its end", "three days at most", "in the home store"],
)
def test_the_more_is_at_stake_the_longer_it_is_asked_for(traits: Traits, ran: float, hours: float) -> None:
    found = session(traits, ran=ran)
    assert not out_of_patience(found, NOW + hours * HOUR - 1.0)
    assert out_of_patience(found, NOW + hours * HOUR + 1.0)
    assert not out_of_patience(replace(found, failures=9), NOW + hours * HOUR + 1.0), "a jump of the clock"


def test_asking_as_rarely_as_it_does_it_gives_up_in_time() -> None:
    """Three days of attempts are three days, with the longest pause between two of them."""
    found = session(SHIPPED, failures=math.ceil(72 * HOUR / RETRY_SECONDS_MAX))
    assert out_of_patience(found, NOW + 72 * HOUR + 1.0)


def test_a_clock_that_was_ahead_at_the_end_leaves_the_attempts() -> None:
    assert not out_of_patience(session(TRAITS, failures=9), NOW - 10 * HOUR)
    assert out_of_patience(session(TRAITS, failures=10), NOW - 10 * HOUR)


@pytest.mark.parametrize(
    ("traits", "confirmed", "alone"),
    [
        (TRAITS, True, False),
        (AT_ITS_END, True, True),
        (AT_ITS_END, False, True),  # its agent was seen
        (SHIPPED, True, True),
        (SHIPPED, False, True),
    ],
)
def test_what_giving_it_up_would_lose(traits: Traits, confirmed: bool, alone: bool) -> None:
    found = session(traits, confirmed=confirmed)
    assert only_there(found) is alone
    assert not only_there(replace(found, launched_at=None))


def test_of_a_session_that_was_never_seen_nothing_is_lost() -> None:
    found = replace(session(AT_ITS_END, confirmed=False), incarnation=None)
    assert not only_there(found)


@pytest.mark.parametrize("stop", [None, Wish.HOLD])
def test_that_a_session_with_an_uplink_left_nothing_is_believed_after_a_few_attempts(
    stop: Wish | None,
) -> None:
    """One answer may be wrong. A platform that cannot reach a session may also end it with all it had."""
    found = replace(session(replace(SHIPPED, readable_mid_run=False)), stop=stop)
    assert doubtful(replace(found, failures=0))
    assert not doubtful(found)
