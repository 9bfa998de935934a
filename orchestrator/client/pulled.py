"""The folders that `pull` wrote on this machine, so that no later submit sends one along as source.

Decides what is remembered, and for how long: until the folder is gone, moved or replaced. It may be lost:
then such a folder is source like any other. Must never write into the folder: it is exactly what was pulled.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from orchestrator import files
from orchestrator.files import Odd, write_whole
from orchestrator.home import PULLED, Folders

REMEMBERED_MAX = 500
_NAMES_MAX = 8  # of a folder, to know it again
_BYTES_MAX = 1 << 20


def remember(folders: Folders, folder: Path) -> None:
    """Notes a folder that was just pulled. A full disk does not undo the pull."""
    with contextlib.suppress(OSError, ValueError):
        place = folder.resolve()
        if place.is_relative_to(folders.home.resolve()):
            return  # nobody's source
        found = _noted(folders)
        found.pop(str(place), None)
        with os.scandir(place) as inside:
            names = sorted(each.name for each in inside)[:_NAMES_MAX]
        found[str(place)] = [place.stat().st_ino, names]
        newest = dict([*found.items()][-REMEMBERED_MAX:])
        write_whole(folders.home / PULLED, json.dumps(newest, indent=0).encode(), sync=False)


def known(folders: Folders) -> dict[str, int]:
    """Path → inode of those that are still what they were."""
    return {path: note[0] for path, note in _noted(folders).items()}


def _noted(folders: Folders) -> dict[str, list[Any]]:
    """Path → inode, and the first names in the folder: a new folder may get the inode of one just removed."""
    try:
        data = files.read(folders.home, PULLED, _BYTES_MAX)
        given = json.loads(data) if data else {}
    except (OSError, ValueError, RecursionError, Odd):
        return {}
    if not isinstance(given, dict):
        return {}
    return {path: note for path, note in given.items() if _is(path, note)}


def _is(path: str, note: object) -> bool:
    match note:
        case [int(inode), [*names]]:
            with contextlib.suppress(OSError, ValueError):
                folder = Path(path)
                is_same = folder.lstat().st_ino == inode
                return is_same and any(os.path.lexists(folder / str(each)) for each in names)
    return False
