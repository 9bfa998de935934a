"""Ctrl-C while a run is only watched: it sets a flag, which is checked between two looks.

A KeyboardInterrupt may be raised where the interpreter drops it, such as in a callback or a hash. A flag is
never lost. The second Ctrl-C raises KeyboardInterrupt again. Does not decide what the view says then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interrupt:
    """`seen` becomes True with the first Ctrl-C. It is a plain flag, because the interrupted code may hold
    an Event's lock."""

    seen: bool = False


@contextmanager
def noticed() -> Iterator[Interrupt]:
    """Handles SIGINT inside the block. Has no effect outside the main thread."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def note(_signal: int, _frame: FrameType | None) -> None:
        interrupt.seen = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
