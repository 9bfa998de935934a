"""The environments that sessions on this machine made for jobs' requirements: the unused ones, and removal.

The agent makes and names them (`orchestrator.agent.environments`). Who uses one shares its lock. Decides only
when one counts as left over.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import Transient
from orchestrator.files import flock, open_file, remove_tree, rename
from orchestrator.platforms.platform import Leftover

KIND = "environment"
UNUSED_SECONDS = 30 * 86400.0
_DRAFT, _LOCK, _REMOVED = ".draft-", ".lock", ".removed-"


def unused(folder: Path, now: float) -> Iterator[Leftover]:
    """Those that no session has used for so long, and drafts whose maker died."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        with suppress(OSError):
            if path.is_symlink() or not path.is_dir():
                continue
            is_whole = not path.name.startswith((_DRAFT, _REMOVED))
            if is_whole and now - path.stat().st_mtime < UNUSED_SECONDS:
                continue
            with _alone(folder, path.name) as free:
                if free:
                    state = "unused" if is_whole else "broken off"
                    yield Leftover(KIND, path.name, "", "", state)


def remove(folder: Path, name: str, platform: str) -> None:
    """Removes one. Raises Transient if a session uses it."""
    path = folder / name
    if path.parent != folder or path.is_symlink() or not path.is_dir():
        return
    with _alone(folder, name) as free:
        if not free:
            raise Transient(f"{name} is in use", backend=platform, operation="remove")
        aside = folder / f"{_REMOVED}{_key(name)}"
        remove_tree(aside)
        rename(path, aside)  # at once: no session may find a part of it
        remove_tree(aside)


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[bool]:
    """Whether no session uses or makes it. The lock's file stays: another session may have opened it."""
    path = folder / f"{_key(name)}{_LOCK}"
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        yield flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
    finally:
        os.close(descriptor)


def _key(name: str) -> str:
    return name.removeprefix(_DRAFT).removeprefix(_REMOVED)
