"""A store in a bucket of an S3 service.

Decides how a key's bytes are compared with what is already there, and in which order requests are made. Must
never know what the objects are. An object's key is its key in the bucket, below the prefix. Registers are
beside the objects, below `.registers/`.

A service that keeps metadata keeps each object's sha256, and the signature of every part makes the service
check it on arrival. Where there is no metadata (Hugging Face), an object of the same size is read back to be
compared.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

import obstore

from orchestrator.errors import (
    AccessDenied,
    CorruptCheckpoint,
    NotFound,
    QuotaExhausted,
    Rejected,
    SourceChanged,
    Transient,
)
from orchestrator.files import draft_file
from orchestrator.files.hashing import hashed_write
from orchestrator.stores.checkup import Remark
from orchestrator.stores.portable import Portable
from orchestrator.stores.register import Registers
from orchestrator.stores.s3 import checkup, conditions, transfers, uploads
from orchestrator.stores.s3.clients import Clients
from orchestrator.stores.s3.conditions import Conditions
from orchestrator.stores.s3.faults import HTML, UNMET
from orchestrator.stores.s3.registers import ABSENT, FOLDER, S3Registers
from orchestrator.stores.store import SHARED, Stat, Upload, check_key, check_prefix, is_key

_LANDINGS_MAX = 100
_PAGE_MAX = 1000  # keys in one answer to a listing


class S3Store:
    """Implements `Store`, `Portability`, `Emptiness`, `Uploads` and `Checkup`. May be shared by threads."""

    def __init__(self, clients: Clients, name: str = "s3") -> None:
        self._clients = clients
        self._name = name
        self._lock = threading.Lock()
        self._tried = clients.place.conditions

    # --- the verbs ------------------------------------------------------------------------------------------

    def put(self, key: str, source: Path, sha256: str) -> None:
        check_key(key)
        with FileIO(source) as stream:
            reader = transfers.Source(stream)
            first = reader.part()
            if len(first) == transfers.PART_BYTES:
                self._put_large(key, first, reader, sha256)
                return
        found = hashlib.sha256(first).hexdigest()
        if found != sha256:
            raise self._wrong_source(key, found, sha256)
        self._put_small(key, first, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        check_key(key)
        client = self._clients.now()
        with (
            transfers.Body(client.fetches, key, bytes_max) as body,
            draft_file(target.parent, SHARED) as draft,
        ):
            with self._clients.reporting("get", key):
                found = hashed_write(body, draft.fd)
            if body.is_foreign:
                raise Transient(f"get {key}: {HTML}", backend=self._name, operation="get")
            if sha256 is not None and found != sha256:
                told = f"its {body.count:,} bytes have the sha256 {found[:12]}…, not {sha256[:12]}…"
                raise CorruptCheckpoint(key, told)
            if sha256 is None and body.count != body.total:
                told = f"get {key}: {body.count:,} of {body.total:,} bytes came"
                raise Transient(told, backend=self._name, operation="get")
            draft.replace(target)

    def stat(self, key: str) -> Stat | None:
        check_key(key)
        found = self._found("stat", key)
        return None if found is None else Stat(key, found[0])

    def list(self, prefix: str) -> Iterator[Stat]:
        check_prefix(prefix)
        # Sorted here: SeaweedFS lists folder by folder, and a part of a name is no prefix for obstore.
        yield from sorted(self._listed(prefix), key=lambda stat: stat.key)

    def delete(self, key: str) -> None:
        check_key(key)
        client = self._clients.now()
        with suppress(NotFound), self._clients.reporting("delete", key):
            obstore.delete(client.small, key)

    def is_empty(self) -> bool:
        return next(self._listed(""), None) is None

    # --- what it can do -------------------------------------------------------------------------------------

    @property
    def registers(self) -> Registers | None:
        """None if the service does not honour conditional writes, which the first use finds out."""
        return S3Registers(self._clients, self._name) if self.conditions().swaps else None

    def conditions(self) -> Conditions:
        """What this service does with conditional writes: as it documents, or tried out once. If nothing
        can be written now, assumes that it honours them: a write then fails for its own reason."""
        with self._lock:
            if self._tried is None:
                client = self._clients.now()
                try:
                    with self._clients.reporting("probe"):
                        self._tried = conditions.tried(client.small)
                except (AccessDenied, QuotaExhausted):
                    return Conditions(True, True)
            return self._tried

    def uploads(self) -> tuple[Upload, ...]:
        """Empty if the service does not list them, or not to these keys; `checkup` says so."""
        try:
            return uploads.listed(self._clients)
        except (AccessDenied, NotFound, Rejected):
            return ()

    def abort(self, upload: Upload) -> None:
        check_key(upload.key)
        uploads.abort(self._clients, upload)

    def checkup(self) -> tuple[Remark, ...]:
        return tuple(checkup.remarks(self._clients))

    @property
    def this_machine(self) -> bool:
        return self._clients.place.is_loopback

    def portable(self) -> Portable:
        place, keys = self._clients.place, self._clients.credentials.now(self._name)
        options = {
            "bucket": place.bucket,
            "prefix": place.prefix,
            "endpoint": place.endpoint,
            "region": place.region,
            "style": "virtual" if place.is_virtual else "path",
        }
        secret = {"access_key": keys.access_key, "secret_key": keys.secret_key, "session_token": keys.token}
        return Portable(
            "s3",
            {name: value for name, value in options.items() if value},
            {name: value for name, value in secret.items() if value},
            packages=("s3",),
            this_machine=self.this_machine,
        )

    # --- how ------------------------------------------------------------------------------------------------

    def _put_small(self, key: str, data: bytes, sha256: str) -> None:
        """One request that fails if the key exists. A service without such requests is asked before."""
        creates = self.conditions().creates
        for _ in range(_LANDINGS_MAX):
            if not creates and self._is_taken(key, sha256, len(data)):
                return
            client = self._clients.now()
            try:
                with self._clients.reporting("put", key, conditional=True):
                    obstore.put(
                        client.small,
                        key,
                        data,
                        attributes={transfers.SHA256: sha256},
                        mode="create" if creates else "overwrite",
                        use_multipart=False,
                    )
                return
            except UNMET:
                if self._is_taken(key, sha256, len(data)):
                    return
        raise Transient(
            f"put {key}: it is removed each time it is found", backend=self._name, operation="put"
        )

    def _put_large(self, key: str, first: bytes, reader: transfers.Source, sha256: str) -> None:
        """In parts, which no service offers as a conditional write. Of two writers at once the last one wins,
        and the first may not be told."""
        known = self._found("put", key) is not None
        try:
            if known:
                size = sum(map(len, transfers.checked(first, reader, sha256)))
            else:
                client = self._clients.now()
                with self._clients.reporting("put", key):
                    size = transfers.send(client.sends, key, first, reader, sha256)
        except transfers.OtherBytes as error:
            raise self._wrong_source(key, error.found, sha256) from None
        if not self._is_taken(key, sha256, size, read=known):
            message = f"put {key}: it was gone as soon as it was there"
            raise Transient(message, backend=self._name, operation="put")

    def _wrong_source(self, key: str, found: str, sha256: str) -> SourceChanged:
        message = f"the source has the sha256 {found[:12]}…, not {sha256[:12]}…; nothing was stored"
        return SourceChanged(f"put {key}: {message}", backend=self._name, operation="put")

    def _is_taken(self, key: str, sha256: str, size: int, *, read: bool = True) -> bool:
        """Whether exactly these bytes are under the key. False if there is nothing. Without metadata the
        bytes are read back, unless they were sent a moment ago (`read`)."""
        there = self._found("put", key)
        if there is None:
            return False
        told = f"{there[0]:,} bytes"
        if there[0] == size:
            try:
                found = there[1] or (self._read_back(key) if read else sha256)
            except NotFound:
                return False
            if found == sha256:
                return True
            told = f"sha256 {found[:12]}…"
        message = f"the key has other bytes ({told}), and objects never change"
        raise Rejected(f"put {key}: {message}", backend=self._name, operation="put")

    def _read_back(self, key: str) -> str:
        client = self._clients.now()
        with transfers.Body(client.fetches, key) as body:
            with self._clients.reporting("put", key):
                found = hashed_write(body, None)
            if body.is_foreign or body.count != body.total:
                raise Transient(f"put {key}: {HTML}", backend=self._name, operation="put")
            return found

    def _found(self, operation: str, key: str) -> tuple[int, str] | None:
        """The size of an object, and its sha256 if the service has kept it."""
        client = self._clients.now()
        try:
            with self._clients.reporting(operation, key):
                result = obstore.get(client.small, key, options={"head": True})
        except (AccessDenied, QuotaExhausted, Rejected):
            try:  # the answer to HEAD has no body that says why, so ask for one
                with self._clients.reporting(operation, key):
                    result = obstore.get(client.small, key)
            except NotFound:
                return None
        if result.meta["e_tag"] is None:  # every S3 service gives one
            raise Transient(f"{operation} {key}: {HTML}", backend=self._name, operation=operation)
        return result.meta["size"], str(result.attributes.get(transfers.SHA256, ""))

    def _listed(self, prefix: str) -> Iterator[Stat]:
        """Page by page, as the service orders them."""
        folder = prefix.rpartition("/")[0]
        client, count = self._clients.now(), 0
        with self._clients.reporting("list", prefix):
            for page in obstore.list(client.small, folder or None):
                count += len(page)
                for each in page:
                    key = each["path"]
                    if key.startswith(prefix) and not key.startswith(FOLDER) and is_key(key):
                        yield Stat(key, each["size"])
        if count % _PAGE_MAX == 0:
            self._check_service()

    def _check_service(self) -> None:
        """Raises Transient unless it is the service that answers: any page of the web is an empty listing to
        obstore. The service says of an object that is missing that it is missing."""
        client = self._clients.now()
        with suppress(NotFound), self._clients.reporting("list"):
            obstore.get(client.small, ABSENT)
            raise Transient(f"list: {HTML}", backend=self._name, operation="list")
