"""When to save, when to stop, and when a command counts as stalled: numbers in, numbers out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.plan import Costs, interval, kill_at, patience, stop_at
from orchestrator.agent.settings import Settings

SETTINGS = Settings()
seconds = st.floats(0.0, 1e5)
costs = st.builds(Costs, st.lists(seconds, max_size=8).map(tuple), st.lists(seconds, max_size=8).map(tuple))


@pytest.mark.parametrize(
    ("asked", "budget", "measured", "expected"),
    [
        (45.0, None, Costs(), 45.0),
        (45.0, 60.0, Costs(), 45.0),  # the job's own interval
        (None, None, Costs((0.1,), (0.1,)), 60.0),  # √(2·0.1·4 h) = 54 s
        (None, None, Costs((1.0,), (1.0,)), math.sqrt(2 * 1.0 * 14400)),
        (None, None, Costs((10.0,), (1.0,)), 300.0),
        (None, None, Costs((1.0,), (400.0,)), 400.0),  # never shorter than a publication
        (None, None, Costs((1.0,), (100.0,), (400.0,)), 500.0),  # or than until it is shipped
        (None, 40.0, Costs((0.5,), (0.5,)), 40.0 / 3),
    ],
)
def test_interval(asked: float | None, budget: float | None, measured: Costs, expected: float) -> None:
    assert interval(asked, budget, measured, SETTINGS) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("lived", "measured", "expected"),
    [
        (None, Costs((1.0,), (1.0,)), math.sqrt(2 * 14400)),  # the guess
        (1200.0, Costs((1.0,), (1.0,)), 60.0),  # √(2·20 min) = 49 s
        (1200.0, Costs((4.0,), (1.0,)), math.sqrt(2 * 4 * 1200)),
        (5400.0, Costs((1.0,), (1.0,)), math.sqrt(2 * 5400)),
        (43200.0, Costs((1.0,), (1.0,)), math.sqrt(2 * 43200)),
        (43200.0, Costs((4.0,), (1.0,)), 300.0),
        (1200.0, Costs((1.0,), (100.0,), (20.0,)), 120.0),  # no oftener than it can be shipped
    ],
)
def test_the_interval_follows_the_measured_losses(
    lived: float | None, measured: Costs, expected: float
) -> None:
    assert interval(None, None, measured, SETTINGS, lived) == pytest.approx(expected)
    assert interval(45.0, None, measured, SETTINGS, lived) == 45.0, "the job's own comes first"


@pytest.mark.parametrize(
    ("budget", "measured", "step_seconds", "expected"),
    [
        (None, Costs(), 1.0, None),
        (43200.0, Costs((5.0, 5.0), (35.0, 35.0)), 9.0, 43200 - 5 - 35 - 120),
        (43200.0, Costs((4.0, 6.0), (35.0, 35.0)), 9.0, 43200 - 5 - 35 - 2 - 120),
        (43200.0, Costs((5.0,), (35.0,), (60.0,)), 9.0, 43200 - 5 - 35 - 2 * 60 - 120),  # an uplink ships it
        (43200.0, Costs(), 9.0, 43200 - 3 - 9 - 120),
        (40.0, Costs((0.5,), (0.5,)), 9.0, 40 - 1 - 4),
        (40.0, Costs((30.0,), (30.0,)), 9.0, 20.0),  # half of the budget is for training
    ],
)
def test_stop(budget: float | None, measured: Costs, step_seconds: float, expected: float | None) -> None:
    assert stop_at(budget, measured, step_seconds, SETTINGS) == pytest.approx(expected)


@given(st.floats(0.1, 1e6), costs, st.floats(0.0, 1e4))
def test_the_order_of_events_holds_for_any_measurement(
    budget: float, measured: Costs, step_seconds: float
) -> None:
    stop, kill = stop_at(budget, measured, step_seconds, SETTINGS), kill_at(budget, measured, SETTINGS)
    assert stop is not None
    assert kill is not None
    assert budget / 2 <= stop <= kill <= budget
    assert 0 < interval(None, budget, measured, SETTINGS) <= budget / 3


@pytest.mark.parametrize(
    ("stepped", "step_seconds", "expected"),
    [(False, 500.0, 1800.0), (True, 0.1, 300.0), (True, 60.0, 1200.0)],
)
def test_patience(stepped: bool, step_seconds: float, expected: float) -> None:
    assert patience(stepped, step_seconds, SETTINGS) == expected
