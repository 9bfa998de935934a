"""Reads files that may be anything: never forever, never too much, and a session's never through a link.

A name in a session's folder may be a folder, a link to the outside, a FIFO, a device, a socket, unreadable,
or change between two looks. Each case raises the same exception with its reason. The user's own files, such
as a config or a job, are read with the `_own` functions, which follow links. Decides nothing about contents.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from io import BufferedReader, FileIO
from pathlib import Path, PurePosixPath

from orchestrator.core import bounds
from orchestrator.errors import InputError
from orchestrator.files.guarded import PLAIN, place
from orchestrator.files.kernel import kernel_at
from orchestrator.shut import is_shut

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | PLAIN
_FILE = os.O_RDONLY | PLAIN
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFREG: "a file",
}  # fmt: skip


class Odd(Exception):
    """A name has the wrong kind of thing, or it cannot be read. `str()` says which name, and why."""


@contextmanager
def opened(root: Path, name: str) -> Iterator[FileIO | None]:
    """The regular file `name` (with forward slashes) below `root`, open for reading; None if it is missing.

    Follows no link, not even `root` itself, and waits for nothing. Raises Odd for anything else.
    """
    descriptor = _open_file(root, PurePosixPath(name))
    if descriptor is None:
        yield None
        return
    with FileIO(descriptor) as file:
        yield file


def read(root: Path, name: str, bytes_max: int) -> bytes | None:
    """The whole content; None if there is no file. Never reads more than one byte over the limit.

    Raises Odd if the file is larger, and in the same cases as `opened`.
    """
    with opened(root, name) as file:
        if file is None:
            return None
        data = b""
        try:
            while len(data) <= bytes_max and (chunk := file.read(bytes_max + 1 - len(data))):
                data += chunk
        except OSError as error:
            raise _odd(name, error) from error
    if len(data) > bytes_max:
        raise Odd(f"{name} is larger than {bounds.size_text(bytes_max)}")
    return data


def read_small(path: Path, bytes_max: int = 4096) -> bytes | None:
    """The content of a small file; None if it is missing or odd. For notes that are not essential."""
    try:
        return read(path.parent, path.name, bytes_max)
    except Odd:
        return None


def open_own(path: Path) -> BufferedReader:
    """A file that the user put there or named, open for reading. It may be a link to one, as in a folder of
    dotfiles; the end of it must be a regular file.

    Raises FileNotFoundError if nothing has this name, and InputError, which begins with the path, for all
    else that cannot be read: a FIFO, a device, a folder, a link in a circle or to nothing, a file of /proc.
    """
    if wrong := own_trouble(path):
        raise InputError(f"{path} {wrong}")
    try:
        if is_shut(path.stat()):
            raise InputError(f"{path} is the ledger's own file under another name")
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {_reason(error)}") from error
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):  # replaced in between
        file.close()
        raise InputError(f"{path} is {kind(mode)}, not a file")
    return file


def read_own(path: Path, bytes_max: int) -> bytes:
    """The whole content of such a file. Never reads more than one byte over the limit.

    Raises InputError also if the file is larger.
    """
    with open_own(path) as file:
        try:
            data = file.read(bytes_max + 1)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {_reason(error)}") from error
    if len(data) > bytes_max:
        raise InputError(f"{path} is larger than {bounds.size_text(bytes_max)}")
    return data


def own_trouble(path: Path) -> str:
    """Why `open_own` refuses what has this name, to follow the path in a sentence; empty for a file that
    it opens, and if nothing has the name."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return f"is a link to {_target(path)}, which does not exist" if path.is_symlink() else ""
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            return "is a link that leads back to itself, not a file"
        return f"cannot be read: {_reason(error)}"
    link = "a link to " if path.is_symlink() else ""
    if not stat.S_ISREG(found.st_mode):
        return f"is {link}{kind(found.st_mode)}, not a file"
    # The kernel's files have no blocks. Looking there first saves every command the ctypes.
    if not found.st_blocks and (name := kernel_at(path)):
        return f"is {link}a file that the kernel makes up ({name}), not a file on a disk"
    return ""


def names(root: Path, name: str) -> list[str]:
    """Up to LISTED_MAX names in the folder `name` below `root` (`.`: the root), in no particular order.

    Raises Odd if it is not a folder. See `cut_short`.
    """
    descriptor = _open_folder(root, PurePosixPath(name))
    if descriptor is None:
        return []
    try:
        with os.scandir(descriptor) as entries:
            return [entry.name for entry, _ in zip(entries, range(bounds.LISTED_MAX), strict=False)]
    except OSError as error:
        raise _odd(name, error) from error
    finally:
        os.close(descriptor)


def cut_short(listed: Sized, name: str) -> tuple[str, ...]:
    """A note for a folder with more names than `names` lists, if so."""
    if len(listed) < bounds.LISTED_MAX:
        return ()
    return (f"{name} has {bounds.LISTED_MAX:,} names or more: the others were not read",)


def is_sparse(size: int, on_disk: int) -> bool:
    """Whether a large file consists almost only of holes, which cost its author nothing."""
    return size >= bounds.SPARSE_BYTES_MIN and on_disk * bounds.SPARSE_SHARE_MAX < size


def on_disk(found: os.stat_result) -> int:
    """The bytes that a file really uses on the disk."""
    return found.st_blocks * 512


def kind(mode: int) -> str:
    """The kind of file that a mode means, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "not a file")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return "another place"


def _open_file(root: Path, name: PurePosixPath) -> int | None:
    folder = _open_folder(root, name.parent)
    if folder is None:
        return None
    try:
        before = os.stat(name.name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(before.st_mode):  # checked first, because opening a device may have an effect
            raise Odd(f"{name} is {kind(before.st_mode)}")
        if is_shut(before):
            raise Odd(f"{name} is the ledger's own file under another name")
        descriptor = os.open(name.name, _FILE, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _odd(str(name), error) from error
    finally:
        os.close(folder)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):  # replaced in between
        os.close(descriptor)
        raise Odd(f"{name} is {kind(mode)}")
    return descriptor


def _open_folder(root: Path, name: PurePosixPath) -> int | None:
    """Opens each part of the path in turn, so that none of them can be a link."""
    try:
        with place(root) as (above, first):
            return _entered(above, (first, *name.parts))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _odd(error.filename or root.name, error) from error


def _entered(above: int, parts: tuple[str, ...]) -> int:
    folder, way = above, PurePosixPath()
    for part in parts:
        way /= part
        try:
            below = os.open(part, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _odd(str(way), error, _kind_at(part, folder)) from error
        finally:
            if folder != above:
                os.close(folder)
        folder = below
    return folder


def _kind_at(part: str, folder: int) -> str:
    """The kind of thing that is there instead of a folder; empty for a folder that cannot be opened."""
    try:
        mode = os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return ""
    return "" if stat.S_ISDIR(mode) else kind(mode)


def _odd(name: str, error: OSError, kind: str = "") -> Odd:
    """The error as Odd, with the reason in words. Errors of this process itself are raised unchanged."""
    if error.errno in _OURS:
        raise error
    if error.errno == errno.ELOOP:
        kind = "a link"
    return Odd(f"{name} is {kind}" if kind else f"{name} cannot be read: {error.strerror or error}")
