"""The lock of a ledger in SQLite: flock on a file beside the database, and who waits for it on this machine.

The kernel releases it when its process dies, and not before: no other process can end it. Knows neither
fences nor the tables.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from orchestrator.errors import AccessDenied, InputError
from orchestrator.files import PLAIN, flock, kind, tighten
from orchestrator.ledger.lock import ATTEMPTS, MARK, Held, Owner, Standby, attempts

_WAITS = ".standby-"
_BYTES_MAX = 4096


class FileLock:
    """The lock for one process, from `take` to `release`."""

    def __init__(self, database: Path) -> None:
        self._path = lock_path(database)
        self._descriptor: int | None = None

    def take(self, us: Owner, *, looks: int = ATTEMPTS) -> bool:
        """Takes it, unless another process has it."""
        descriptor = _opened(self._path)
        with ExitStack() as opened:  # also after a full disk, no lock may stay
            opened.callback(os.close, descriptor)
            for _ in attempts(looks):
                if flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._path):
                    os.pwrite(descriptor, us.mark.encode(), 0)
                    opened.pop_all()
                    # The file stays: without it, two processes could lock two files.
                    self._descriptor = descriptor
                    return True
        return False

    def keep(self) -> Held:
        return Held.ALWAYS

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class FileStandby:
    """This process in the line for the lock: a locked file beside the database says so, until `close`."""

    def __init__(self, database: Path, us: Owner) -> None:
        self._lock = FileLock(database)
        self._us = us
        self._path = database.with_name(f"{database.name}{_WAITS}{us.pid}")
        self._descriptor = _opened(self._path)
        flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._path)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps({"pid": us.pid, "since": us.since}).encode(), 0)
        for left in _waiting(database):  # of standbys that were killed
            if _content(left) is None:
                left.unlink(missing_ok=True)

    def attempt(self, us: Owner, _monotonic: float) -> FileLock | None:
        """The lock, if it is free."""
        return self._lock if self._lock.take(us, looks=1) else None

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            os.close(self._descriptor)


def mark(database: Path) -> str | None:
    """The mark of the lock, empty if an older version holds it; None if nobody holds it."""
    path = lock_path(database)
    try:
        descriptor = _plain(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AccessDenied(
            f"{path} cannot be read ({error.strerror}): make it readable", backend="ledger", operation="look"
        ) from error
    try:
        if flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, path):
            return None
        return os.pread(descriptor, MARK, 0).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def standbys(database: Path, host: str) -> tuple[Standby, ...]:
    """Who waits for the lock on this machine, called `host`. Changes nothing."""
    contents = (_content(path) for path in _waiting(database))
    return tuple(Standby(pid, host, since) for pid, since in filter(None, contents))


def lock_path(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


def _waiting(database: Path) -> list[Path]:
    try:
        there = sorted(database.parent.iterdir())
    except OSError:
        return []
    return [path for path in there if path.name.startswith(f"{database.name}{_WAITS}")]


def _content(path: Path) -> tuple[int, float] | None:
    """What a standby wrote; None if it is gone, because then nobody has its file locked."""
    try:
        descriptor = _plain(path, os.O_RDONLY)
    except (OSError, InputError):
        return None
    try:
        if flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, path):
            return None
        found = json.loads(os.pread(descriptor, _BYTES_MAX, 0))
        return int(found["pid"]), float(found["since"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        descriptor = _plain(path, os.O_RDWR | os.O_CREAT)
        tighten(path)  # anyone who can open it can hold it for ever
    except OSError as error:
        raise AccessDenied(
            f"{path} cannot be opened for writing ({error.strerror}): make its folder writable, or set "
            "ORCHESTRATOR_HOME to one that is",
            backend="ledger",
            operation="take over",
        ) from error
    return descriptor


def _plain(path: Path, flags: int) -> int:
    """Opens a file that only this module makes. Raises InputError if something else has its name: a lock on a
    FIFO or behind a link would be another lock."""
    try:
        descriptor = os.open(path, flags | PLAIN, 0o600)
    except OSError:  # ELOOP of a link, ENXIO of a socket, EISDIR: the same answer
        if not os.path.lexists(path) or (path.is_file() and not path.is_symlink()):
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise InputError(f"{path} is {kind(path.lstat().st_mode)}, not a file: remove it; it is made again")
