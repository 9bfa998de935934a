"""Small disks, and full ones."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MB = 1_000_000


@contextmanager
def mounted(folder: Path, size: int, inodes: int = 0) -> Iterator[Path]:
    """A disk of this size in memory, somewhere in the folder. `inodes`: how many files it takes; 0: any."""
    disk = Path(tempfile.mkdtemp(dir=folder))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes}", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path, left: int = 0) -> Path:
    """Takes all the room that there is but so much, also what became free since the last time."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as stream, suppress(OSError):
        while stream.write(b"x" * 4096) == 4096:
            pass
    if left:
        with filler.open("r+b") as stream:
            stream.truncate(filler.stat().st_size - left)
    return filler
