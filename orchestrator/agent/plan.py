"""When to ask for a save, when to stop, when to lose patience. Pure: times and measurements come in.

All times in seconds; "elapsed" counts from the agent's start and goes on while the machine sleeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, pvariance

from orchestrator.agent.settings import Settings

_RESERVE_SHARE_MAX = 0.5  # of the budget: a session that only saves makes no progress
_INTERVAL_SHARE_MAX = 1 / 3  # of the budget: two saves before the one at its end
_RECENT = 8


@dataclass(frozen=True)
class Costs:
    """Measured durations, oldest first: of saves (from the request until the checkpoint was there, the wait
    for the step's end included) and of publications (hashing and committing)."""

    saves: tuple[float, ...] = ()
    publications: tuple[float, ...] = ()

    def saved(self, seconds: float) -> Costs:
        return Costs((*self.saves, seconds)[-_RECENT:], self.publications)

    def published(self, seconds: float) -> Costs:
        return Costs(self.saves, (*self.publications, seconds)[-_RECENT:])


def interval(asked: float | None, budget: float | None, costs: Costs, settings: Settings) -> float:
    """Seconds between saves: what the job asks for, else Young's optimum within its bounds.

    W = clamp(√(2·C·M), max(L, floor), ceiling), where C is what a save costs, M the mean time between
    failures and L a publication (docs/references/training.md#checkpoint-interval). Never more than a third of
    the budget.
    """
    if asked is not None:
        return asked
    cost, latency = _save(budget, costs, settings), _publication(budget, costs, settings)
    optimum = math.sqrt(2.0 * cost * settings.mean_time_to_failure)
    seconds = max(latency, settings.save_floor, min(optimum, settings.save_ceiling))
    return seconds if budget is None else min(seconds, budget * _INTERVAL_SHARE_MAX)


def stop_at(budget: float | None, costs: Costs, step_seconds: float, settings: Settings) -> float | None:
    """Elapsed seconds at which to send SIGTERM: save + publish + 2σ + margin before the budget's end.

    Until a save was measured one step's duration is added, which a measured save includes.
    """
    if budget is None:
        return None
    reserve = _save(budget, costs, settings) + _publication(budget, costs, settings)
    if not costs.saves:
        reserve += step_seconds
    reserve += 2.0 * math.sqrt(_variance(costs.saves) + _variance(costs.publications))
    reserve += min(settings.margin, settings.margin_share * budget)
    return budget - min(reserve, budget * _RESERVE_SHARE_MAX)


def kill_at(budget: float | None, costs: Costs, settings: Settings) -> float | None:
    """Elapsed seconds after which nothing that the command still does can be published in time."""
    if budget is None:
        return None
    reserve = _publication(budget, costs, settings) + 2.0 * math.sqrt(_variance(costs.publications))
    reserve += 0.25 * min(settings.margin, settings.margin_share * budget)
    return budget - min(reserve, 0.5 * _RESERVE_SHARE_MAX * budget)


def patience(stepped: bool, step_seconds: float, settings: Settings) -> float:
    """How long the command may give no sign of life before it counts as stalled."""
    if not stepped:
        return settings.first_step
    return max(settings.stall_factor * step_seconds, settings.stall_floor)


def _save(budget: float | None, costs: Costs, settings: Settings) -> float:
    return fmean(costs.saves) if costs.saves else _guess(budget, settings)


def _publication(budget: float | None, costs: Costs, settings: Settings) -> float:
    return fmean(costs.publications) if costs.publications else _guess(budget, settings)


def _guess(budget: float | None, settings: Settings) -> float:
    guess = settings.save_guess / 2.0
    return guess if budget is None else min(guess, budget / 20.0)


def _variance(seconds: tuple[float, ...]) -> float:
    return pvariance(seconds) if len(seconds) > 1 else 0.0
