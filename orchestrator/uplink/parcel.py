"""What a session fetches from its run's home store before it trains: written by the engine, laid out by the
uplink.

A parcel is the session's files one after the other, cut into parts: so a thousand small files are one object,
and a large one continues where it was cut off. The parts lie in the store under their sha256. The `Parcel`
itself goes to the session another way, so nobody who can write to the store can change what is laid out. Must
never know what the files are for.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import BinaryIO

from orchestrator.core import bounds, checkpoint
from orchestrator.errors import CorruptCheckpoint
from orchestrator.files import (
    append,
    copy,
    frozen_mode,
    make_folder,
    make_read_only,
    open_file,
    open_plain,
    read_small,
    remove_tree,
    rename,
    write_whole,
    written,
)
from orchestrator.session.staging import Content
from orchestrator.stores.opening import only_for
from orchestrator.stores.store import Store, snapshot
from orchestrator.uplink.layout import SHA256, SessionKeys

_CHUNK_BYTES = 1 << 20
_READINGS_MAX = 3  # of a part that fails its verification: the transport may have damaged it
_CONTENT, _DONE, _WHOLE, _PART = "content", "done", "whole", "part"  # in the scratch folder


@dataclass(frozen=True)
class Entry:
    """A file by its path in the session's folder; with a slash at its end, an empty folder."""

    path: str
    size: int = 0
    executable: bool = False


@dataclass(frozen=True)
class Part:
    """A piece of all files in a row."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Parcel:
    """Which files are laid out, and what they are made of. `key`: the secret key that decrypts the parts;
    empty if they are plain."""

    entries: tuple[Entry, ...]
    parts: tuple[Part, ...] = ()
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError for one that could write outside a session's folder."""
        unsafe = [each.path for each in self.entries if not checkpoint.safe_path(each.path.removesuffix("/"))]
        if unsafe:
            raise ValueError(f"the path {unsafe[0][:200]!r} points outside the session's folder")
        if not all(SHA256.fullmatch(each.sha256) and each.size > 0 for each in self.parts):
            raise ValueError("a part of it is invalid")
        if sum(each.size for each in self.entries) != sum(each.size for each in self.parts):
            raise ValueError("its parts do not add up to its files")


# --- Writing ----------------------------------------------------------------------------------------------


def write(
    store: Store,
    keys: SessionKeys,
    contents: Iterable[Content],
    key: str = "",
    put: Callable[[int], None] = lambda _: None,
    part_bytes: int = bounds.PARCEL_PART_BYTES,
) -> Parcel:
    """Puts the contents into the store, encrypted for `key` if there is one. `put` hears the size of each
    part that is there. Idempotent: parts that are there are not sent again."""
    with snapshot(store), _Writer(only_for(store, key), keys, put, part_bytes) as writer:
        entries = tuple(entry for content in contents for entry in _written(content, writer.write))
        writer.finish()
    return Parcel(entries, tuple(writer.parts), key)


def _written(content: Content, write: Callable[[bytes], None]) -> Iterator[Entry]:
    if isinstance(content.content, bytes):
        write(content.content)
        yield Entry(content.name, len(content.content))
        return
    for path in _below(content.content):
        inside = path.relative_to(content.content).as_posix()
        name = content.name if inside == "." else f"{content.name}/{inside}"
        yield Entry(f"{name}/") if path.is_dir() else _file(name, path, write)


