"""The store in a folder of Drive: one flat folder, whose files have the keys as titles.

Decides what the verbs do about copies: any with the wanted bytes serves, and without a wanted sha256 they
must agree. Must never know what the objects are.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from orchestrator.errors import CorruptCheckpoint, NotFound, Rejected, SourceChanged
from orchestrator.files import draft_file
from orchestrator.files.hashing import hashed_copy
from orchestrator.stores.drive import downloads, uploads
from orchestrator.stores.drive.account import Account
from orchestrator.stores.drive.copies import Copies, Copy
from orchestrator.stores.drive.registers import DriveRegisters
from orchestrator.stores.drive.uploads import Mismatch, Source, Uploads
from orchestrator.stores.portable import Portable
from orchestrator.stores.store import SHARED, Stat, check_key, check_prefix, check_size

_LOCKS = 64  # keys share them: two writers of one key in one process take turns


class DriveStore:
    """Implements `Store`, `Snapshots` and `Portability`; may be shared by threads. Logs in with the first
    verb."""

    def __init__(self, account: Account, folder: str, *, chunk: int = uploads.CHUNK_BYTES) -> None:
        self._account = account
        self._copies = Copies(account, folder)
        self._uploads = Uploads(self._copies, chunk)
        self._chunk = chunk
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self.registers = DriveRegisters(self._copies)

    def put(self, key: str, source: Path, sha256: str) -> None:
        check_key(key)
        with source.open("rb", buffering=0) as stream, self._locks[hash(key) % _LOCKS]:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise self._refused(f"put {key}: {source} is not a regular file")
            there = self._copies.find(key)
            if there and self._is_stored(key, stream.fileno(), found.st_size, sha256, there):
                return
            self._uploads.send(key, stream.fileno(), found.st_size, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        check_key(key)
        there = self._copies.find(key, listing=sha256 is None)
        if sha256 is None and len({copy.sha256 for copy in there}) > 1:
            raise CorruptCheckpoint(key, f"Drive has {len(there)} files of this key, with different bytes")
        problem = ""
        if there:
            check_size(key, min(copy.size for copy in there), bytes_max)
        for copy in sorted(there, key=lambda copy: copy.sha256 != sha256):
            if bytes_max is not None and copy.size > bytes_max:
                continue
            try:
                problem = self._fetched(copy, target, sha256 or copy.sha256)
            except NotFound:  # deleted a moment ago
                self._copies.forget(copy.id)
                continue
            if not problem:
                return
        if problem:
            raise CorruptCheckpoint(key, problem)
        raise NotFound(f"Drive has no {key}", backend=self._account.name, operation="get")

    def stat(self, key: str) -> Stat | None:
        check_key(key)
        there = self._copies.find(key)
        return Stat(key, there[0].size) if there else None

    def list(self, prefix: str) -> Iterator[Stat]:
        check_prefix(prefix)
        sizes: dict[str, int] = {}
        for copy in self._copies.beginning(prefix):
            sizes.setdefault(copy.key, copy.size)
        for key in sorted(sizes):
            yield Stat(key, sizes[key])

    def delete(self, key: str) -> None:
        check_key(key)
        with self._locks[hash(key) % _LOCKS]:
            self._uploads.drop(key)
            for copy in self._copies.listed(key):
                self._copies.delete(copy.id)

    def snapshot(self) -> AbstractContextManager[None]:
        return self._copies.snapshot()

    @property
    def this_machine(self) -> bool:
        return self._account.is_on_this_machine

    def portable(self) -> Portable:
        """What a session needs. Its login sees everything that this OAuth app ever made, because Drive has no
        narrower one. Raises AccessDenied without a login."""
        account = self._account
        kind = "service_account" if account.login.is_service else "credentials"
        return Portable(
            type="drive",
            options={"folder": self._copies.folder, "endpoint": account.endpoint},
            secret={kind: account.secret()},
            packages=("drive",),
            this_machine=self.this_machine,
        )

    def _fetched(self, copy: Copy, target: Path, sha256: str) -> str:
        """What is wrong with the copy; empty if the target now has its bytes."""
        read = downloads.reader(self._account, copy.id, copy.size, self._chunk)
        with draft_file(target.parent, SHARED) as draft:
            found = hashed_copy(read, draft.fd)
            if found != sha256:
                return f"its bytes have the sha256 {found[:12]}…, not {sha256[:12]}…"
            draft.replace(target)
        return ""

    def _is_stored(self, key: str, fd: int, size: int, sha256: str, there: Sequence[Copy]) -> bool:
        """Whether a copy has the source's bytes. Deletes copies that claim them, but arrived damaged.

        Raises Rejected for another source than `sha256`, and for other bytes under the key.
        """
        source = Source(size, sha256, self._chunk)
        source.fd = fd
        try:
            md5 = source.md5()
        except Mismatch:
            message = f"put {key}: the source does not have the sha256 {sha256[:12]}…; nothing was stored"
            raise SourceChanged(message, backend=self._account.name, operation="put") from None
        if any(copy.md5 == md5 and copy.size == size for copy in there):
            return True
        if any(copy.sha256 != sha256 for copy in there):
            raise self._refused(f"put {key}: the key has other bytes, and objects never change")
        for copy in there:
            self._copies.delete(copy.id)
        return False

    def _refused(self, message: str) -> Rejected:
        return Rejected(message, backend=self._account.name, operation="put")
