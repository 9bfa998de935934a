"""Measures from time to time how much disk a session uses. Decides nothing.

Counts the blocks that are really on the disk: holes in a file cost nothing, and hard links count once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.clock import Clock

_SHARE = 20.0  # after a measurement of one second, wait at least this many seconds


class Usage(threading.Thread):
    """`bytes` is the newest sum over the folders. It lags by `period_seconds`, or by more where a measurement
    takes long."""

    def __init__(self, folders: Iterable[Path], clock: Clock, period_seconds: float) -> None:
        super().__init__(name="usage", daemon=True)
        self._folders = tuple(folders)
        self._clock = clock
        self._period = period_seconds
        self._over = threading.Event()
        self.bytes = 0

    def finish(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.is_set():
            began = self._clock.monotonic()
            self.bytes = self._look()
            took = self._clock.monotonic() - began
            self._clock.wait(self._over, max(self._period, _SHARE * took))

    def _look(self) -> int:
        total, seen = 0, set()
        folders = list(self._folders)
        while folders and not self._over.is_set():
            with suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    with suppress(OSError):
                        found = entry.stat(follow_symlinks=False)
                        if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                            if (found.st_dev, found.st_ino) in seen:
                                continue
                            seen.add((found.st_dev, found.st_ino))
                        total += found.st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(Path(entry.path))
        return total
