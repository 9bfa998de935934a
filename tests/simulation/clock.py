"""A clock that moves only on command: time passes, the machine sleeps, or somebody sets the wall clock."""

from __future__ import annotations

import threading


class VirtualClock:
    """`now` may jump, `monotonic` stands still during sleep, and `elapsed` is the world's true time."""

    def __init__(self, start: float = 1_790_000_000.0) -> None:
        self._now = start
        self._monotonic = 0.0
        self._elapsed = 0.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def elapsed(self) -> float:
        return self._elapsed

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.advance(seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._monotonic += seconds
        self._elapsed += seconds

    def sleep(self, seconds: float) -> None:
        """The controller's machine sleeps while the rest of the world continues."""
        self._now += seconds
        self._elapsed += seconds

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._now += seconds
