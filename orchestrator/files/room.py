"""Which disk a path lies on, how much room it has, and whether what we would write there fits.

The one place where that is judged: before a byte is hashed or copied, and so that a reserve stays free for
the training on that disk (`orchestrator.core.bounds` has the figures). Standard library only. Asks the file
system and changes nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.files.reading import Odd, is_sparse, on_disk, opened

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
FULL_BYTES = 1 << 20
FULL_FILES = 32
_NAMED_SHARE = 10  # a folder with less than 1 / 10 of the files of a full disk is not worth a word
_MEMORY = frozenset({"tmpfs", "ramfs"})


class Lack(OSError):
    """What was to be written does not fit. Not a byte of it was written."""

    def __init__(self, text: str, folder: Path) -> None:
        super().__init__(errno.ENOSPC, text, str(folder))


def check_room(folder: Path, size: int, files: int = 1) -> None:
    """Raises Lack if so many more bytes in so many new files do not fit on the folder's disk beside the
    reserve. Says nothing about a disk that tells no size, nor about the quota of a user: only a write finds
    that out."""
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    kept = _reserve(found.f_blocks * found.f_frsize, size, bounds.RESERVE_BYTES_MAX)
    if found.f_blocks and size + kept > free:
        stays = f", of which {_size(kept)} stay free" if kept else ""
        disk = disk_of(folder) or folder
        raise Lack(f"{_size(size)} do not fit on the disk {disk} ({_size(free)} free{stays})", folder)
    if found.f_files and files + _reserve(found.f_files, files, bounds.RESERVE_FILES_MAX) > found.f_favail:
        more = "1 more file does" if files == 1 else f"{files:,} more files do"
        disk = disk_of(folder) or folder
        raise Lack(f"{more} not fit on the disk {disk} ({found.f_favail:,} inodes free)", folder)


def _reserve(total: int, wanted: int, most: int) -> int:
    return min(total // bounds.RESERVE_SHARE, most, wanted * bounds.RESERVE_TIMES)


def holes(root: Path, found: Mapping[str, os.stat_result]) -> str:
    """Why these files below `root` are not worth reading: together they are almost only holes. Empty if they
    are not. The blocks of a file may be counted late, or never, so the file system must name a hole, too."""
    size, used = sum(each.st_size for each in found.values()), sum(map(on_disk, found.values()))
    if not is_sparse(size, used) or not any(_has_hole(root, name) for name in found):
        return ""
    return f"it is {_size(size)}, of which only {_size(used)} are on the disk: it is almost all holes"


def _has_hole(root: Path, name: str) -> bool:
    try:
        with opened(root, name) as file:
            if file is None:
                return False
            return os.lseek(file.fileno(), 0, os.SEEK_HOLE) < os.fstat(file.fileno()).st_size
    except (OSError, Odd):
        return False


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
    return (free is not None and free < FULL_BYTES) or lacks_inodes(path)


def lacks_inodes(path: Path) -> bool:
    """Whether that disk is full because it has as good as no inodes left, though it has bytes."""
    total, free = _inodes(path)
    left = free_bytes(path)
    return total > 0 and free < FULL_FILES and (left is None or left >= FULL_BYTES)


def _inodes(path: Path) -> tuple[int, int]:
    """How many inodes that disk has, and how many of them are free; 0 if it has no limit, or is not known."""
    disk = disk_of(path)
    try:
        found = os.statvfs(disk) if disk is not None else None
    except OSError:
        return 0, 0
    return (0, 0) if found is None else (found.f_files, found.f_favail)


def count_files(folder: Path) -> int:
    """How many inodes a folder takes with all that is in it. Links are not followed, and what cannot be read
    counts as one."""
    total, waiting = 1, [] if folder.is_symlink() else [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                total += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return total


def takes_most(folder: Path) -> bool:
    """Whether most of the inodes in use on its disk are this folder's."""
    total, free = _inodes(folder)
    return count_files(folder) * 2 > total - free


def crowd(folder: Path) -> Path:
    """The folder in this one that takes most of the inodes in use on its disk; this one if none does."""
    with suppress(OSError):
        return next((each for each in folder.iterdir() if takes_most(each)), folder)
    return folder


def shortage(path: Path, *folders: Path) -> tuple[str, str]:
    """What that disk lacks, and what to do: `the disk /mnt/data (12 kB free) is full` and `free some space`,
    or `the disk /mnt/data has no inodes left …` and `remove some files`. Of inodes, it says which of these
    `folders` takes the most."""
    if not lacks_inodes(path):
        return f"{room_text(path)} is full", "free some space"
    total, free = _inodes(path)
    count, most = max(((count_files(each), str(each)) for each in folders), default=(0, ""))
    whose = f": {count:,} of them are in {most}" if count * _NAMED_SHARE > total - free else ""
    return (
        f"the disk {disk_of(path)} has no inodes left (it takes {total:,} files){whose}",
        "remove some files",
    )


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
