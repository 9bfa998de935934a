"""Files and folders that appear whole or not at all, on the local disk.

Decides how bytes are copied, hashed and made durable, and which leavings of dead writers may go. Must never
know keys, stores or checkpoints.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

PREFIX = ".tmp-orchestrator-"  # no one else's: what carries it and is not locked may be deleted
CHUNK_BYTES = 1024 * 1024
_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_NO_SUCH_CALL = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}

Read = Callable[[memoryview], int]


@dataclass(frozen=True)
class Draft:
    """A file being written under a temporary name; `fd` is open for writing, and locked by its writer."""

    path: Path
    fd: int

    def sync(self) -> None:
        """Returns when the bytes are on the disk."""
        _fdatasync(self.fd)

    def replace(self, target: Path) -> None:
        """Makes the draft the target, durably, whatever was there before."""
        self.sync()
        self.path.replace(target)
        sync_folder(target.parent)


@contextmanager
def draft_file(folder: Path) -> Iterator[Draft]:
    """A new draft in the folder, removed on leaving unless it has been renamed away."""
    while True:
        path = folder / f"{PREFIX}{secrets.token_hex(8)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        if _held(path, fd):
            break
    try:
        yield Draft(path, fd)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(fd)


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """A new, empty folder under a temporary name, removed on leaving unless it has been renamed away."""
    while True:
        path = parent / f"{PREFIX}{secrets.token_hex(8)}"
        path.mkdir()
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _held(path, fd):
                break
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _held(path: Path, fd: int) -> bool:
    """Locks the draft. False: a sweep took it for dead between its creation and its lock."""
    with contextlib.suppress(OSError):  # no locks on this file system: sweeps leave everything alone there
        fcntl.flock(fd, fcntl.LOCK_EX)
    if path.exists():
        return True
    os.close(fd)
    return False


def sweep(folder: Path) -> None:
    """Removes the drafts of writers that died; those of living writers are locked and stay."""
    for entry in list(os.scandir(folder)):
        if not entry.name.startswith(PREFIX):
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        with contextlib.suppress(OSError):
            fd = os.open(entry.path, (os.O_RDONLY if is_folder else os.O_RDWR) | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path) if is_folder else Path(entry.path).unlink()
            finally:
                os.close(fd)


def sync_folder(folder: Path) -> None:
    """Makes the folder's entries durable; where the file system has no such thing, nothing."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise
    finally:
        os.close(fd)


def copy(read: Read, fd: int | None) -> str:
    """Reads to the end, writes all of it to `fd` (None: nowhere); returns the sha256 of what was read.

    Hashing, the slowest of the three, goes on beside reading and writing: two buffers, one thread.
    """
    digest = hashlib.sha256()
    hashing: Future[None] | None = None
    with ThreadPoolExecutor(1) as pool:
        for buffer in cycle([memoryview(bytearray(CHUNK_BYTES)) for _ in range(2)]):
            count = read(buffer)
            if hashing is not None:
                hashing.result()
            if not count:
                return digest.hexdigest()
            hashing = pool.submit(digest.update, buffer[:count])
            if fd is not None:
                _write(fd, buffer[:count])
    raise AssertionError("the buffers never end")


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def digest_file(path: Path) -> str:
    """The sha256 of the file's bytes, in hexadecimal."""
    with path.open("rb", buffering=0) as stream:
        return copy(stream.readinto, None)
