"""Locks between processes: flock on an open file, and what is said where a file system has none.

Standard library only. Must never know what a lock is for.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from orchestrator.files.guarded import PLAIN

# NFS without a lock daemon, Lustre with noflock, and what FUSE and others answer.
_NONE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_HOME = "ORCHESTRATOR_HOME (or --home)"


class NoLocks(OSError):
    """A file system has no locks, so a person must choose another. `elsewhere`: what to set for that."""

    def __init__(self, path: Path, error: OSError, elsewhere: str = _HOME) -> None:
        super().__init__(
            errno.ENOLCK,
            f"{path} cannot be locked, because its file system has no locks ({error.strerror}): set "
            f"{elsewhere} to a folder on a disk with locks, such as a local one",
        )

    def __str__(self) -> str:
        return str(self.strerror)


def flock(descriptor: int, kind: int, path: Path, elsewhere: str = _HOME) -> bool:
    """Whether the lock of this open file is ours now, by flock(2). With LOCK_NB: False if another process has
    it. Raises NoLocks with the `path`."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NONE:
            raise NoLocks(path, error, elsewhere) from error
        raise
    return True


def check_locks(file: Path, place: Path) -> None:
    """Raises NoLocks, with the `place`, if this file there cannot be locked, by flock or by fcntl (SQLite
    uses that). Makes the file if it is missing. If it cannot be opened, its next writer says why."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | PLAIN, 0o600)
    except OSError:
        return
    try:
        flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, place)
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except NoLocks:
        raise
    except OSError as error:  # others: another process has it, and fcntl(2) has two words for that
        if error.errno in _NONE:
            raise NoLocks(place, error) from error
    finally:
        os.close(descriptor)
