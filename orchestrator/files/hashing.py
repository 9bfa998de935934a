"""The sha256 of files, with or without copying them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, cycle
from pathlib import Path

CHUNK_BYTES = 1024 * 1024
SYNC_BYTES = 16 * CHUNK_BYTES

Read = Callable[[memoryview], int]


def hashed_copy(read: Read, fd: int | None) -> str:
    """Reads to the end and writes everything to `fd` (None: nowhere). Returns the sha256 of what was read."""
    return hashed_write(_chunks(read), fd)


def hashed_write(parts: Iterable[memoryview], fd: int | None) -> str:
    """Writes all parts to `fd` (None: nowhere). Returns their sha256.

    A thread hashes while others read and write, so a part must keep its bytes until the one after the next is
    asked for. Another thread syncs what was written so far: the disk works from the beginning, and the
    caller's own sync at the end is short. Raises what a sync raises.
    """
    digest, fresh = hashlib.sha256(), 0
    hashing, syncing = _nothing(), _nothing()
    with ThreadPoolExecutor(2) as pool:
        for piece in chain.from_iterable(map(_pieces, parts)):
            hashing.result()
            hashing = pool.submit(digest.update, piece)
            if fd is None:
                continue
            if fresh >= SYNC_BYTES and syncing.done():
                syncing.result()  # the kernel tells an error only once
                syncing, fresh = pool.submit(os.fsync, fd), 0
            _write(fd, piece)
            fresh += len(piece)
        hashing.result()
        syncing.result()
    return digest.hexdigest()


def _pieces(part: memoryview) -> Iterator[memoryview]:
    """So small that a piece is still in the processor's cache when it is written and hashed."""
    return (part[start : start + CHUNK_BYTES] for start in range(0, len(part), CHUNK_BYTES))


def _chunks(read: Read) -> Iterator[memoryview]:
    for buffer in cycle([memoryview(bytearray(CHUNK_BYTES)) for _ in range(2)]):
        count = read(buffer)
        if not count:
            return
        yield buffer[:count]


def _nothing() -> Future[None]:
    """Work that is done."""
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def digest_file(path: Path) -> str:
    """The sha256 of the file's bytes, in hexadecimal."""
    with path.open("rb", buffering=0) as stream:
        if os.fstat(stream.fileno()).st_size <= CHUNK_BYTES:  # not worth a thread
            return hashlib.file_digest(stream, "sha256").hexdigest()
        return hashed_copy(stream.readinto, None)


def digest(path: Path) -> str:
    """The sha256 of a file's bytes; for a folder, the sha256 of its sorted lines `<sha256>  <path>`."""
    if not path.is_dir():
        return digest_file(path)
    lines = [f"{digest_file(file)}  {file.relative_to(path).as_posix()}\n" for file in walked(path)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def walked(folder: Path) -> Iterator[Path]:
    """All files of a folder, also behind links, in the order of their paths."""
    found = [Path(here) / name for here, _, names in os.walk(folder, followlinks=True) for name in names]
    yield from sorted(found, key=lambda file: file.relative_to(folder).as_posix())
