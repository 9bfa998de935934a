"""Sends and fetches the bytes of one object in parts, several at a time, and hashes them on their way.

Decides the size of a part and how many are under way: at most TRANSFERS_MAX objects, with at most
MEMORY_BYTES_MAX in memory together. Must never know what an object is for, nor read a file twice.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions
from obstore.store import S3Store as Connection

from orchestrator.core.bounds import MIB
from orchestrator.stores.s3.faults import answer_of
from orchestrator.stores.store import check_size

if TYPE_CHECKING:
    from obstore import Bytes

PART_BYTES = 16 * MIB
PARTS_AT_ONCE = 4
TRANSFERS_MAX = 2
# A transfer holds the parts under way, and the two last ones: one is hashed, the other sent or written.
MEMORY_BYTES_MAX = TRANSFERS_MAX * (PARTS_AT_ONCE + 2) * PART_BYTES

slots = threading.BoundedSemaphore(TRANSFERS_MAX)
"""One for each large object under way, over all stores of this process."""


class OtherBytes(Exception):
    """The source does not have the expected sha256; `found` is its own."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


class Source:
    """A file that is sent: the bytes that it has when it is opened. Its writer may append to it forever."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        found = os.fstat(stream.fileno())
        self._left = found.st_size if stat.S_ISREG(found.st_mode) else None

    def part(self) -> bytes:
        """The next part, which is shorter than PART_BYTES only at the end."""
        pieces: list[bytes] = []
        wanted = PART_BYTES if self._left is None else min(PART_BYTES, self._left)
        while wanted and (piece := self._stream.read(wanted)):
            pieces.append(piece)
            wanted -= len(piece)
        part = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._left is not None:
            self._left -= len(part)
        return part


def checked(first: bytes, source: Source, sha256: str) -> Iterator[bytes]:
    """The parts of a source, hashed as they are read. The last one comes only if the whole has this sha256;
    otherwise raises OtherBytes, and obstore aborts the upload."""
    digest, part = hashlib.sha256(), first
    while part:
        digest.update(part)
        following = source.part()
        if not following and digest.hexdigest() != sha256:
            raise OtherBytes(digest.hexdigest())
        yield part
        part = following


def send(connection: Connection, key: str, first: bytes, source: Source, sha256: str) -> int:
    """Uploads a source whose first part was already read. Returns its size. Nothing appears under the key
    unless the whole has this sha256."""
    size = 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for part in checked(first, source, sha256):
            size += len(part)
            yield part

    with slots:
        obstore.put(
            connection,
            key,
            counted(),
            attributes={SHA256: sha256},
            use_multipart=True,
            chunk_size=PART_BYTES,
            max_concurrency=PARTS_AT_ONCE,
        )
    return size


SHA256 = "sha256"
"""The name under which an object's hash is kept with it, by services that keep such a thing."""


class Body:
    """An object's bytes in order, in parts that are fetched several at a time. `count` of them came; `total`
    is what the service said there are. `is_foreign`: it was not the service that answered. Raises TooLarge,
    before it fetches more than it needs to know that, if there are more than `bytes_max`. Use it as a
    context, because it may have threads."""

    def __init__(self, connection: Connection, key: str, bytes_max: int | None = None) -> None:
        self._connection = connection
        self._key = key
        self._bytes_max = bytes_max
        self.count = 0
        self.total = 0
        self.is_foreign = False
        self._parts = self._fetched()

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def __iter__(self) -> Iterator[memoryview]:
        for part in self._parts:
            self.count += len(part)
            yield memoryview(part)

    def _fetched(self) -> Generator[Bytes, None, None]:
        try:
            first = obstore.get(self._connection, self._key, options={"range": (0, PART_BYTES)})
        except exceptions.BaseError as error:
            if not _refuses_range(error):
                raise
            yield from self._streamed()
            return
        self.total = first.meta["size"]
        check_size(self._key, self.total, self._bytes_max)
        if self.total <= PART_BYTES:
            yield first.bytes()
            return
        with slots, ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            starts = iter(range(PART_BYTES, self.total, PART_BYTES))
            under_way = deque([pool.submit(first.bytes)])
            try:
                while under_way:
                    self._ask(pool, starts, under_way)
                    yield under_way.popleft().result()
            finally:
                for each in under_way:
                    each.cancel()

    def _ask(self, pool: ThreadPoolExecutor, starts: Iterator[int], under_way: deque[Future[Bytes]]) -> None:
        while len(under_way) < PARTS_AT_ONCE and (start := next(starts, None)) is not None:
            end = min(start + PART_BYTES, self.total)
            under_way.append(
                pool.submit(obstore.get_range, self._connection, self._key, start=start, end=end)
            )

    def _streamed(self) -> Iterator[Bytes]:
        """In one piece: the object is empty, or the service knows no ranges."""
        result = obstore.get(self._connection, self._key)
        self.total = result.meta["size"]
        check_size(self._key, self.total, self._bytes_max)
        self.is_foreign = self.total > 0 and result.meta["e_tag"] is None
        yield from result.stream(min_chunk_size=PART_BYTES)


def _refuses_range(error: exceptions.BaseError) -> bool:
    answer = answer_of(error)
    ignored = isinstance(error, exceptions.NotSupportedError) or "non-partial" in str(error)
    return answer.status == 416 or (not answer.status and ignored)
