"""Files on this machine's disk: private, whole or not at all, copied and never linked, never through a link.

Decides how a file is copied, written and removed here, and which drafts of dead writers may go. Must never
know what the files are for. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.shut import is_shut

PREFIX = ".tmp-orchestrator-"  # no one else's: what carries it and is not locked may be deleted
_CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409  # linux/fs.h: the new file shares the old one's blocks until either is written
_OTHERS = 0o077
_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}
_NO_SUCH_CALL = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that somebody put there makes nobody wait


# --- Writing ----------------------------------------------------------------------------------------------


def write_whole(target: Path, data: bytes, *, sync: bool = True, mode: int = 0o600) -> None:
    """Puts a file in place whole or not at all: temporary name, fsync, rename, fsync of the folder."""
    temporary = target.parent / f".tmp-{target.name}-{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    except OSError:  # a full disk must not be filled further by what it could not take
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(target.parent)


def open_log(path: Path) -> int:
    """A descriptor that appends to a private log of this user, made where there is none.

    Raises OSError where something else bears its name: a link, another user's file, a pipe.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _PLAIN, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, "not a plain file of this user alone", str(path))
    if found.st_mode & _OTHERS:
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return descriptor


def tighten(path: Path) -> bool:
    """Takes a file or folder of this user away from all others; whether anything had to be taken."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
            return True
    return False


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


# --- Reading ----------------------------------------------------------------------------------------------


def read_small(path: Path, bytes_max: int = 4096) -> bytes | None:
    """A small plain file; None where there is none, something else of that name, a larger one, or one that
    is shut."""
    try:
        if is_shut(path.lstat()):
            return None
        descriptor = os.open(path, os.O_RDONLY | _PLAIN)
    except OSError:
        return None
    try:
        data = os.read(descriptor, bytes_max + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    finally:
        os.close(descriptor)
    return data if data is None or len(data) <= bytes_max else None


# --- Copying ----------------------------------------------------------------------------------------------


def copy_file(
    source: Path, target: Path, mode: int = 0o600, *, follow: bool = False, bytes_max: int | None = None
) -> None:
    """The same bytes in a new file of their own; without a second copy on the disk where the file system can
    share blocks. Copies what is there at the start: a file that grows meanwhile is not followed.

    Raises FileExistsError for a target that exists; OSError with ELOOP for a source that is a link (unless
    `follow`) or no plain file, with EFBIG for a larger one, with EPERM for one that is shut.
    """
    if is_shut(source.stat(follow_symlinks=follow)):
        raise OSError(errno.EPERM, "the ledger's own file, which nobody may read meanwhile", str(source))
    flags = _PLAIN & ~os.O_NOFOLLOW if follow else _PLAIN
    reading = os.open(source, os.O_RDONLY | flags)
    try:
        found = os.fstat(reading)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ELOOP, "not a plain file", str(source))
        if bytes_max is not None and found.st_size > bytes_max:
            raise OSError(errno.EFBIG, f"larger than {bytes_max} bytes", str(source))
        copy_open(reading, target, found.st_size, mode)
    finally:
        os.close(reading)


def copy_open(reading: int, target: Path, size: int, mode: int = 0o600) -> None:
    """The first `size` bytes of an open file in a new file, as `copy_file` does it."""
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, mode)
    try:
        _fill(reading, writing, size)
    except OSError:
        target.unlink()
        raise
    finally:
        os.close(writing)


def _fill(reading: int, writing: int, size: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(writing, _FICLONE, reading)
        if os.fstat(writing).st_size > size:  # it has grown since
            os.ftruncate(writing, size)
        return
    left = size
    while left and (count := _move(reading, writing, min(left, _CHUNK_BYTES))):
        left -= count


def _move(reading: int, writing: int, count: int) -> int:
    """Up to so many bytes, within the kernel where it can. Returns how many; 0 at the end."""
    try:
        return os.sendfile(writing, reading, None, count)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise
    data = memoryview(os.read(reading, count))
    size = len(data)
    while data:
        data = data[os.write(writing, data) :]
    return size


def copy_tree(source: Path, target: Path, *, follow: bool = False, read_only: bool = True) -> None:
    """A folder, as `copy_file` copies its files. All of it is the owner's alone and no mode is wider than it
    was; `read_only` says whether the copy's folders are too. Its files always are."""
    made = []
    for here, folders, names in os.walk(source, followlinks=follow, onerror=_raise):
        into = target / Path(here).relative_to(source)
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        made.append(into)
        for name in names + [name for name in folders if not follow and Path(here, name).is_symlink()]:
            copy_file(Path(here, name), into / name, frozen_mode(Path(here, name)), follow=follow)
    for folder in reversed(made) if read_only else ():
        folder.chmod(0o500)


