"""When to request a save, when to stop, and when a command counts as stalled. Pure.

All times are in seconds. "Elapsed" counts from the agent's start, and includes the time the machine sleeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, pvariance

from orchestrator.agent.settings import Settings

_RESERVE_SHARE_MAX = 0.5  # of the budget: a session that only saves makes no progress
_INTERVAL_SHARE_MAX = 1 / 3  # of the budget: time for two saves before the last one
_RECENT = 8


@dataclass(frozen=True)
class Costs:
    """Measured durations, oldest first. A save counts from the request until the checkpoint is there, which
    includes the wait for the step's end. A publication is hashing and committing. An upload, by an uplink, is
    copying and sending."""

    saves: tuple[float, ...] = ()
    publications: tuple[float, ...] = ()
    uploads: tuple[float, ...] = ()

    def saved(self, seconds: float) -> Costs:
        return replace(self, saves=(*self.saves, seconds)[-_RECENT:])

    def published(self, seconds: float) -> Costs:
        return replace(self, publications=(*self.publications, seconds)[-_RECENT:])

    def uploaded(self, seconds: float) -> Costs:
        return replace(self, uploads=(*self.uploads, seconds)[-_RECENT:])


def interval(
    asked: float | None,
    budget: float | None,
    costs: Costs,
    settings: Settings,
    mean_time_to_failure: float | None = None,
) -> float:
    """Seconds between saves: the job's own setting, or else Young's optimum within bounds.

    W = clamp(√(2·C·M), max(L, floor), ceiling), where C is the cost of a save, M the mean time between
    failures and L the duration of a publication and its upload
    (docs/references/training.md#checkpoint-interval). It is never more than a third of the budget.
    `mean_time_to_failure` was measured on earlier sessions; None: the settings have a guess.
    """
    if asked is not None:
        return asked
    cost = _save(budget, costs, settings)
    latency = _publication(budget, costs, settings) + _mean(costs.uploads)
    optimum = math.sqrt(2.0 * cost * (mean_time_to_failure or settings.mean_time_to_failure))
    seconds = max(latency, settings.save_floor, min(optimum, settings.save_ceiling))
    return seconds if budget is None else min(seconds, budget * _INTERVAL_SHARE_MAX)


def stop_at(budget: float | None, costs: Costs, step_seconds: float, settings: Settings) -> float | None:
    """Elapsed seconds at which to send SIGTERM: save + publish + upload + 2σ + margin before the end of the
    budget.

    Until a save has been measured, the duration of one step is added. A measured save includes it.
    """
    if budget is None:
        return None
    reserve = _save(budget, costs, settings) + _publication(budget, costs, settings) + _upload(costs)
    if not costs.saves:
        reserve += step_seconds
    reserve += 2.0 * math.sqrt(_variance(costs.saves) + _variance(costs.publications))
    reserve += min(settings.margin, settings.margin_share * budget)
    return budget - min(reserve, budget * _RESERVE_SHARE_MAX)


def kill_at(budget: float | None, costs: Costs, settings: Settings) -> float | None:
    """Elapsed seconds after which a new save could no longer be published and shipped in time."""
    if budget is None:
        return None
    reserve = _publication(budget, costs, settings) + 2.0 * math.sqrt(_variance(costs.publications))
    reserve += _upload(costs) + 0.25 * min(settings.margin, settings.margin_share * budget)
    return budget - min(reserve, 0.5 * _RESERVE_SHARE_MAX * budget)


def patience(stepped: bool, step_seconds: float, settings: Settings) -> float:
    """Seconds without a sign of life after which the command counts as stalled."""
    if not stepped:
        return settings.first_step
    return max(settings.stall_factor * step_seconds, settings.stall_floor)


def _save(budget: float | None, costs: Costs, settings: Settings) -> float:
    return fmean(costs.saves) if costs.saves else _guess(budget, settings)


def _publication(budget: float | None, costs: Costs, settings: Settings) -> float:
    return fmean(costs.publications) if costs.publications else _guess(budget, settings)


def _upload(costs: Costs) -> float:
    """Twice the measured one: the uplink may have just begun to ship an older checkpoint."""
    return 2.0 * (_mean(costs.uploads) + math.sqrt(_variance(costs.uploads)))


def _mean(seconds: tuple[float, ...]) -> float:
    return fmean(seconds) if seconds else 0.0


def _guess(budget: float | None, settings: Settings) -> float:
    guess = settings.save_guess / 2.0
    return guess if budget is None else min(guess, budget / 20.0)


def _variance(seconds: tuple[float, ...]) -> float:
    return pvariance(seconds) if len(seconds) > 1 else 0.0
