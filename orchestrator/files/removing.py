"""Removes files and folders and changes their permissions: never through a link, even against their modes,
and in trees of any depth. Must never know what the files are for."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from orchestrator.files.guarded import PLAIN, place

_OTHERS = 0o077
_NOT_EMPTY = {errno.ENOTEMPTY, errno.EEXIST}


def remove_tree(path: Path) -> None:
    """Removes a file, or a folder and everything below it, even if modes forbid it and however deep it is.
    Follows no link. No error if it does not exist."""
    with contextlib.suppress(FileNotFoundError), place(path) as (folder, name):
        remove_in(folder, name)


def remove_in(folder: int, name: str) -> None:
    """Like `remove_tree`, but raises FileNotFoundError."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    allow(name, folder)
    top = os.open(name, os.O_DIRECTORY | PLAIN, dir_fd=folder)
    try:
        _empty(top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=folder)


def remove_file(path: Path) -> None:
    """Removes a file, but never a folder. Raises FileNotFoundError if it is missing."""
    with place(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def remove_empty(folder: Path) -> None:
    """Removes a folder. Raises OSError if anything is in it, and FileNotFoundError if it is missing."""
    with place(folder) as (above, name):
        os.rmdir(name, dir_fd=above)


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
    _change_mode(folder, lambda found: 0o700 if stat.S_ISDIR(found.st_mode) else None, parent)


def allow_file(path: Path) -> None:
    """Gives the owner the permission to read and write a file again. Does nothing for anything but a regular
    file of this user."""
    _change_mode(path, lambda found: 0o600 if stat.S_ISREG(found.st_mode) else None)


def make_read_only(folder: Path) -> None:
    """Makes a folder read-only for its owner. Does nothing for anything but a folder of this user."""
    _change_mode(folder, lambda found: 0o500 if stat.S_ISDIR(found.st_mode) else None)


def tighten(path: Path) -> bool:
    """Removes all permissions of others for a file or folder of this user. Returns whether there were any."""
    return _change_mode(
        path, lambda found: stat.S_IMODE(found.st_mode) & ~_OTHERS if _is_open(found) else None
    )


def _is_open(found: os.stat_result) -> bool:
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and bool(found.st_mode & _OTHERS)


def _change_mode(
    path: Path | str, wanted: Callable[[os.stat_result], int | None], parent: int | None = None
) -> bool:
    """Gives what is there the mode that is wanted for it (None: leaves it alone), and returns whether it did.
    By descriptor, because the name may be another's by then."""
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        name = str(path)
        if parent is None:
            parent, name = stack.enter_context(place(Path(path)))
        there = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        stack.callback(os.close, there)
        mode = wanted(os.fstat(there))
        if mode is not None:
            os.chmod(f"/proc/self/fd/{there}", mode)  # noqa: PTH101 - see above
            return True
    return False
