"""Files that our readers must never open, under any name, because a library holds locks on them.

When a process closes any descriptor of a file, it loses all its locks on that file (fcntl(2)). Another
process could then take over the ledger's database. A hard link in a session's folder could be such a name.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_shut: list[Path] = []


def shut(path: Path) -> None:
    """Until `unshut`, `is_shut` is true for the file at this path, even if another file replaces it."""
    _shut.append(path)


def unshut(path: Path) -> None:
    with contextlib.suppress(ValueError):
        _shut.remove(path)


def is_shut(found: os.stat_result) -> bool:
    for path in tuple(_shut):
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), found):
                return True
    return False
