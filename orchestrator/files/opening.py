"""Opens files to write to them: never through a link of either kind, and never a pipe."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

from orchestrator.files.guarded import open_file

_OTHERS = 0o077


def append(path: Path, data: bytes) -> None:
    """Appends to a file; creates it if missing. Raises OSError if anything else has its name."""
    with os.fdopen(_open_only(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), "ab") as file:
        file.write(data)


@contextmanager
def written(path: Path, *, anew: bool = True, mode: int = 0o666) -> Iterator[BufferedRandom]:
    """A file open for writing; created if missing. `anew`: emptied if it is there. Raises OSError if anything
    else has its name."""
    flags = os.O_RDWR | os.O_CREAT
    with open(path, "r+b", opener=lambda *_: _open_only(path, flags, mode)) as file:
        if anew:
            file.truncate(0)
        yield file


def open_log(path: Path) -> int:
    """A descriptor that appends to a private log of this user. Creates the log if missing.

    Raises OSError if something else has its name, or it is another user's file.
    """
    descriptor = _open_only(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        os.close(descriptor)
        raise OSError(errno.ELOOP, "not a file of this user", str(path))
    if found.st_mode & _OTHERS:
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return descriptor


def _open_only(path: Path, flags: int, mode: int) -> int:
    """Opens a file that has no other name: what a session has linked hard is somebody else's file."""
    descriptor = open_file(path, flags, mode)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, "a file that has another name, too: remove it here", str(path))
    return descriptor
