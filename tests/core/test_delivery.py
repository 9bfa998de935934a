"""When a message is tried again, and when it is given up."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from orchestrator.core.delivery import (
    DEAD_ATTEMPTS_MIN,
    DEAD_SECONDS,
    JITTER,
    PAUSE_SECONDS_MAX,
    Answer,
    Delivery,
    State,
    pause_seconds,
    verdict,
)
from tests.core.runs import NOW

LATER = Delivery(Answer.LATER, "answered 500")


def test_the_pauses_grow_from_ten_seconds_to_an_hour() -> None:
    pauses = [pause_seconds("ab", attempts) for attempts in range(1, 40)]
    assert 8.0 <= pauses[0] <= 12.0
    assert all(earlier < later for earlier, later in pairwise(pauses[:9]))
    assert max(pauses) <= PAUSE_SECONDS_MAX * (1 + JITTER)
    assert pause_seconds("ab", 10**9) <= PAUSE_SECONDS_MAX * (1 + JITTER)


def test_the_jitter_is_the_same_for_the_same_attempt_only() -> None:
    assert pause_seconds("ab", 3) == pause_seconds("ab", 3)
    assert len({pause_seconds(f"{n}", 3) for n in range(50)}) > 20


@pytest.mark.parametrize(
    ("asked", "least", "most"),
    [
        (600.0, 600.0, 600.0),
        (11.0, 11.0, 12.0),
        (1e12, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX),
        (-5.0, 8.0, 12.0),
        (math.nan, 8.0, 12.0),
    ],
)
def test_a_receiver_may_ask_for_a_pause_of_up_to_an_hour(asked: float, least: float, most: float) -> None:
    """It never hears from us before: the jitter is of our own pauses."""
    assert all(least <= pause_seconds(f"{n}", 1, asked) <= most for n in range(50))


@pytest.mark.parametrize(
    ("delivery", "age", "attempts", "state"),
    [
        (Delivery(Answer.SENT, "answered 200 OK"), 0.0, 1, State.SENT),
        (LATER, 0.0, 1, State.WAITING),
        (LATER, DEAD_SECONDS - 1, 90, State.WAITING),
        (LATER, DEAD_SECONDS, 90, State.DEAD),
        (LATER, 400 * DEAD_SECONDS, 1, State.WAITING),  # the machine was off, or its clock wrong
        (LATER, 400 * DEAD_SECONDS, DEAD_ATTEMPTS_MIN, State.DEAD),
        (LATER, -DEAD_SECONDS, 90, State.WAITING),
        (Delivery(Answer.NEVER, "answered 404 Not Found"), 0.0, 1, State.DEAD),
    ],
)
def test_a_message_is_given_up_after_three_days_or_if_it_is_refused(
    delivery: Delivery, age: float, attempts: int, state: State
) -> None:
    found = verdict("ab", NOW - age, attempts, delivery, NOW)
    assert found.state is state
    assert (found.error == "") == (state is State.SENT)
    assert (found.due_at > NOW) == (delivery.answer is Answer.LATER)


def test_an_error_is_one_short_line() -> None:
    found = verdict("ab", NOW, 1, Delivery(Answer.LATER, "a\nb " + "x" * 10_000), NOW)
    assert found.error.startswith("a b x")
    assert len(found.error) <= 300
