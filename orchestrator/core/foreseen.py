"""The answer to "when will it end?". A value only; apart from what computes it, so that lists load fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Forecast:
    """When a run is expected to end, by what was known at `at`; the end lies between `low` and `high` 8 times
    of 10. All in unix seconds; `high` None: it may be much later. `sessions`: how many it still takes, the
    present one included."""

    at: float
    end: float
    low: float
    high: float | None
    sessions: int
