"""A disk that does not answer until a file exists: the one that the variable DISK names, if it is set."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def _slow(handle: int) -> None:
    pause = threading.Event()
    while not Path(os.environ["DISK"]).exists():
        pause.wait(0.01)
    _fsync(handle)


_fsync = os.fsync
if "DISK" in os.environ:
    os.fsync = _slow  # type: ignore[assignment]
