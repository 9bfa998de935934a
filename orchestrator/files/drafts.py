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

from orchestrator.files.guarded import PLAIN, folder_at, look, make_folder, place
from orchestrator.files.removing import remove_in

PREFIX = ".tmp-orchestrator-"
_NO_SUCH_CALL = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


# --- Files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """A file being written under a temporary name in `folder`, which is open; `fd` is open for reading and
    writing, and locked."""

    path: Path
    fd: int
    folder: int

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
        with self._place(target) as (folder, name):
            os.rename(self.path.name, name, src_dir_fd=self.folder, dst_dir_fd=folder)
            if sync:
                _sync(folder)

    def create(self, target: Path, *, sync: bool = False) -> None:
        """Makes the draft the target. Raises FileExistsError if the target exists. With `sync`, durably.

        FAT and some network and user-space file systems have no hard links. If two writers race there, one
        may replace the other's file.
        """
        if sync:
            self.sync()
        with self._place(target) as (folder, name):
            try:
                os.link(self.path.name, name, src_dir_fd=self.folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if look(target) is not None:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
                os.rename(self.path.name, name, src_dir_fd=self.folder, dst_dir_fd=folder)
            if sync:
                _sync(folder)

    @contextmanager
    def _place(self, target: Path) -> Iterator[tuple[int, str]]:
        if target.parent == self.path.parent:
            yield self.folder, target.name
            return
        with place(target) as found:
            yield found


@contextmanager
def draft_file(folder: Path, mode: int = 0o600) -> Iterator[Draft]:
    """A new draft in the folder. Removed at the end unless it was renamed."""
    with folder_at(folder) as there:
        while True:
            name = _new_name()
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | PLAIN, mode, dir_fd=there)
            if _held(there, name, fd):
                break
        try:
            yield Draft(folder / name, fd, there)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=there)
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
        draft.create(target, sync=True)


def sync_folder(folder: Path) -> None:
    """Makes the folder's entries durable. Does nothing if the file system cannot do that."""
    with folder_at(folder) as there:
        _sync(there)


def _sync(folder: int) -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
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
    with folder_at(parent) as there:
        while True:
            name = _new_name(prefix)
            os.mkdir(name, mode, dir_fd=there)
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | PLAIN, dir_fd=there)
                if _held(there, name, fd):
                    break
        try:
            yield parent / name
        finally:
            with contextlib.suppress(OSError):
                remove_in(there, name)
            os.close(fd)


@contextmanager
def held_folder(path: Path) -> Iterator[None]:
    """A new, private folder of this name, locked like a draft and removed at the end. Use it for a draft that
    is never published, in a folder where everything may be swept."""
    set_aside(path)
    make_folder(path.parent)
    with place(path) as (folder, name):
        os.mkdir(name, 0o700, dir_fd=folder)
        with _locked(folder, name):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    remove_in(folder, name)


def set_aside(path: Path) -> None:
    """Removes a file or folder: first its name, at once, then its content. After a crash, a sweep removes the
    rest. No error if it does not exist."""
    gone = _new_name()
    with contextlib.suppress(FileNotFoundError), place(path) as (folder, name), _locked(folder, name):
        os.rename(name, gone, src_dir_fd=folder, dst_dir_fd=folder)
        remove_in(folder, gone)


# --- Drafts of dead writers -------------------------------------------------------------------------------


def sweep(folder: Path, prefix: str = PREFIX) -> None:
    """Removes the drafts of dead writers. Drafts of living writers are locked and stay."""
    with folder_at(folder, os.O_RDONLY) as there:
        with os.scandir(there) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            if name.startswith(prefix):
                with contextlib.suppress(OSError), _lock_of_the_dead(there, name):
                    remove_in(there, name)


def is_locked(path: Path) -> bool:
    """Whether a living writer holds the draft. True also if that is unknown."""
    try:
        with place(path) as (folder, name), _lock_of_the_dead(folder, name):
            return False
    except OSError:
        return True


def _new_name(prefix: str = PREFIX) -> str:
    return f"{prefix}{secrets.token_hex(8)}"


def _held(folder: int, name: str, fd: int) -> bool:
    """Locks the draft. False if a sweep removed it between its creation and its lock."""
    with contextlib.suppress(OSError):  # no locks on this file system: nothing is swept there
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        os.close(fd)
        return False
    return True


@contextmanager
def _locked(folder: int, name: str) -> Iterator[None]:
    """Locks what is there, so that sweeps leave it alone. Goes on without a lock if it cannot be opened."""
    try:
        fd = os.open(name, os.O_RDONLY | PLAIN, dir_fd=folder)
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
def _lock_of_the_dead(folder: int, name: str) -> Iterator[None]:
    """Holds the lock of a draft that nobody is writing. Raises OSError if a living writer holds it, or if
    there are no locks."""
    fd = os.open(name, os.O_RDONLY | PLAIN, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
