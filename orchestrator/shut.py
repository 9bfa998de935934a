"""Which files no reader of ours may open, under whatever name: those on which a library holds locks.

Whoever closes any descriptor of a file gives up every lock that the process holds on it (fcntl(2)); another
process then takes the ledger's database for its own. A hard link in a session's folder is such another name.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_shut: list[Path] = []


def shut(path: Path) -> None:
    """Until `unshut`, `is_shut` knows this file, whatever lies under the name by then."""
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
