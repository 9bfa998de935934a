"""Which disk a path lies on, and how much room it has: for messages about a full one.

Standard library only. Asks the file system and changes nothing.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
FULL_BYTES = 1 << 20
_MEMORY = frozenset({"tmpfs", "ramfs"})


def disk_of(path: Path) -> Path | None:
    """The mount point of the disk that a path lies on, or would be made on; None if it cannot be told."""
    try:
        near = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
        near = near.resolve()
        return next(each for each in (near, *near.parents) if os.path.ismount(each))
    except (OSError, StopIteration, RuntimeError):
        return None


def free_bytes(path: Path) -> int | None:
    """What this user may still write on that disk, or where the path would be made; None if unknown, such
    as of /proc, which has no size."""
    disk = disk_of(path)
    try:
        found = os.statvfs(disk) if disk is not None else None
    except OSError:
        return None
    return None if found is None or not found.f_blocks else found.f_bavail * found.f_frsize


def is_full(path: Path) -> bool:
    """Whether that disk has as good as no room left. A writer that failed may have removed its last file."""
    free = free_bytes(path)
    return free is not None and free < FULL_BYTES


def in_memory(path: Path) -> bool:
    """Whether that disk is memory, which a reboot empties. False if the system does not tell."""
    disk = disk_of(path)
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    kinds = [words[2] for words in map(str.split, lines) if len(words) > 2 and words[1] == _escaped(disk)]
    return bool(kinds) and kinds[-1] in _MEMORY  # the last one hides the others


def _escaped(disk: Path | None) -> str:
    """As proc(5) writes it."""
    text = str(disk).replace("\\", "\\134")
    return text.replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")


def room_text(path: Path, needed: int | None = None) -> str:
    """`the disk /mnt/data (1.2 MB free, 40.0 MB needed)`; `the disk of /mnt/data/store` if it cannot be
    told."""
    disk, free = disk_of(path), free_bytes(path)
    if disk is None or free is None:
        return f"the disk of {path}"
    wants = "" if needed is None else f", {_size(needed)} needed"
    return f"the disk {disk} ({_size(free)} free{wants})"


def _size(size: float) -> str:
    """As the messages of the controller write it, whose module is not here inside a session."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
