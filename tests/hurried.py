"""The machine's clock, many times as fast: pauses of minutes pass in a test that waits for real receivers."""

from __future__ import annotations

import threading

from orchestrator.clock import SystemClock


class HurriedClock(SystemClock):
    """`now` begins at the present. Readings may come from any thread."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began = super().now(), super().monotonic()

    def now(self) -> float:
        return self._began[0] + self.monotonic()

    def monotonic(self) -> float:
        return (super().monotonic() - self._began[1]) * self._speed

    def elapsed(self) -> float:
        return self.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds / self._speed))
