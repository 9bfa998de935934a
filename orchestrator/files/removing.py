"""Removes files and folders and changes their permissions: never through a link, even against their modes,
and in trees of any depth. Must never know what the files are for."""

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
    """Removes a file, or a folder and everything below it, even if modes forbid it and however deep it is.
    Follows no link. No error if it does not exist."""
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
    """Moves each non-empty folder up to the top folder before emptying it, so neither the depth of the tree
    nor the length of its paths matters."""
    waiting = _clear(top, top)
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(FileNotFoundError):  # somebody else removes it too
            folder = os.open(name, os.O_DIRECTORY | PLAIN, dir_fd=top)
            try:
                waiting += _clear(folder, top)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _clear(folder: int, top: int) -> list[str]:
    """Empties a folder. Moves its non-empty folders to `top`, and returns their new names."""
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
    """Gives the owner all permissions for a folder again. Does nothing for anything but a folder of this
    user. `parent`: the descriptor of the folder that contains it."""
    with contextlib.suppress(OSError):  # a link, or gone
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)  # noqa: PTH101 - by descriptor: the name may be another's by now
        finally:
            os.close(fd)


def allow_file(path: Path) -> None:
    """Gives the owner the permission to read and write a file again. Does nothing for anything but a regular
    file of this user."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.chmod(f"/proc/self/fd/{fd}", 0o600)  # noqa: PTH101 - as in `allow`
        finally:
            os.close(fd)


def tighten(path: Path) -> bool:
    """Removes all permissions of others for a file or folder of this user. Returns whether there were any."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        if not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
            path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
            return True
    return False
