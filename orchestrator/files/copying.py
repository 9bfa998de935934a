"""Files copied: who has the source open changes nothing of the copy. Must never know what they are for."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from io import FileIO
from pathlib import Path
from typing import IO

from orchestrator.files.opening import PLAIN
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
    """The same bytes in a new file of their own; without a second copy on the disk where the file system can
    share blocks. Copies what is there at the start: a file that grows meanwhile is not followed.

    Raises FileExistsError for a target that exists; OSError with ELOOP for a source that is a link (unless
    `follow`) or no plain file, with EFBIG for a larger one, with EPERM for one that is shut.
    """
    if is_shut(source.stat(follow_symlinks=follow)):
        raise OSError(errno.EPERM, "the ledger's own file, which nobody may read meanwhile", str(source))
    flags = PLAIN & ~os.O_NOFOLLOW if follow else PLAIN
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
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN, mode)
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


def copy(source: FileIO | IO[bytes], target: FileIO | IO[bytes], bytes_max: int) -> int:
    """Copies at most so many bytes from where the files stand; what is all zeros becomes a hole.

    Returns how many bytes the target has grown by.
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
    """Gives the very file that is open a second name; False where there can be no hard link."""
    here = file.fileno()
    try:
        os.link(f"/proc/self/fd/{here}", target, src_dir_fd=here, follow_symlinks=True)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True
