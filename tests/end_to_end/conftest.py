"""A user for each test, and the end of every process that the user started."""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.end_to_end.user import Role, User, move_home, wait_until


@pytest.fixture
def new_user(tmp_path: Path) -> Iterator[Callable[..., User]]:
    """Creates a user. The platform has these options in addition to the quick ones."""
    made: list[User] = []

    def make(**options: object) -> User:
        made.append(User(tmp_path / f"user{len(made)}", **options))
        return made[-1]

    yield make
    for user in made:
        user.close()


@pytest.fixture
def user(new_user: Callable[..., User]) -> User:
    return new_user()


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another disk than the rest of the test: a small file system in memory."""
    with _mounted(tmp_path / "other-disk", "256m") as disk:
        if disk is not None:
            yield disk
        else:
            with TemporaryDirectory(dir="/dev/shm") as folder:
                yield Path(folder)


@contextlib.contextmanager
def _mounted(folder: Path, size: str) -> Iterator[Path | None]:
    """A file system of this size, mounted at the folder; None if this user cannot mount one."""
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        wait_until(partial(_unmounted, folder), f"{folder} to be let go of")


def _unmounted(folder: Path) -> bool:
    """The kernel releases a process's files shortly after the process ends."""
    return subprocess.run(["umount", str(folder)], check=False, capture_output=True).returncode == 0


SmallDisk = Callable[[User], Callable[[], Callable[[], None]]]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Puts a user's home on a disk of its own. The result fills that disk, and returns how to free it.

    If this user cannot mount a disk, a limit on the training's file sizes stands in for a full one.
    """
    with _mounted(tmp_path / "small-disk", "48m") as disk:

        def settle(user: User) -> Callable[[], Callable[[], None]]:
            if disk is None:
                return partial(_limit_files, user)
            move_home(user, disk / "home")
            return partial(_fill, disk / "filler")

        yield settle


def _fill(filler: Path) -> Callable[[], None]:
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler.unlink


def _limit_files(user: User) -> Callable[[], None]:
    def limit(size: int) -> None:
        for process in user.by_role()[Role.LEADER]:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    limit(4096)
    return partial(limit, resource.RLIM_INFINITY)
