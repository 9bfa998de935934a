"""The one way to wait in a test: for a condition, with a deadline and a message for the failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from orchestrator.clock import SystemClock

T = TypeVar("T")
PATIENCE = 240.0  # on a machine that others use as well
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.02, 1.0
LOOKS_PAUSE, WAITED_PAUSE = 9.0, 0.04  # a pause as a multiple of the last look, and of all the waiting so far


def wait_until(
    condition: Callable[[], T | None], what: Callable[[], str] | str, seconds: float = PATIENCE
) -> T:
    """Polls until the condition returns something true, and returns that. After `seconds` it fails with a
    message that says what it waited for. The longer one look takes and the longer it waits, the rarer they
    are: what is waited for needs the processor, too."""
    clock, never = SystemClock(), threading.Event()
    started = clock.monotonic()
    while True:
        began = clock.monotonic()
        if found := condition():
            return found
        now = clock.monotonic()
        if now >= started + seconds:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {seconds:.0f} s for {told}")
        pause = max(PAUSE_SECONDS, LOOKS_PAUSE * (now - began), WAITED_PAUSE * (now - started))
        clock.wait(never, min(pause, PAUSE_SECONDS_MAX))
