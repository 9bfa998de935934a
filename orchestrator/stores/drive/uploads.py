"""Uploads that resume: one pass over the source, which hashes what it sends, and a session that is kept.

Decides when an upload is whole. The last part is sent only if the source has the expected sha256, so that
nothing else is ever committed. An interrupted upload goes on where Drive says it stopped, also in a later
call. Must never know what the objects are.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass, field
from typing import Any

from googleapiclient.http import HttpRequest, MediaUpload  # type: ignore[import-untyped]

from orchestrator.errors import NotFound, SourceChanged, Transient
from orchestrator.stores.drive import faults
from orchestrator.stores.drive.copies import BINARY, FIELDS, MARK, OBJECT, Copies, Copy, copy_of, properties

CHUNK_BYTES = 8 * 1024 * 1024  # Drive wants a multiple of 256 KiB; two of these are in memory at a time
_PENDING_MAX = 64


class Mismatch(Exception):
    """The source does not have the expected sha256."""


class Source(MediaUpload):  # type: ignore[misc]
    """A file as the client reads it: in parts, again where Drive received only some of one."""

    def __init__(self, size: int, sha256: str, chunk: int) -> None:
        super().__init__()
        self.fd = -1
        self.read_bytes = 0  # hashed so far
        self._size = size
        self.sha256 = sha256
        self._chunk = chunk
        self._sha256, self._md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)

    def size(self) -> int:
        return self._size

    def chunksize(self) -> int:
        return self._chunk

    def mimetype(self) -> str:
        return BINARY

    def resumable(self) -> bool:
        return True

    def has_stream(self) -> bool:
        return False  # the client would let httplib2 send a stream again, which is then at its end

    def getbytes(self, begin: int, length: int) -> bytes:
        """Part of the file. Raises Mismatch before the last part if the bytes are not the expected ones."""
        if begin > self.read_bytes:
            raise ValueError("Drive claims bytes that were never sent")
        try:
            return self._taken(begin, length)
        except OSError as error:
            raise faults.LocalFault(error) from None

    def md5(self) -> str:
        """Of the whole source. Reads what was not sent. Raises Mismatch, or OSError."""
        while self.read_bytes < self._size:
            self._taken(self.read_bytes, self._chunk)
        self._check()
        return self._md5.hexdigest()

    def _taken(self, begin: int, length: int) -> bytes:
        data = self._read(begin, min(length, self._size - begin))
        new = data[self.read_bytes - begin :]
        self._sha256.update(new)
        self._md5.update(new)
        self.read_bytes += len(new)
        if begin + len(data) >= self._size:
            self._check()
        return data

    def _check(self) -> None:
        if self._sha256.hexdigest() != self.sha256:
            raise Mismatch

    def _read(self, begin: int, length: int) -> bytes:
        pieces = []
        while length > 0:
            piece = os.pread(self.fd, length, begin)
            if not piece:  # it was cut while it was read
                raise Mismatch
            pieces.append(piece)
            begin, length = begin + len(piece), length - len(piece)
        return b"".join(pieces)


@dataclass
class Pending:
    """An upload that was begun: the file's id, and the session at Drive."""

    id: str
    source: Source
    request: Any = None


@dataclass
class Uploads:
    """Begun uploads of this process by key and sha256. One thread at a time may send one key."""

    copies: Copies
    chunk: int = CHUNK_BYTES
    _pending: dict[tuple[str, str], Pending] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, key: str, fd: int, size: int, sha256: str) -> Copy:
        """Stores the open file as a new copy of the key. Raises SourceChanged for other bytes than `sha256`.

        After Transient the upload is kept, and the next call continues it.
        """
        pending = self._begun(key, size, sha256)
        pending.source.fd = fd
        try:
            found = self._finished(key, pending)
        except Transient:
            if pending.request is not None and pending.request.resumable_progress > pending.source.read_bytes:
                self.drop(key)  # Drive claims bytes that were never sent
            raise
        except Mismatch:
            self.drop(key)
            message = f"put {key}: the source does not have the sha256 {sha256[:12]}…; nothing was stored"
            raise SourceChanged(message, backend=self.copies.account.name, operation="put") from None
        except BaseException:
            self.drop(key)
            raise
        finally:
            pending.source.fd = -1
        self.drop(key)
        return found

    def drop(self, key: str) -> None:
        """Forgets what was begun. Drive forgets it after a week, and never counts it."""
        with self._lock:
            for each in [each for each in self._pending if each[0] == key]:
                del self._pending[each]

    def _begun(self, key: str, size: int, sha256: str) -> Pending:
        with self._lock:
            found = self._pending.get((key, sha256))
        if found is None or found.source.size() != size:
            found = Pending(self.copies.account.new_id(), Source(size, sha256, self.chunk))
            with self._lock:
                self._pending[key, sha256] = found
                while len(self._pending) > _PENDING_MAX:
                    del self._pending[next(iter(self._pending))]
        return found

    def _finished(self, key: str, pending: Pending) -> Copy:
        try:
            copy = copy_of(self._sent(key, pending))
        except faults.Exists:  # an earlier try was received, but its answer was lost
            copy = None
        except NotFound:  # the session is over: Drive keeps one for a week at most. Or the folder is gone.
            self.copies.check_folder()
            pending.request = None
            message = f"put {key}: Drive no longer knows the upload; it starts again"
            raise Transient(message, backend=self.copies.account.name, operation="put") from None
        copy = copy or self.copies.look(pending.id)
        if copy is None or copy.key != key:
            self.drop(key)
            message = f"put {key}: the new file is not there any more"
            raise Transient(message, backend=self.copies.account.name, operation="put")
        if copy.md5 != pending.source.md5():
            self.copies.delete(copy.id)
            self.drop(key)
            message = f"put {key}: it arrived damaged and was deleted"
            raise Transient(message, backend=self.copies.account.name, operation="put")
        self.copies.remember(copy)
        return copy

    def _sent(self, key: str, pending: Pending) -> Any:
        """Continues at once after an error as long as each try got further: Drive has what came before."""
        body: Any = None
        reached = -1
        while body is None:
            try:
                body = self._part(key, pending)
            except Transient:
                progress = getattr(pending.request, "resumable_progress", -1)
                if progress <= reached or not progress:
                    raise
                reached = progress
        return body

    def _part(self, key: str, pending: Pending) -> Any:
        """The file's resource after the last part, else None.

        `next_chunk` asks Drive for its offset after an error. It never retries by itself: with retries the
        client would send a part that it has read to the end (docs/references/drive.md#uploads).
        """
        run = self.copies.account.run
        return run("put", lambda http, files: self._next(key, pending, http, files))[1]

    def _next(self, key: str, pending: Pending, http: Any, files: Any) -> Any:
        if pending.request is None:
            pending.request = self._request(key, pending, files)
        return pending.request.next_chunk(http=http, num_retries=0)

    def _request(self, key: str, pending: Pending, files: Any) -> HttpRequest:
        body = {
            "id": pending.id,
            "title": key,
            "mimeType": BINARY,
            "parents": [{"id": self.copies.folder}],
            "properties": properties(**{MARK: OBJECT, "sha256": pending.source.sha256}),
        }
        return files.insert(body=body, media_body=pending.source, fields=FIELDS, supportsAllDrives=True)
