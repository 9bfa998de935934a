"""Files and folders taken away, and rights taken from others or given back to their owner: never through a
link, whatever modes forbid it, and however deep a tree is. Must never know what the files are for."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from orchestrator.files.opening import PLAIN

_OTHERS = 0o077
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}


def remove_tree(path: Path) -> None:
    """Removes a folder and all below it, or a file, whatever modes forbid it and however deep it is; follows
    no link. No error where nothing is there."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        allow(path)
        top = os.open(path, os.O_DIRECTORY | PLAIN)
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
            folder = os.open(name, os.O_DIRECTORY | PLAIN, dir_fd=top)
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


def tighten(path: Path) -> bool:
    """Takes a file or folder of this user away from all others; whether anything had to be taken."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
            return True
    return False
