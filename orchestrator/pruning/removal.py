"""Removes things from the home, safely while a controller runs and others submit.

Each thing is renamed first and deleted later. In between the ledger is read again, and a thing that a run
needs by then gets its name back. So a prune may be killed at any point: the next one continues from the
names. Uses folder descriptors and follows no link. Decides nothing: `again` judges.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import Transient
from orchestrator.files import open_folder
from orchestrator.home import RUNS
from orchestrator.pruning.listing import SET_ASIDE
from orchestrator.pruning.rules import BY_CONTENT, Judgement, Thing

Again = Callable[[], Sequence[Judgement]]
_NO_FOLDER = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Outcome:
    """`removed` in the order of removal; `kept` and `troubles` by path, each with the reason."""

    removed: list[Thing] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Allows one prune of a home at a time. It locks the home itself, because a full disk has no room for a
    lock file. Raises Transient if another prune is running."""
    descriptor = open_folder(home, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Transient(f"another prune is running in {home}: wait until it has ended") from None
        except OSError:  # this file system has no locks, but a rename still succeeds for only one of two
            pass
        yield
    finally:
        os.close(descriptor)


def carry_out(
    home: Path,
    doomed: Sequence[Thing],
    again: Again,
    *,
    stopped: Callable[[], bool] = lambda: False,
    told: Callable[[Thing], None] = lambda _: None,
) -> Outcome:
    """Removes these things, and what an earlier call left behind.

    `again` lists and judges once more, including things that are set aside. `told` is called with each thing
    that was removed. After `stopped` returns True, the remaining things get their names back.
    """
    outcome = Outcome()
    with alone(home):
        for thing in doomed:
            if stopped():
                break
            with _reported(outcome, thing):
                if not thing.set_aside and not _set_aside(home, thing):
                    outcome.kept[thing.path] = "it has changed in the meantime"
        for found in again():
            if not found.thing.set_aside:
                continue
            with _reported(outcome, found.thing):
                if found.goes and not stopped():
                    _destroy(home, found.thing)
                    outcome.removed.append(found.thing)
                    told(found.thing)
                else:
                    _restore(home, found.thing)
                    outcome.kept[found.thing.path] = "interrupted" if found.goes else found.why
    return outcome


@contextmanager
def _reported(outcome: Outcome, thing: Thing) -> Iterator[None]:
    """Records a failure, so that one thing does not keep the others from being removed."""
    try:
        yield
    except OSError as error:
        outcome.troubles[thing.path] = error.strerror or str(error)
    except RecursionError:
        outcome.troubles[thing.path] = "its folders are nested too deeply"


def _set_aside(home: Path, thing: Thing) -> bool:
    """Renames it. Returns False if something else has its name by now, or nothing."""
    name = thing.path.rpartition("/")[2]
    with _parent(home, thing) as folder:
        if folder is None or not _is(thing, name, folder):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, name + SET_ASIDE, src_dir_fd=folder, dst_dir_fd=folder)
            if _is(thing, name + SET_ASIDE, folder):
                return True
            # It was replaced in between.
            os.rename(name + SET_ASIDE, name, src_dir_fd=folder, dst_dir_fd=folder)
    return False


def _restore(home: Path, thing: Thing) -> None:
    """Gives it its name back. If the same content was written again in the meantime, this copy is deleted."""
    name = thing.path.rpartition("/")[2]
    with _parent(home, thing) as folder:
        if folder is None:
            return
        if not _exists(name, folder):
            os.rename(name + SET_ASIDE, name, src_dir_fd=folder, dst_dir_fd=folder)
        elif thing.kind in BY_CONTENT:
            _delete(name + SET_ASIDE, folder)
        else:
            raise FileExistsError(errno.EEXIST, f"both {name} and {name}{SET_ASIDE} exist; remove one")


def _destroy(home: Path, thing: Thing) -> None:
    """Deletes a thing that was set aside, and its run's folder once that is empty."""
    *above, name = thing.path.split("/")
    with _parent(home, thing) as folder:
        if folder is None:
            return
        if above == [RUNS]:  # it was empty when it was listed
            os.rmdir(name + SET_ASIDE, dir_fd=folder)
            return
        _delete(name + SET_ASIDE, folder)
    if above[:1] == [RUNS]:
        with _opened(home, above[:1]) as runs, contextlib.suppress(OSError):
            if runs is not None:
                os.rmdir(above[1], dir_fd=runs)


def _delete(name: str, folder: int) -> None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    with contextlib.suppress(OSError):  # nothing can be deleted from a read-only folder
        for _, _, _, inner in os.fwalk(name, dir_fd=folder):
            os.fchmod(inner, 0o700)
    shutil.rmtree(name, dir_fd=folder)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is(thing: Thing, name: str, folder: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == thing.identity


@contextmanager
def _parent(home: Path, thing: Thing) -> Iterator[int | None]:
    with _opened(home, thing.path.split("/")[:-1]) as folder:
        yield folder


@contextmanager
def _opened(home: Path, pieces: Sequence[str]) -> Iterator[int | None]:
    """A descriptor of a folder below the home; None if it does not exist or lies behind a link."""
    descriptor = open_folder(home, os.O_RDONLY)
    try:
        for piece in pieces:
            try:
                inner = os.open(piece, _FOLDER, dir_fd=descriptor)
            except OSError as error:
                if error.errno not in _NO_FOLDER:
                    raise
                inner = -1
            os.close(descriptor)
            descriptor = inner
            if descriptor < 0:
                break
        yield descriptor if descriptor >= 0 else None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
