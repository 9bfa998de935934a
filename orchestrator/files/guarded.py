"""Folders that a session can reach: no part of a path to them or below them is followed if it is a link.

A session may put a link in the place of any folder of ours, at any moment. So whatever of ours opens, makes,
renames or removes something goes through here. The links in the path of a guarded folder are followed once,
when it is guarded: a home behind a link is normal. From then on every part of a path is opened in the folder
before it. Must never know what the folders are for.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # add this to the flags for reading or writing
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC  # needs no permission to list the folder
_guarded: set[str] = set()


def guard(folder: Path, *, resolved: bool = False) -> Path:
    """From now on, this process follows no link on the way to this folder or below it. Returns its path, in
    which the links were followed for the last time, unless somebody else has `resolved` it already. The
    folder may be missing."""
    real = os.path.abspath(folder) if resolved else os.path.realpath(folder)  # noqa: PTH100 - as in _split
    _guarded.add(real)
    return Path(real)


@contextmanager
def folder_at(path: Path, flags: int = _ON_THE_WAY) -> Iterator[int]:
    """The descriptor of a folder. Raises OSError with ELOOP if it is a link, or lies behind one."""
    descriptor = open_folder(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def place(path: Path) -> Iterator[tuple[int, str]]:
    """The descriptor of the folder that a path lies in, and its name there."""
    with folder_at(path.parent) as folder:
        yield folder, path.name or "."


def open_folder(path: Path, flags: int = _ON_THE_WAY, *, make: int | None = None) -> int:
    """Opens a folder. `make`: the mode with which a missing one is made, with the folders above it."""
    way, names = _split(path)
    if make is not None and not names:
        Path(way).mkdir(mode=make, parents=True, exist_ok=True)
    folder, last = os.open(way, _ON_THE_WAY), len(names) - 1
    try:
        for at, name in enumerate(names):
            way = os.path.join(way, name)  # noqa: PTH118 - several times as fast
            below = _enter(name, folder, make if make is None or at == last else 0o777, way)
            os.close(folder)
            folder = below
        return os.open(".", flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        error.filename = way
        raise
    finally:
        os.close(folder)


def open_file(path: Path, flags: int, mode: int = 0o600) -> int:
    """Opens a regular file, like `os.open` with these flags and PLAIN. Raises OSError with ELOOP if something
    else has its name, such as a FIFO. Empties nothing: what has the name is known only when it is open."""
    with place(path) as (folder, name), _naming(path):
        descriptor = os.open(name, flags | PLAIN, mode, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.ELOOP, "not a plain file", str(path))
    return descriptor


def open_plain(path: Path) -> FileIO:
    """A regular file, open for reading. Raises OSError like `open_file`."""
    return FileIO(open_file(path, os.O_RDONLY))


def read_plain(path: Path) -> bytes:
    """The whole content of a regular file of ours. Raises OSError like `open_file`."""
    with open_plain(path) as file:
        return file.readall()


def look(path: Path) -> os.stat_result | None:
    """What is there, which may be a link; None if nothing is. Raises OSError if it lies behind a link."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), place(path) as (folder, name):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return None


def make_folder(path: Path, mode: int = 0o777, *, parents: bool = True) -> None:
    """Makes a folder; `parents`: and those above it. No error if it is there already. Raises OSError with
    ELOOP if a link is there instead of one of them, NotADirectoryError for anything else, and
    FileNotFoundError if one above it is missing and not to be made."""
    if not parents:
        os.close(open_folder(path.parent))
    os.close(open_folder(path, make=mode))


def rename(source: Path, target: Path) -> None:
    """Renames a file or folder, and replaces what `os.rename` replaces."""
    with place(source) as (from_folder, from_name), place(target) as (to_folder, to_name), _naming(source):
        os.rename(from_name, to_name, src_dir_fd=from_folder, dst_dir_fd=to_folder)


def _split(path: Path) -> tuple[str, list[str]]:
    """Where the way to a folder begins, and the parts to open one by one from there."""
    text = os.path.abspath(path)  # noqa: PTH100 - twice as fast
    at = text.find("/", 1)
    while at > 0:
        if text[:at] in _guarded:
            return "/", text[1:].split("/")
        at = text.find("/", at + 1)
    return ("/", text[1:].split("/")) if text in _guarded else (text, [])


def _enter(name: str, folder: int, make: int | None, way: str) -> int:
    """Opens the folder `name`, which may be missing if its mode is given."""
    for _ in range(2):
        try:
            return os.open(name, _ON_THE_WAY | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            if make is None:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, make, dir_fd=folder)
        except NotADirectoryError:
            raise _not_entered(name, folder, way) from None
    return os.open(name, _ON_THE_WAY | os.O_NOFOLLOW, dir_fd=folder)


def _not_entered(name: str, folder: int, way: str) -> OSError:
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return OSError(
                errno.ELOOP, "a link is in the place of this folder and is not followed: remove the link", way
            )
    return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), way)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors name the whole path, not only what was opened in its folder."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
