"""Ctrl-C while a run is only looked at: noticed between two looks, wherever it arrives.

A KeyboardInterrupt may be raised where the interpreter drops it, in a callback or a hash; a flag is never
lost. The second Ctrl-C is the interpreter's own again. Decides nothing about what the view then says.
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
    """`seen` turns true with the first Ctrl-C. A plain flag: an Event's lock may be held by the very code
    that the signal interrupts."""

    seen: bool = False


@contextmanager
def noticed() -> Iterator[Interrupt]:
    """Takes SIGINT over for as long as the block lasts; without effect outside the main thread."""
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
