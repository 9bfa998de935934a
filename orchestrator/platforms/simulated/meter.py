"""What a simulated platform's quota allows in each window, and what was taken of it."""

from __future__ import annotations

import math

from orchestrator.platforms.simulated.scenario import QuotaWindow

_ROUNDING = 1e-6


class Meter:
    """The use of one quota, by our sessions and by others. The first window begins at `born`. Times are by
    the simulation's clock. Without a rule, everything is allowed."""

    def __init__(self, rule: QuotaWindow | None, born: float) -> None:
        self._rule = rule
        self._born = born
        self._taken: dict[int, float] = {}

    def window(self, at: float) -> int:
        return 0 if self._rule is None else int((at - self._born) / self._rule.window_seconds + 1e-9)

    def refresh_at(self, at: float) -> float:
        """When the next window begins."""
        if self._rule is None:
            return math.inf
        return self._born + (self.window(at) + 1) * self._rule.window_seconds

    def left(self, at: float) -> float:
        if self._rule is None:
            return math.inf
        left = self._rule.allowed_seconds - self._taken.get(self.window(at), 0.0)
        return left if left > _ROUNDING else 0.0

    def next_event(self, at: float, speed: float) -> float:
        """When it runs out if so much is taken in a second, or its window ends."""
        left = self.left(at)
        out = at + left / speed if speed > 0 and left > 0 else math.inf
        return min(out, self.refresh_at(at))

    def take(self, at: float, amount: float) -> None:
        self._taken[self.window(at)] = self._taken.get(self.window(at), 0.0) + amount
