"""Packs a job's input into one archive for a store, and unpacks it again, verified.

Decides what an archive may contain: plain files below `input`, or one file of that name. Must never know
stores or jobs. The archive itself is not trusted: what came out counts, by the input's own sha256.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from orchestrator.core import bounds
from orchestrator.files import frozen_mode, make_folder, open_file
from orchestrator.freeze import inputs

ROOT = "input"
_DEPTH_MAX = 200  # folders in folders; pathlib makes them by recursion
_FOREIGN = "its archive contains what no input has: "


def size(path: Path) -> int:
    """The bytes of an input: a file, or everything in a folder."""
    return sum(each.stat().st_size for each in _files(path))


def pack(path: Path, archive: Path) -> None:
    """Writes the input at `path` to a new archive. The same input gives the same bytes everywhere."""
    with tarfile.open(archive, "x:", format=tarfile.PAX_FORMAT) as tar:
        for each in _files(path):
            inside = PurePosixPath(ROOT, *each.relative_to(path).parts)
            entry = tarfile.TarInfo(str(inside))
            entry.size = each.stat().st_size
            entry.mode = frozen_mode(each)
            with each.open("rb") as stream:
                tar.addfile(entry, stream)


def unpack(archive: Path, target: Path, sha256: str) -> None:
    """Writes an input to `target`, which must not exist. Raises ValueError, in words, if the archive is not
    one of `pack`'s, holds more than `bounds.INPUTS_BYTES_MAX`, or another input. Then remove `target`."""
    try:
        with tarfile.open(archive, "r:") as tar:
            left = bounds.INPUTS_BYTES_MAX
            for count, entry in enumerate(tar):
                left -= entry.size
                if left < 0 or count >= bounds.LISTED_MAX:
                    raise ValueError("its archive contains more than an archive can")
                _write(tar, entry, target)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"its archive cannot be read: {error}") from error
    if not target.exists() or inputs.digest(target) != sha256:
        raise ValueError("its archive contains something else")


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    parts = entry.name.split("/")
    plain = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and entry.sparse is None
    if (
        not plain
        or parts[0] != ROOT
        or len(parts) > _DEPTH_MAX
        or any(part in ("", ".", "..") or "\0" in part for part in parts)
    ):
        raise ValueError(f"{_FOREIGN}{entry.name[:100]!a}")
    path = target.joinpath(*parts[1:])
    make_folder(path.parent)
    stream = tar.extractfile(entry)
    assert stream is not None, "it is a plain file"
    writing = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with stream, os.fdopen(writing, "wb") as written:
        shutil.copyfileobj(stream, written)
        os.fchmod(writing, 0o755 if entry.mode & 0o100 else 0o644)


def _files(path: Path) -> Iterator[Path]:
    """The input's files in a fixed order."""
    if not path.is_dir():
        yield path
        return
    found = (each for each in path.rglob("*") if each.is_file())
    yield from sorted(found, key=lambda each: each.relative_to(path).as_posix())
