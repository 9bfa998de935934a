"""Copies files, so that whoever has the source open cannot change the copy. Must never know their purpose."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from io import FileIO
from pathlib import Path
from typing import IO

from orchestrator.files.guarded import PLAIN, make_folder, open_file, place
from orchestrator.files.removing import make_read_only, remove_tree
from orchestrator.files.room import check_room
from orchestrator.shut import is_shut

_CHUNK_BYTES = 1 << 20
_FICLONE = 0x40049409  # linux/fs.h: the new file shares the old one's blocks until either is written
_NO_LINK = frozenset({
    errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES, errno.ENOENT, errno.ENOTDIR,
    errno.ENOSYS,
})  # fmt: skip
_NO_SUCH_CALL = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF}


def copy_file(
    source: Path, target: Path, mode: int = 0o600, *, follow: bool = False, bytes_max: int | None = None
) -> None:
    """Copies a file to a new one. Shares the blocks on the disk if the file system can do that. If the file
    grows meanwhile, the new part is not copied.

    Raises FileExistsError if the target exists. Raises OSError with ELOOP if the source is a link (unless
    `follow`) or not a regular file, with EPERM if it is shut, and BlockingIOError if it has grown beyond
    `bytes_max`.
    """
    if is_shut(source.stat(follow_symlinks=follow)):
        raise OSError(errno.EPERM, "the ledger's own file, which must not be read while in use", str(source))
    plain = PLAIN & ~os.O_NOFOLLOW
    reading = os.open(source, os.O_RDONLY | plain) if follow else open_file(source, os.O_RDONLY)
    try:
        found = os.fstat(reading)
        if not stat.S_ISREG(found.st_mode):  # followed
            raise OSError(errno.ELOOP, "not a plain file", str(source))
        if bytes_max is not None and found.st_size > bytes_max:
            raise BlockingIOError(errno.EAGAIN, f"larger than {bytes_max} bytes", str(source))
        copy_open(reading, target, found.st_size, mode)
    finally:
        os.close(reading)


def copy_open(reading: int, target: Path, size: int, mode: int = 0o600) -> None:
    """Copies the first `size` bytes of an open file to a new file, like `copy_file`. Raises Lack if it does
    not fit beside what stays free for others."""
    writing = open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        if not _shared(reading, writing, size):
            check_room(target.parent, size)
            _fill(reading, writing, size)
    except OSError:
        remove_tree(target)
        raise
    finally:
        os.close(writing)


def _shared(reading: int, writing: int, size: int) -> bool:
    """Has the copy share the blocks of the file, which costs nothing. False if the file system cannot."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(writing, _FICLONE, reading)
        if os.fstat(writing).st_size > size:  # it has grown since
            os.ftruncate(writing, size)
        return True
    return False


def _fill(reading: int, writing: int, size: int) -> None:
    left = size
    while left and (count := _move(reading, writing, min(left, _CHUNK_BYTES))):
        left -= count


def _move(reading: int, writing: int, count: int) -> int:
    """Copies up to `count` bytes, in the kernel if possible. Returns how many; 0 at the end."""
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
    """Copies a folder; its files as `copy_file` does. Only the owner may access the copy, and no mode becomes
    wider. Files are always read-only; folders only with `read_only`."""
    made = []
    for here, folders, names in os.walk(source, followlinks=follow, onerror=_raise):
        into = target / Path(here).relative_to(source)
        make_folder(into, 0o700)
        made.append(into)
        for name in names + [name for name in folders if not follow and Path(here, name).is_symlink()]:
            copy_file(Path(here, name), into / name, frozen_mode(Path(here, name)), follow=follow)
    for folder in reversed(made) if read_only else ():
        make_read_only(folder)


def frozen_mode(path: Path) -> int:
    """The file's mode, reduced to reading and executing by its owner."""
    return stat.S_IMODE(path.stat().st_mode) & 0o100 | 0o400


def _raise(error: OSError) -> None:
    raise error


def copy(source: FileIO | IO[bytes], target: FileIO | IO[bytes], bytes_max: int) -> int:
    """Copies at most `bytes_max` bytes from the files' current positions. Blocks of zeros become holes.

    Returns how many bytes were added to the target.
    """
    done = 0
    while done < bytes_max and (chunk := source.read(min(_CHUNK_BYTES, bytes_max - done))):
        if len(chunk) == _CHUNK_BYTES and not any(chunk[:64]) and chunk.count(0) == len(chunk):
            target.seek(len(chunk), os.SEEK_CUR)
        else:
            target.write(chunk)
        done += len(chunk)
    target.flush()
    target.truncate(target.tell())
    return done


def link(file: FileIO, target: Path) -> bool:
    """Gives an open file a second name; False if a hard link is impossible."""
    here = file.fileno()
    try:
        with place(target) as (folder, name):
            os.link(f"/proc/self/fd/{here}", name, dst_dir_fd=folder, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True