def frozen_mode(path: Path) -> int:
    """The file's mode for its owner alone, without the right to write."""
    return stat.S_IMODE(path.stat().st_mode) & 0o100 | 0o400


def _raise(error: OSError) -> None:
    raise error


# --- Removing ---------------------------------------------------------------------------------------------


def remove_tree(path: Path) -> None:
    """Removes a folder and all below it, or a file, whatever modes forbid it and however deep it is; follows
    no link. No error where nothing is there."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        allow(path)
        top = os.open(path, os.O_DIRECTORY | _PLAIN)
        try:
            _empty(top)
        finally:
            os.close(top)
        path.rmdir()


def _empty(top: int) -> None:
    """What holds something moves up into the top folder before it is emptied: so neither the depth of a tree
    nor the length of its paths matters."""
    waiting = _clear(top, top)
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it, too
            folder = os.open(name, os.O_DIRECTORY | _PLAIN, dir_fd=top)
            try:
                waiting += _clear(folder, top)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _clear(folder: int, top: int) -> list[str]:
    """Empties a folder; of its own folders, those that hold something are in `top` then, by these names."""
    moved = []
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        with contextlib.suppress(FileNotFoundError):
            if not is_folder:
                os.unlink(name, dir_fd=folder)
            elif not _removed_empty(name, folder):
                allow(name, folder)
                moved.append(secrets.token_hex(16))
                os.rename(name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    return moved


def _removed_empty(name: str, folder: int) -> bool:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise
        return False
    return True


def allow(folder: Path | str, parent: int | None = None) -> None:
    """Gives the owner every right to a folder back; nothing where it is none, or another user's. `parent`:
    the descriptor of the folder in which it is."""
    with contextlib.suppress(OSError):  # a link, or gone
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101 - by descriptor: the name may be another's by now
        finally:
            os.close(fd)


def allow_file(path: Path) -> None:
    """Gives the owner the right to read and write a plain file back; nothing where it is none, or another
    user's."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.chmod(f"/proc/self/fd/{fd}", 0o600)  # noqa: PTH101 - as in `allow`
        finally:
            os.close(fd)


# --- Drafts: under a temporary name, locked by their writer -----------------------------------------------


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
def draft_folder(parent: Path, mode: int = 0o777) -> Iterator[Path]:
    """A new, empty folder under a temporary name, removed on leaving unless it has been renamed away."""
    while True:
        path = parent / f"{PREFIX}{secrets.token_hex(8)}"
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


def set_aside(path: Path) -> None:
    """Removes a file or folder: at once under its name, then what it holds. What a crash leaves of it, a
    sweep takes. No error where nothing is there."""
    gone = path.parent / f"{PREFIX}{secrets.token_hex(8)}"
    with _locked(path):
        try:
            path.rename(gone)
        except FileNotFoundError:
            return
        remove_tree(gone)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Tells sweeps that somebody is at work on it; without where it cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | _PLAIN)
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
def held_folder(path: Path) -> Iterator[None]:
    """A new, private folder of this name, locked against sweeps and removed on leaving."""
    set_aside(path)
    path.mkdir(mode=0o700, parents=True)
    with _locked(path):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                remove_tree(path)


def _held(path: Path, fd: int) -> bool:
    """Locks the draft. False: a sweep took it for dead between its creation and its lock."""
    with contextlib.suppress(OSError):  # no locks on this file system: sweeps leave everything alone there
        fcntl.flock(fd, fcntl.LOCK_EX)
    if path.exists():
        return True
    os.close(fd)
    return False


def sweep(folder: Path, prefix: str = PREFIX) -> None:
    """Removes the drafts of writers that died; those of living writers are locked and stay."""
    for entry in list(os.scandir(folder)):
        if not entry.name.startswith(prefix):
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        with contextlib.suppress(OSError), _lock_of_the_dead(Path(entry.path)):
            remove_tree(Path(entry.path)) if is_folder else Path(entry.path).unlink()


def is_locked(path: Path) -> bool:
    """Whether a living writer holds the draft; True as well where nobody can tell."""
    try:
        with _lock_of_the_dead(path):
            return False
    except OSError:
        return True


@contextmanager
def _lock_of_the_dead(path: Path) -> Iterator[None]:
    """Holds the lock of a draft that nobody is writing. Raises OSError where a living writer holds it, and
    where there are no locks."""
    fd = os.open(path, os.O_RDONLY | _PLAIN)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
