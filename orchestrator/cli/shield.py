"""Hides this process's environment and memory from other processes of the same user, as far as possible.

A session of the platform `process` runs under the controller's user id and may look into /proc. After `up`,
the controller's environment is empty there, and only root can open its memory (docs/what-leaves.md). This
does not replace a platform that isolates. The module must never know what is secret.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_DUMPABLE = 4
# Fields of /proc/self/stat after the name, which may hold spaces: env_start is the 50th of all (proc(5)).
_ENV_START, _ENV_END = 50 - 3, 51 - 3
_ENV_BYTES_MAX = 64 * 1024 * 1024


def up() -> None:
    """Call it before any thread starts. Children that start later still get their environment."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None, use_errno=True)
    with suppress(OSError, ValueError, IndexError):  # if /proc has no data about us, it also shows none
        _blank_environment()
    # No other process of this user can trace, read or dump this one: prctl(2), ptrace(2).
    library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _blank_environment() -> None:
    """Overwrites the strings that execve wrote: they are what /proc/PID/environ shows.

    First it copies each variable elsewhere, so that `os.environ` and getenv(3) still find it.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    for name, value in os.environ.items():
        os.environ[name] = value
    if 0 < start < end <= start + _ENV_BYTES_MAX:
        ctypes.memset(start, 0, end - start)
