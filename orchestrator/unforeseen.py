"""Handles unexpected exceptions: they are reported, and only one run or platform is affected.

In simulation and tests they are raised again, so that these fail. The controller writes the traceback to its
log and continues. Must never know what was being done, beyond a sentence.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

SAME_MAX = 1000  # kinds of exceptions that are counted; the oldest is forgotten first

Unforeseen = Callable[[str, Exception], None]


def raise_again(_doing: str, error: Exception) -> None:
    """For simulation and tests: an unexpected exception fails them."""
    raise error


class Masked(Exception):
    """Replaces an exception whose text may contain secrets. Its own text is the whole traceback, masked. An
    exception can build its text from anything, so masking its arguments would not be enough."""

    def __init__(self, error: Exception, mask: Callable[[str], str]) -> None:
        super().__init__(mask(_traceback(error)))
        self.what = _what(error, mask)
        self.kind = _kind(error)


def sentence(doing: str, error: Exception) -> str:
    """One line about the exception, for `why`."""
    return f"unexpected error while {doing} ({_what(error)}); the controller's log has the traceback"


class Reporter:
    """Writes each kind of exception with its traceback the first time, then whenever its count has doubled.
    A kind is a type and the line that raised it; `total` counts all. Safe to call from any thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._met: dict[tuple[str, str, int], int] = {}
        self._lock = threading.Lock()
        self.total = 0

    def __call__(self, doing: str, error: Exception) -> None:
        with self._lock:
            self.total += 1
            kind = _kind(error)
            times = self._met.pop(kind, 0) + 1
            if len(self._met) >= SAME_MAX:
                self._met.pop(next(iter(self._met)))
            self._met[kind] = times
        if times & (times - 1):
            return
        again = f" (seen {times:,} times)" if times > 1 else ""
        self._say(f"{sentence(doing, error)}{again}\n{_traceback(error)}")


def _what(error: Exception, mask: Callable[[str], str] = str) -> str:
    if isinstance(error, Masked):
        return error.what
    said = " ".join(mask(str(error)).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _traceback(error: Exception) -> str:
    if isinstance(error, Masked):
        return str(error)
    return "".join(traceback.format_exception(error, limit=-30))


def _kind(error: Exception) -> tuple[str, str, int]:
    if isinstance(error, Masked):
        return error.kind
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    last = frames[-1] if frames else None
    return type(error).__name__, last.filename if last else "", (last.lineno or 0) if last else 0
