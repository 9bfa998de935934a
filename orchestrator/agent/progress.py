"""The progress that the command reports: the step, the loss, and the rate that follows from them.

Reads progress.jsonl as it grows. Incomplete and malformed lines are counted and skipped: nothing that the
training writes there can end it.
"""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path

from orchestrator import files
from orchestrator.core import bounds
from orchestrator.files import Odd

_READ_BYTES = 1 << 20


class Progress:
    """`step` and `loss` are the newest reported values. `not_finite` is the first loss that was not a finite
    number, with its step. `unreadable` counts malformed lines. `odd` says why the file could not be read."""

    def __init__(self, path: Path, window_seconds: float) -> None:
        self._path = path
        self._window = window_seconds
        self._offset = 0
        self._partial = b""
        self._seen: deque[tuple[float, int]] = deque()
        self.step: int | None = None
        self.loss: float | None = None
        self.not_finite: tuple[float, int] | None = None
        self.unreadable = 0
        self.odd = ""

    def read(self, now: float) -> bool:
        """Reads what is new in the file, and returns whether it held a report. `now` is monotonic."""
        reported = False
        for line in self._lines():
            report = _report(line)
            if report is None:
                self.unreadable += 1
                continue
            reported = True
            self._take(*report, now)
        return reported

    def rate(self) -> float | None:
        """Steps per second over the last window; None until two reports were seen at different times."""
        if len(self._seen) < 2:
            return None
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return bounds.rate((last - first) / (last_at - first_at)) if last_at > first_at else None

    def _take(self, step: int, loss: float | None, now: float) -> None:
        if self.step is not None and step < self.step:
            self._seen.clear()
        self.step = step
        if self._seen and self._seen[-1][0] == now:
            self._seen.pop()
        self._seen.append((now, step))
        while len(self._seen) > 2 and self._seen[0][0] < now - self._window:
            self._seen.popleft()
        if loss is None:
            return
        if math.isfinite(loss):
            self.loss = loss
        else:
            self.loss = None
            self.not_finite = self.not_finite or (loss, step)

    def _lines(self) -> list[bytes]:
        try:
            with files.opened(self._path.parent, self._path.name) as file:
                if file is None:
                    return []
                if file.seek(0, 2) < self._offset:  # the command started the file again
                    self._offset, self._partial = 0, b""
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except (OSError, Odd) as error:
            self.odd = str(error)
            return []
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > bounds.PROGRESS_LINE_BYTES_MAX:
            self._partial = b""
            self.unreadable += 1
        return [line for line in lines if line.strip()]


def _report(line: bytes) -> tuple[int, float | None] | None:
    if len(line) > bounds.PROGRESS_LINE_BYTES_MAX:
        return None
    try:
        document = json.loads(line)
        step = document["step"]
        loss = (document.get("metrics") or {}).get("loss")
        if isinstance(step, bool) or not isinstance(step, int) or bounds.step(step) is None:
            return None
        if isinstance(loss, bool) or not isinstance(loss, int | float):
            return step, None
        return step, float(loss)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
