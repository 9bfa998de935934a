"""Offers and a job with round figures for tests of planning.

An hour of training on the T4x2 takes four on the RTX3050 and a hundred on the CPU.
"""

from __future__ import annotations

from typing import Any

from orchestrator.core.job import Claim, Job, Precision, Profile, Work
from orchestrator.core.offer import Offer, Quota, Traits
from orchestrator.core.route import Case, ways
from orchestrator.core.run import RunRecord

NOW = 1_790_000_000.0
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
WALLED = Traits(session_seconds=12 * HOUR, owned=False, setup_seconds=MINUTE, hands_over=True)
HOME = Traits(setup_seconds=MINUTE)
RATES = {"T4x2": 64.0, "RTX3050": 16.0, "cpu": 0.64}  # samples a second


def weekly(left: float = 30 * HOUR, refresh: float = 3 * DAY, pool: str = "gpu") -> Quota:
    return Quota(left, NOW + refresh, 7 * DAY, 30 * HOUR, pool)


def kaggle(**changes: Any) -> Offer:
    values: dict[str, Any] = {"slots": 1, "quota": weekly(), "slot_pool": "gpu"} | changes
    return Offer("kaggle", "T4x2", WALLED, **values)


def gpu(**changes: Any) -> Offer:
    return Offer("here", "RTX3050", **{"traits": HOME} | changes)


def cpu(**changes: Any) -> Offer:
    return Offer("here", "cpu", **{"traits": HOME} | changes)


def job(hours: float = 1.0, **changes: Any) -> Job:
    """A job that trains for so many hours on the T4x2."""
    profiles = tuple(
        (name, Profile(8, Precision.FP32, claim=_claim(rate, name))) for name, rate in RATES.items()
    )
    values: dict[str, Any] = {"name": f"{hours:g} h", "command": ("train",), "profiles": profiles}
    return Job(**values | {"work": Work(max(1, round(hours * 3600)), 64)} | changes)


def _claim(rate: float, name: str) -> Claim:
    return Claim((rate / 64, rate / 64), 64, name, "a test", "2026-11-25")


def record(hours: float = 1.0, submitted_at: float = NOW, run: str = "", **changes: Any) -> RunRecord:
    return RunRecord(run or f"run-{hours:g}", job(hours, **changes), submitted_at)


def ways_of(found: RunRecord, *offers: Offer, now: float = NOW) -> Any:
    return ways(found, Case(offers), now)
