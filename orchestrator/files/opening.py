"""Opens files safely: never through a link, and without waiting for the other end of a pipe."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # add this to the flags for reading or writing
_OTHERS = 0o077


def append(path: Path, data: bytes) -> None:
    """Appends to a file; creates it if missing. Raises OSError if it is a link or a pipe."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | PLAIN, 0o644)
    with os.fdopen(descriptor, "ab") as file:
        file.write(data)


def open_log(path: Path) -> int:
    """A descriptor that appends to a private log of this user. Creates the log if missing.

    Raises OSError if something else has its name: a link, another user's file, a pipe.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | PLAIN, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, "not a plain file of this user alone", str(path))
    if found.st_mode & _OTHERS:
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return descriptor
