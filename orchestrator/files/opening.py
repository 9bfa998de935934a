"""Opens files safely: never through a link, and without waiting for the other end of a pipe."""

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
    """Appends to a file; creates it if missing. Raises OSError if it is a link or a pipe."""
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "ab") as file:
        file.write(data)


@contextmanager
def written(path: Path, *, anew: bool = True, mode: int = 0o666) -> Iterator[BufferedRandom]:
    """A file open for writing; created if missing. `anew`: emptied if it is there. Raises OSError if it is a
    link, a folder or a pipe."""
    flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if anew else 0)
    with open(path, "r+b", opener=lambda *_: open_file(path, flags, mode)) as file:
        yield file


def open_log(path: Path) -> int:
    """A descriptor that appends to a private log of this user. Creates the log if missing.

    Raises OSError if something else has its name: a link, another user's file, a pipe.
    """
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, "not a plain file of this user alone", str(path))
    if found.st_mode & _OTHERS:
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return descriptor
