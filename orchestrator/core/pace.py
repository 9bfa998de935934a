"""How fast a session trains now: the steps that it was seen to reach → Pace.

Pure. Must never know where the readings come from, nor what follows: `orchestrator.core.forecast` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from orchestrator.core.job import Work
from orchestrator.core.order import AgentStatus
from orchestrator.core.session import Session
from orchestrator.core.speed import relative_cost, samples_for

READINGS_MAX = 128
WINDOW_SECONDS_MIN = 15.0  # a rate over less says little
STEPS_MIN = 3  # so many readings make a rate
PARTS = 8  # earlier readings are judged in so many
SLOWER_MAX = 1.4  # a part that is slower by more belongs to the slow first steps
BLOCKS = 4  # the window is split into so many, whose rates tell how much the rate varies
SIGMA_UNKNOWN = 0.1  # if that cannot be told; assumption


@dataclass(frozen=True, slots=True)
class Reading:
    """The session had reached `step` by `at`, in unix seconds by the controller's clock."""

    at: float
    step: int


@dataclass(frozen=True)
class Pace:
    """Samples per second at the job's reference cost, measured over `seconds` until `at`, at `step`.

    `sigma` is the standard error of ln rate. `full_speed_at` is when the training would have started, had it
    always been so fast: set-up and slow first steps lie before.
    """

    samples_per_second: float
    sigma: float
    seconds: float
    at: float
    step: int
    full_speed_at: float


def seen(readings: Sequence[Reading], step: int, at: float) -> tuple[Reading, ...]:
    """The readings after one more, at most READINGS_MAX. Only growth counts; a step back starts anew, and so
    does a clock that was set back."""
    if not readings:
        return (Reading(at, step),)
    newest = readings[-1]
    if step < newest.step or at < newest.at:
        return (Reading(at, step),)
    if step == newest.step or at == newest.at:
        return tuple(readings)
    kept = [*readings, Reading(at, step)]
    if len(kept) > READINGS_MAX:
        half = len(kept) // 2
        kept = [*kept[:half:2], *kept[half:]]
    return tuple(kept)


def pace(work: Work, readings: Sequence[Reading], from_step: int) -> Pace | None:
    """How fast a session that began at `from_step` trains; None if too little was seen.

    First steps that were slow do not count for the rest.
    """
    grown = [each for each in readings if each.step > from_step]
    if len(grown) < STEPS_MIN:
        return None
    points = [(each.at, samples_for(work, from_step, each.step)) for each in grown]
    points, last = _window(points), grown[-1]
    speed = _slope(points)
    if speed is None or not 0 < speed < math.inf:
        return None
    middle_at, middle = _middle(points)
    return Pace(speed, _error(points), last.at - points[0][0], last.at, last.step, middle_at - middle / speed)


def told(work: Work, session: Session, status: AgentStatus | None, now: float) -> Pace | None:
    """The same from the agent's own figure, for a controller that has not seen enough itself."""
    if status is None or not status.steps_per_second or status.step is None or session.launched_at is None:
        return None
    step = min(status.step, work.total)
    speed = status.steps_per_second * work.global_batch * relative_cost(work, max(0, step - 1))
    done = samples_for(work, session.order.resume_step, step) / speed if speed > 0 else math.inf
    if not math.isfinite(done):
        return None
    return Pace(speed, SIGMA_UNKNOWN, WINDOW_SECONDS_MIN, now, step, max(session.launched_at, now - done))


def _window(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The later half of what was seen, and as much of the earlier as was about as fast."""
    begins = min((points[0][0] + points[-1][0]) / 2, points[-1][0] - WINDOW_SECONDS_MIN)
    first = next(place for place, (at, _) in enumerate(points) if at >= begins)
    first = min(first, len(points) - STEPS_MIN)
    part = max(STEPS_MIN, len(points) // PARTS)
    while first > 0:
        before = max(0, first - part)
        (since, less), (middle, done), (until, all_) = points[before], points[first], points[-1]
        if (done - less) * (until - middle) * SLOWER_MAX < (all_ - done) * (middle - since):
            break
        first = before
    return points[first:]


def _middle(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return fmean(at for at, _ in points), fmean(done for _, done in points)


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """By least squares, which evens out that steps are whole and that readings come a second late."""
    middle_at, middle = _middle(points)
    spread = sum((at - middle_at) ** 2 for at, _ in points)
    return sum((at - middle_at) * (done - middle) for at, done in points) / spread if spread > 0 else None


def _error(points: Sequence[tuple[float, float]]) -> float:
    """The standard error of ln rate, from the rates of the window's parts."""
    size = (len(points) - 1) / BLOCKS
    if size < 1:
        return SIGMA_UNKNOWN
    edges = [points[round(block * size)] for block in range(BLOCKS + 1)]
    rates = [(done - before) / (at - since) for (since, before), (at, done) in pairwise(edges)]
    if not all(0.0 < rate < math.inf for rate in rates):  # steps so high that a float cannot tell them apart
        return SIGMA_UNKNOWN
    return min(SIGMA_UNKNOWN, stdev(map(math.log, rates)) / math.sqrt(BLOCKS))
