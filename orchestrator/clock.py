"""The only file that reads the time.

It imports nothing of this package. Everything else takes a `Clock`, or a `now` that came from one. The
simulation passes its own virtual clock.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime, timezone
from typing import Protocol

_UTC = timezone.utc  # noqa: UP017 - notebooks run in the user's Python, which may be 3.9
_YEAR_10000 = 253_402_300_800.0  # a datetime ends before this
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    def now(self) -> float:
        """Wall-clock time in unix seconds; may jump."""

    def monotonic(self) -> float:
        """Seconds that never go back. They stop while the machine sleeps: for stalls and durations."""

    def elapsed(self) -> float:
        """Seconds that never go back. They continue while the machine sleeps: for session limits."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Blocks until the event is set or the seconds have passed; returns whether it is set."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds))


def utc_text(unix_seconds: float) -> str:
    """`2026-11-20 21:52:03Z`, as people and logs always see a time; question marks for an invalid time."""
    if not 0.0 <= unix_seconds < _YEAR_10000:
        return "????-??-?? ??:??:??Z"
    return datetime.fromtimestamp(unix_seconds, _UTC).strftime("%Y-%m-%d %H:%M:%SZ")
