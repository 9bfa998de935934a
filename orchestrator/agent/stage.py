"""The exec stage: sets what only the process itself can set, then becomes the training command.

It runs between the fork and the command and replaces a `preexec_fn`, which is unsafe with threads. Knows no
order and no folder.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as a shell would say


def run(parent: int, memory_bytes: int | None, command: list[str]) -> int:
    """Becomes the command. Returns an exit code only if that fails."""
    if not _die_with(parent):
        return 1
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores the last two, and exec would pass that on
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: command not found\n")
        return _NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return _NOT_EXECUTABLE


def _die_with(parent: int) -> bool:
    """Asks the kernel to kill this process when its parent dies; False if the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
