"""Copies files into and out of a container as tar streams. Only one chunk is in memory at a time.

Does not trust what comes out: it takes only regular files below the requested folder. Knows no session.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator import files
from orchestrator.core import bounds
from orchestrator.errors import Transient
from orchestrator.files import make_folder, written

_CHUNK_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Entry:
    """One member: a folder (None), bytes, or a local file that must not change during the copy.

    `mode` is the mode of a file. A folder gets it too, plus the right to enter for those who may read.
    """

    name: str
    content: bytes | Path | None
    mode: int = 0o600


def pack(entries: Iterable[Entry], uid: int, gid: int) -> Iterator[bytes]:
    """A tar stream whose members all belong to `uid` and `gid`.

    Raises Transient if a local file cannot be read.
    """
    for entry in entries:
        info = tarfile.TarInfo(entry.name)
        info.uid, info.gid, info.mode = uid, gid, entry.mode
        if entry.content is None:
            info.type, info.mode = tarfile.DIRTYPE, entry.mode | (entry.mode & 0o400) >> 2
            yield info.tobuf(tarfile.PAX_FORMAT)
            continue
        try:
            yield from _file(info, entry.content)
        except OSError as error:  # HTTP clients mistake any OSError for a connection error
            raise Transient(f"{error.strerror} ({entry.content!s:.200})") from error
    yield b"\0" * (2 * _BLOCK)


def _file(info: tarfile.TarInfo, content: bytes | Path) -> Iterator[bytes]:
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        info.size = len(content) if isinstance(content, bytes) else os.fstat(file.fileno()).st_size
        yield info.tobuf(tarfile.PAX_FORMAT)
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
    yield b"\0" * (-info.size % _BLOCK)


def tree(folder: Path, name: str, *, read_only: bool = False) -> Iterator[Entry]:
    """A local folder and everything below it, as `name`. With `read_only`, its owner cannot write to it."""
    mode = 0o400 if read_only else 0o600
    yield Entry(name, None, mode)
    for path in sorted(folder.rglob("*")):
        inside = f"{name}/{path.relative_to(folder).as_posix()}"
        yield Entry(inside, None if path.is_dir() else path, mode)


def only_file(stream: Iterable[bytes], size_max: int) -> bytes:
    """The content of the one file in a stream. Raises ValueError if there is no file or it is too large."""
    with _opened(stream) as archive:
        member = archive.next()
        content = archive.extractfile(member) if member is not None and member.isreg() else None
        if member is None or content is None:
            raise ValueError("is not a regular file")
        if member.size > size_max:
            raise ValueError(f"is larger than {bounds.size_text(size_max)}")
        return content.read()


def unpack_file(stream: Iterable[bytes], target: Path, size_max: int) -> bool:
    """Writes the one file in a stream to the new file `target`. False if it is missing or too large."""
    with _opened(stream) as archive:
        member = archive.next()
        if member is None or not member.isreg() or member.size > size_max:
            return False
        _write(archive, member, target)
    return True


def unpack(
    stream: Iterable[bytes],
    into: Path,
    size_max: int,
    *,
    total_max: int | None = None,
    wanted: Callable[[str], bool] = lambda _: True,
) -> bool:
    """Writes the `wanted` files of a folder's stream below `into`, without the folder's own name.

    Stops and returns False before the first file larger than `size_max`, and before more than `total_max`
    bytes or too many names have been read. To skip a file we must read it, and a sparse file of terabytes
    costs its author nothing.
    """
    passed = 0
    with _opened(stream) as archive:
        for number, member in enumerate(archive):
            passed += member.size
            beyond = total_max is not None and passed > total_max
            if member.size > size_max or beyond or number > bounds.LISTED_MAX:
                return False
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
            parts = PurePosixPath(member.name).parts[1:]
            if not member.isreg() or not parts or ".." in parts or not wanted("/".join(parts)):
                continue
            target = into.joinpath(*parts)
            make_folder(target.parent)
            _write(archive, member, target)
    return True


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    content = archive.extractfile(member)
    assert content is not None
    with written(target) as file:
        files.copy(content, file, member.size)


def _opened(stream: Iterable[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BufferedReader(_Reader(stream), _CHUNK_BYTES), mode="r|")


class _Reader(io.RawIOBase):
    """An iterable of chunks as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while not self._rest:
            try:
                self._rest = next(self._chunks)
            except StopIteration:
                return 0
        taken = self._rest[: len(view)]
        view[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)
