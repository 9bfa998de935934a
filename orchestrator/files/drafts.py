"""Atomic writing: a file or folder appears under its name complete or not at all.

It is written as a draft: under a temporary name next to its place, locked (flock) by its writer. Then it is
synced and renamed, and its folder is synced. A draft may be removed by:

- its writer when it is done, even after an error, so that a failed draft does not fill a full disk.
- anyone, with `sweep`, if nobody holds its lock. The kernel releases a dead writer's lock, so a draft that
  can be locked has no writer. On a file system without locks, nothing is swept.

A draft's name begins with PREFIX, which no other file does. PREFIX begins with `.tmp-`, which every reader of
an outbox ignores. `orchestrator.training` and Kaggle's runner ship alone, so they have their own writers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

from orchestrator.files.opening import PLAIN
from orchestrator.files.removing import remove_tree

PREFIX = ".tmp-orchestrator-"
_NO_SUCH_CALL = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


# --- Files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """A file being written under a temporary name; `fd` is open for reading and writing, and locked."""

    path: Path
    fd: int

    def write(self, data: bytes | memoryview) -> None:
        """Appends all of `data`."""
        left = memoryview(data)
        while left:
            left = left[os.write(self.fd, left) :]

    def stream(self) -> BufferedRandom:
        """The draft as a file object. Close it before `sync`; the draft itself stays open."""
        return os.fdopen(self.fd, "w+b", closefd=False)

    def sync(self) -> None:
        """Returns when the bytes are on the disk."""
        os.fsync(self.fd)

    def replace(self, target: Path, *, sync: bool = True) -> None:
        """Makes the draft the target and replaces what was there. With `sync`, durably."""
        if sync:
            self.sync()
        self.path.replace(target)
        if sync:
            sync_folder(target.parent)

    def create(self, target: Path) -> None:
        """Makes the draft the target. Raises FileExistsError if the target exists. Syncs nothing.

        FAT and some network and user-space file systems have no hard links. If two writers race there, one
        may replace the other's file.
        """
        try:
            target.hardlink_to(self.path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
            self.path.rename(target)


@contextmanager
def draft_file(folder: Path, mode: int = 0o600) -> Iterator[Draft]:
    """A new draft in the folder. Removed at the end unless it was renamed."""
    while True:
        path = _new_name(folder)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | PLAIN, mode)
        if _held(path, fd):
            break
    try:
        yield Draft(path, fd)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(fd)


def write_whole(
    target: Path, data: bytes, *, sync: bool = True, mode: int = 0o600, folder: Path | None = None
) -> None:
    """Writes a file atomically. `sync=False` is for files that do not have to survive a power loss. `folder`:
    where to put the draft, if not next to the target."""
    with draft_file(folder or target.parent, mode) as draft:
        draft.write(data)
        draft.replace(target, sync=sync)


def write_new(target: Path, data: bytes) -> None:
    """Like `write_whole`, durably, but raises FileExistsError if the file exists."""
    with draft_file(target.parent) as draft:
        draft.write(data)
        draft.sync()
        draft.create(target)
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Makes the folder's entries durable. Does nothing if the file system cannot do that."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise
    finally:
        os.close(fd)


# --- Folders ----------------------------------------------------------------------------------------------


@contextmanager
def draft_folder(parent: Path, mode: int = 0o777, prefix: str = PREFIX) -> Iterator[Path]:
    """A new, empty folder under a temporary name. Removed at the end unless it was renamed."""
    while True:
        path = _new_name(parent, prefix)
        path.mkdir(mode=mode)
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if _held(path, fd):
                break
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            remove_tree(path)
        os.close(fd)


@contextmanager
def held_folder(path: Path) -> Iterator[None]:
    """A new, private folder of this name, locked like a draft and removed at the end. Use it for a draft that
    is never published, in a folder where everything may be swept."""
    set_aside(path)
    path.mkdir(mode=0o700, parents=True)
    with _locked(path):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                remove_tree(path)


def set_aside(path: Path) -> None:
    """Removes a file or folder: first its name, at once, then its content. After a crash, a sweep removes the
    rest. No error if it does not exist."""
    gone = _new_name(path.parent)
    with _locked(path):
        try:
            path.rename(gone)
        except FileNotFoundError:
            return
        remove_tree(gone)


# --- Drafts of dead writers -------------------------------------------------------------------------------


def sweep(folder: Path, prefix: str = PREFIX) -> None:
    """Removes the drafts of dead writers. Drafts of living writers are locked and stay."""
    for entry in list(os.scandir(folder)):
        if not entry.name.startswith(prefix):
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        with contextlib.suppress(OSError), _lock_of_the_dead(Path(entry.path)):
            remove_tree(Path(entry.path)) if is_folder else Path(entry.path).unlink()


def is_locked(path: Path) -> bool:
    """Whether a living writer holds the draft. True also if that is unknown."""
    try:
        with _lock_of_the_dead(path):
            return False
    except OSError:
        return True


def _new_name(folder: Path, prefix: str = PREFIX) -> Path:
    return folder / f"{prefix}{secrets.token_hex(8)}"


def _held(path: Path, fd: int) -> bool:
    """Locks the draft. False if a sweep removed it between its creation and its lock."""
    with contextlib.suppress(OSError):  # no locks on this file system: nothing is swept there
        fcntl.flock(fd, fcntl.LOCK_EX)
    if path.exists():
        return True
    os.close(fd)
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks a path, so that sweeps leave it alone. Goes on without a lock if it cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | PLAIN)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


@contextmanager
def _lock_of_the_dead(path: Path) -> Iterator[None]:
    """Holds the lock of a draft that nobody is writing. Raises OSError if a living writer holds it, or if
    there are no locks."""
    fd = os.open(path, os.O_RDONLY | PLAIN)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
