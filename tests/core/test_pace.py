"""What a session's readings say about its speed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from orchestrator.core.job import CostPhase, Work
from orchestrator.core.order import AgentStatus
from orchestrator.core.pace import READINGS_MAX, SIGMA_UNKNOWN, Reading, pace, seen, told
from tests.core.runs import NOW, record, running

WORK = Work(total=1000, global_batch=16)


def readings(pairs: Iterable[tuple[float, int]]) -> tuple[Reading, ...]:
    found: tuple[Reading, ...] = ()
    for at, step in pairs:
        found = seen(found, step, NOW + at)
    return found


def steady(seconds: int, *, rate: float = 2.0, begins: float = 0.0) -> tuple[Reading, ...]:
    return readings((begins + second, int(rate * second)) for second in range(seconds + 1))


def test_a_steady_session_trains_at_its_rate_from_its_first_step() -> None:
    found = pace(WORK, steady(60, begins=10.0), 0)
    assert found is not None
    assert found.samples_per_second == pytest.approx(32.0)
    assert found.full_speed_at == pytest.approx(NOW + 10.0, abs=0.5)
    assert found.sigma == pytest.approx(0.0, abs=1e-9)


def test_slow_first_steps_count_as_set_up_and_not_as_speed() -> None:
    """Ten steps take 20 s, then a step takes half a second."""
    slow = [(2.0 * step, step) for step in range(1, 11)]
    fast = [(20.0 + 0.5 * step, 10 + step) for step in range(1, 81)]
    found = pace(WORK, readings([*slow, *fast]), 0)
    assert found is not None
    assert found.samples_per_second == pytest.approx(32.0, rel=0.01)
    assert found.full_speed_at == pytest.approx(NOW + 15.0, abs=0.5)  # 20 s less what 10 steps take


def test_a_dearer_phase_changes_the_steps_but_not_the_rate() -> None:
    work = Work(total=200, global_batch=1, phases=(CostPhase(0, 1e9), CostPhase(100, 2e9)))
    cheap = pace(work, readings((second, 2 * second) for second in range(40)), 0)
    dear = pace(work, readings((second, 100 + second) for second in range(40)), 100)
    assert cheap is not None
    assert dear is not None
    assert cheap.samples_per_second == pytest.approx(dear.samples_per_second)


def test_rare_reports_still_make_a_rate() -> None:
    """A report every 12 s; the session is read every second."""
    found = pace(WORK, readings((second, 24 * (second // 12)) for second in range(80)), 0)
    assert found is not None
    assert found.samples_per_second == pytest.approx(32.0, rel=0.01)


def test_the_more_the_rate_varies_the_wider_its_error() -> None:
    def jittered(jitter: float) -> float:
        random, at = Random(1), 0.0
        pairs = []
        for step in range(1, 100):
            at += 0.5 * random.lognormvariate(0.0, jitter)
            pairs.append((at, step))
        found = pace(WORK, readings(pairs), 0)
        assert found is not None
        return found.sigma

    assert jittered(0.02) < jittered(0.5) <= SIGMA_UNKNOWN


def test_steps_that_a_float_cannot_tell_apart_make_a_rate_of_unknown_error() -> None:
    """A job may report any number as its step: leaps and single steps near 2 to the power of 62."""
    leaps = (2**62 + (n // 40) * 2**20 + n for n in range(120))
    found = pace(replace(WORK, total=2**63), readings(enumerate(leaps)), 0)
    assert found is None or found.sigma == SIGMA_UNKNOWN


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([], id="nothing"),
        pytest.param([(0.0, 0), (60.0, 0)], id="no step yet"),
        pytest.param([(5.0, 1), (6.0, 2)], id="two readings"),
        pytest.param([(5.0, 40), (6.0, 50), (7.0, 1)], id="it began anew"),
    ],
)
def test_too_little_makes_no_rate(pairs: list[tuple[float, int]]) -> None:
    assert pace(WORK, readings(pairs), 0) is None


def test_a_clock_that_was_set_back_starts_the_readings_anew() -> None:
    assert seen(steady(10), 30, NOW - 3600.0) == (Reading(NOW - 3600.0, 30),)


def test_a_long_session_keeps_a_bounded_number_of_readings_over_all_of_its_time() -> None:
    found = steady(5000)
    assert len(found) <= READINGS_MAX
    assert found[0].at == NOW
    assert found[-1].at == NOW + 5000.0
    assert [each.at for each in found] == sorted(each.at for each in found)


def test_without_readings_of_ones_own_the_agents_figure_counts() -> None:
    session = record(*running()).session
    assert session is not None
    status = AgentStatus("aaaa", 1, NOW + 60, "training", step=100, steps_per_second=2.0)
    found = told(WORK, session, status, NOW + 60.0)
    assert found is not None
    assert found.samples_per_second == pytest.approx(32.0)
    assert found.full_speed_at == pytest.approx(NOW + 10.0)


@pytest.mark.parametrize("speed", [None, 0.0, -1.0, math.inf])
def test_an_agents_figure_that_makes_no_sense_is_not_used(speed: float | None) -> None:
    session = record(*running()).session
    assert session is not None
    status = AgentStatus("aaaa", 1, NOW, "training", step=100, steps_per_second=speed)
    found = told(WORK, session, status, NOW)
    assert found is None or (found.samples_per_second > 0 and math.isfinite(found.full_speed_at))
