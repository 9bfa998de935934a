"""The sha256 of files, with or without copying them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

CHUNK_BYTES = 1024 * 1024

Read = Callable[[memoryview], int]


def hashed_copy(read: Read, fd: int | None) -> str:
    """Reads to the end and writes everything to `fd` (None: nowhere). Returns the sha256 of what was read.

    Hashing is the slowest part. It runs in one thread, in parallel to reading and writing, with two buffers.
    """
    digest = hashlib.sha256()
    hashing: Future[None] | None = None
    with ThreadPoolExecutor(1) as pool:
        for buffer in cycle([memoryview(bytearray(CHUNK_BYTES)) for _ in range(2)]):
            count = read(buffer)
            if hashing is not None:
                hashing.result()
            if not count:
                return digest.hexdigest()
            hashing = pool.submit(digest.update, buffer[:count])
            if fd is not None:
                _write(fd, buffer[:count])
    raise AssertionError("the buffers never end")


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def digest_file(path: Path) -> str:
    """The sha256 of the file's bytes, in hexadecimal."""
    with path.open("rb", buffering=0) as stream:
        if os.fstat(stream.fileno()).st_size <= CHUNK_BYTES:  # not worth a thread
            return hashlib.file_digest(stream, "sha256").hexdigest()
        return hashed_copy(stream.readinto, None)