def _file(name: str, path: Path, write: Callable[[bytes], None]) -> Entry:
    size = 0
    with open_plain(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            write(chunk)
            size += len(chunk)
    return Entry(name, size, executable=bool(frozen_mode(path) & 0o100))


def _below(path: Path) -> Iterator[Path]:
    """A file, or every file and every empty folder below a folder, in a fixed order."""
    if not path.is_dir():
        yield path
        return
    names = sorted(os.listdir(path))  # noqa: PTH208 - in the order of their names
    for name in names:
        yield from _below(path / name)
    if not names:
        yield path


class _Writer:
    """Cuts what it is given into parts, and puts each that is full. Needs disk space for one."""

    def __init__(self, store: Store, keys: SessionKeys, put: Callable[[int], None], part_bytes: int) -> None:
        self._store = store
        self._keys = keys
        self._put = put
        self._part_bytes = part_bytes
        self._there = {stat.key: stat.size for stat in store.list(keys.parcel)}
        self._folder = TemporaryDirectory(prefix="orchestrator-")
        self._path = Path(self._folder.name) / _PART
        self._begin()
        self.parts: list[Part] = []

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._folder.cleanup()

    def _begin(self) -> None:
        self._file: BinaryIO = os.fdopen(open_file(self._path, os.O_WRONLY | os.O_CREAT), "wb")
        self._file.truncate(0)
        self._size, self._digest = 0, hashlib.sha256()

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            piece = left[: self._part_bytes - self._size]
            self._file.write(piece)
            self._digest.update(piece)
            self._size += len(piece)
            left = left[len(piece) :]
            if self._size == self._part_bytes:
                self.finish()

    def finish(self) -> None:
        """Puts what is left."""
        self._file.close()
        if self._size:
            part = Part(self._digest.hexdigest(), self._size)
            key = self._keys.parcel_part(part.sha256)
            there = self._there.get(key)
            if there not in (None, part.size):
                self._store.delete(key)  # the key names its bytes: another size is damage
            if there != part.size:
                self._store.put(key, self._path, part.sha256)
                self._there[key] = part.size
            self.parts.append(part)
            self._put(part.size)
        self._begin()


# --- Laying out -------------------------------------------------------------------------------------------


def fetch(
    store: Store,
    keys: SessionKeys,
    parcel: Parcel,
    scratch: Path,
    came: Callable[[int], None] = lambda _: None,
) -> Path:
    """Lays out the files below a folder in `scratch`, and returns it. Every part is verified. Goes on where
    an earlier call stopped, also one of a process that was killed. `came` hears the size of each part.

    Raises CorruptCheckpoint (with the key as its name) for a part that is damaged, NotFound for a missing
    one, and plain OSError for the disk.
    """
    content = scratch / _CONTENT
    make_folder(content, 0o700)
    if (scratch / _WHOLE).exists():
        return content
    source, done = only_for(store, parcel.key), _number(scratch / _DONE)
    ends = list(accumulate(entry.size for entry in parcel.entries))
    begins = accumulate((part.size for part in parcel.parts), initial=0)
    for number, (part, begin) in enumerate(zip(parcel.parts, begins, strict=False)):
        if number < done:
            continue
        _get(source, keys.parcel_part(part.sha256), part, scratch / _PART)
        _spread(scratch / _PART, begin, part.size, parcel.entries, ends, content)
        write_whole(scratch / _DONE, b"%d" % (number + 1), sync=False)
        came(part.size)
    _finish(parcel.entries, content)
    remove_tree(scratch / _PART)
    append(scratch / _WHOLE, b"")
    return content


def move(parcel: Parcel, content: Path, root: Path) -> None:
    """Renames what was laid out into the session's folder. Goes on where an earlier call stopped."""
    for path in sorted(content.iterdir()):
        rename(path, root / path.name)
    for top in {entry.path.partition("/")[0] for entry in parcel.entries}:
        for here, _, _ in os.walk(root / top, topdown=False):
            make_read_only(Path(here))


def _number(path: Path) -> int:
    data = read_small(path) or b""
    return int(data) if data.isdigit() else 0


def _get(store: Store, key: str, part: Part, target: Path) -> None:
    for reading in range(_READINGS_MAX):
        try:
            store.get(key, target, part.sha256, bytes_max=part.size)
            break
        except CorruptCheckpoint:
            if reading == _READINGS_MAX - 1:
                raise
    if target.stat().st_size != part.size:
        raise CorruptCheckpoint(key, "it is smaller than the parcel says")


def _spread(
    part: Path, begin: int, size: int, entries: tuple[Entry, ...], ends: list[int], content: Path
) -> None:
    """Writes the bytes of one part to their places in the files that they belong to."""
    with open_plain(part) as reading:
        at = begin
        while at < begin + size:
            number = bisect_right(ends, at)  # never one without bytes
            entry, end = entries[number], ends[number]
            count = min(end, begin + size) - at
            target = content / entry.path
            make_folder(target.parent, 0o700)
            with written(target, anew=False, mode=0o600) as writing:
                writing.seek(at - (end - entry.size))
                copy(reading, writing, count)
            at += count


def _finish(entries: Iterable[Entry], content: Path) -> None:
    """Adds what has no bytes, and lets nobody write to the files."""
    for entry in entries:
        target = content / entry.path
        make_folder(target if entry.path.endswith("/") else target.parent, 0o700)
        if not entry.path.endswith("/"):
            with written(target, anew=False, mode=0o600) as file:
                os.fchmod(file.fileno(), 0o500 if entry.executable else 0o400)
