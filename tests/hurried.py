"""The machine's clock, many times as fast: pauses of minutes pass in a test that waits for real receivers."""

from __future__ import annotations

import threading

from orchestrator.clock import SystemClock


class HurriedClock(SystemClock):
    """`now` begins at the present. Readings may come from any thread."""

    def __init__(self, speed: float) -> None:
        self._started = super().now()
        self._since = super().monotonic(), 0.0, speed  # by the machine's clock, by this one

    def hurry(self, speed: float) -> None:
        """From now on so many times as fast. A wait that is under way keeps its length."""
        self._since = super().monotonic(), self.monotonic(), speed

    def now(self) -> float:
        return self._started + self.monotonic()

    def monotonic(self) -> float:
        since, reading, speed = self._since
        return reading + (super().monotonic() - since) * speed

    def elapsed(self) -> float:
        return self.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds / self._since[2]))
