"""How things of the home are removed while a controller runs and others submit.

Each is renamed first and deleted later; between the two the ledger is read once more, and what a run needs
by then gets its name back. So a prune may be killed at any line: the next one goes on from the names.
Works by descriptors of folders, none of them reached through a link. Decides nothing: `again` judges.
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
    """One prune of a home at a time, by a lock on the home itself: a full disk takes no further file. Raises
    Transient where another is under way."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Transient(f"another prune is under way in {home}: wait for its end") from None
        except OSError:  # no locks on this file system; a rename still succeeds for one of two only
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
    """Removes these things, and what an earlier call left behind. `again` lists and judges anew, with what is
    set aside; `told` hears of each that is gone. Once `stopped` says so, what is left gets its name back."""
    outcome = Outcome()
    with alone(home):
        for thing in doomed:
            if stopped():
                break
            with _reported(outcome, thing):
                if not thing.set_aside and not _set_aside(home, thing):
                    outcome.kept[thing.path] = "it has changed meanwhile"
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
    """One thing that resists is no reason to leave the others."""
    try:
        yield
    except OSError as error:
        outcome.troubles[thing.path] = error.strerror or str(error)
    except RecursionError:
        outcome.troubles[thing.path] = "its folders are nested too deeply"


def _set_aside(home: Path, thing: Thing) -> bool:
    """Takes its name away. False where there is something else by now, or nothing."""
    name = thing.path.rpartition("/")[2]
    with _parent(home, thing) as folder:
        if folder is None or not _is(thing, name, folder):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.rename(name, name + SET_ASIDE, src_dir_fd=folder, dst_dir_fd=folder)
            if _is(thing, name + SET_ASIDE, folder):
                return True
            os.rename(name + SET_ASIDE, name, src_dir_fd=folder, dst_dir_fd=folder)  # made anew in between
    return False


def _restore(home: Path, thing: Thing) -> None:
    """Gives it its name back. Where the same content was made anew meanwhile, ours goes."""
    name = thing.path.rpartition("/")[2]
    with _parent(home, thing) as folder:
        if folder is None:
            return
        if not _exists(name, folder):
            os.rename(name + SET_ASIDE, name, src_dir_fd=folder, dst_dir_fd=folder)
        elif thing.kind in BY_CONTENT:
            _delete(name + SET_ASIDE, folder)
        else:
            raise FileExistsError(errno.EEXIST, f"both {name} and {name}{SET_ASIDE} are there; keep one")


def _destroy(home: Path, thing: Thing) -> None:
    """Deletes what was set aside, and the folder of its run once that is empty."""
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
    with contextlib.suppress(OSError):  # read-only folders let nothing be taken out
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
    """A descriptor of a folder below the home; None where there is none, or only through a link."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
