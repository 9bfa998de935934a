"""Whether a file that another program wrote is whole, as far as its format or the machine can tell.

A file that is being written looks like any other. Knows a few formats and who has a file open; decides
nothing.
"""

from __future__ import annotations

import errno
import json
import os
import zipfile
from contextlib import suppress
from io import FileIO
from pathlib import Path

from orchestrator import files

_ZIP, _HEADER_BYTES_MAX = b"PK\x03\x04", 100 * 1024 * 1024  # safetensors' own limit
_ACCESS_MODE, _READ_ONLY = 0o3, 0o0


def is_whole(path: Path) -> bool | None:
    """None if the format does not tell. `torch.save` writes a zip archive, whose directory comes last;
    safetensors says at its start how long it is. Raises OSError. Never waits for the other end of a pipe."""
    try:
        with files.opened(path.parent, path.name) as file:
            if file is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return _is_whole(file, path.suffix)
    except files.Odd as odd:
        raise OSError(errno.EINVAL, str(odd)) from odd


def _is_whole(file: FileIO, suffix: str) -> bool | None:
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    if start.startswith(_ZIP):
        return _is_whole_zip(file)
    length = int.from_bytes(start, "little")
    if suffix != ".safetensors" or len(start) < 8:
        return False if size == 0 or suffix == ".safetensors" else None
    if length > min(size, _HEADER_BYTES_MAX):
        return False
    return _is_whole_header(file.read(length), size - 8 - length)


def _is_whole_zip(file: FileIO) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return bool(archive.infolist())
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - zipfile raises almost anything for bytes that are no archive
        return False


def _is_whole_header(header: bytes, size: int) -> bool:
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        return max(ends, default=0) == size
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return False


def is_being_written(paths: set[str]) -> bool:
    """Whether a process of this user has one of these files open for writing; False where nobody can tell."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(descriptor.readlink()) in paths and _writes(process / "fdinfo" / descriptor.name):
                        return True
    return False


def _writes(info: Path) -> bool:
    for line in info.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & _ACCESS_MODE != _READ_ONLY
    return False
