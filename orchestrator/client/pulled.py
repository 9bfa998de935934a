"""The folders that `pull` wrote on this machine, so that no later submit sends one along as source.

Decides what is remembered, and for how long: until the folder is gone, moved or replaced. It may be lost:
then such a folder is source like any other. Must never write into the folder: it is exactly what was pulled.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from orchestrator import files
from orchestrator.files import Odd, write_whole
from orchestrator.home import PULLED, Folders

REMEMBERED_MAX = 500
_BYTES_MAX = 1 << 20


def remember(folders: Folders, folder: Path) -> None:
    """Notes a folder that was just pulled. A full disk does not undo the pull."""
    with contextlib.suppress(OSError, ValueError):
        place = folder.resolve()
        if place.is_relative_to(folders.home.resolve()):
            return  # nobody's source
        found = known(folders)
        found.pop(str(place), None)
        found[str(place)] = place.stat().st_ino
        newest = dict([*found.items()][-REMEMBERED_MAX:])
        write_whole(folders.home / PULLED, json.dumps(newest, indent=0).encode(), sync=False)


def known(folders: Folders) -> dict[str, int]:
    """Path → inode of those that are still what they were."""
    try:
        data = files.read(folders.home, PULLED, _BYTES_MAX)
        given = json.loads(data) if data else {}
    except (OSError, ValueError, RecursionError, Odd):
        return {}
    if not isinstance(given, dict):
        return {}
    return {path: inode for path, inode in given.items() if isinstance(inode, int) and _is(path, inode)}


def _is(path: str, inode: int) -> bool:
    try:
        return os.lstat(path).st_ino == inode
    except (OSError, ValueError):
        return False
