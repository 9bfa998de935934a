"""Ctrl-C while a command starts: the process ends at once, because nothing has been done yet.

The interpreter drops a KeyboardInterrupt in some places, such as in a callback of an import, and shows its
traceback in others. A handler that ends the process works everywhere. Before `main` runs, Ctrl-C is Python's.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType

_INTERRUPTED = 130  # call.Exit.INTERRUPTED; importing it would take too long here


def begun(quiet: bool) -> None:
    """From now on Ctrl-C ends the process, and says so unless `quiet`. Changes nothing if it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave_quietly if quiet else _leave)


def over() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) in (_leave, _leave_quietly):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_signal: int, _frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)


def _leave_quietly(_signal: int, _frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)
