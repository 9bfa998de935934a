"""Limits how long a body may run. Knows nothing about the body."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def raising(number: signal.Signals, timer: int, seconds: float, error: BaseException) -> Iterator[None]:
    """Raises `error` in the body once the timer has run for this long; `number` is the timer's signal.

    Use an error that is not an Exception, so that no handler swallows it.
    """

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise error

    before = signal.signal(number, expire)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
