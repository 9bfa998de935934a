"""Registers in a bucket: one small object each, beside the store's objects, swapped by its ETag.

Must never know what the values mean. Only for a service that honours conditional writes (`conditions`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import obstore

from orchestrator.core import bounds
from orchestrator.errors import Conflict, NotFound, Rejected, Transient
from orchestrator.stores.register import Held, check_value
from orchestrator.stores.s3.clients import Clients
from orchestrator.stores.s3.faults import HTML, UNMET, is_unmet
from orchestrator.stores.s3.pacing import paced
from orchestrator.stores.store import check_key, check_prefix

if TYPE_CHECKING:
    from obstore import PutMode

FOLDER = ".registers/"  # no object's key begins like this
ABSENT = f"{FOLDER}.absent"  # nor is this one of a register


class S3Registers:
    """Implements `Registers`. A version is the ETag, which for most services is a digest of the value."""

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients = clients
        self._name = name

    def read(self, key: str) -> Held | None:
        check_key(key)
        client = self._clients.now()
        try:
            with self._clients.reporting("read", key):
                result = obstore.get(client.small, FOLDER + key)
                size, version = result.meta["size"], result.meta["e_tag"]
                value = bytes(result.bytes()) if size <= bounds.REGISTER_BYTES_MAX else b""
        except NotFound:
            return None
        if size > bounds.REGISTER_BYTES_MAX:
            raise Rejected(f"read {key}: not a register: it has {size:,} bytes", backend=self._name)
        if version is None or len(value) != size:
            raise Transient(f"read {key}: {HTML}", backend=self._name, operation="read")
        return Held(value, version)

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        check_key(key)
        check_value(value)
        mode: PutMode = "create" if version is None else {"e_tag": version}
        client = self._clients.now()
        try:
            with self._clients.reporting("swap", key, conditional=True):
                result = paced(
                    lambda: obstore.put(client.small, FOLDER + key, value, mode=mode, use_multipart=False)
                )
        except UNMET as error:
            if is_unmet(error):
                raise Conflict(f"{key} has changed", backend=self._name, operation="swap") from None
            raise self._clients.ours(error, "swap", key) from None
        written = result["e_tag"]
        if written is None:
            raise Transient(f"swap {key}: {HTML}", backend=self._name, operation="swap")
        return written

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        folder = FOLDER + prefix.rpartition("/")[0]
        client, found = self._clients.now(), []
        with self._clients.reporting("list", prefix):
            for page in obstore.list(client.small, folder.rstrip("/")):
                found += [each["path"].removeprefix(FOLDER) for each in page]
        for key in sorted(found):
            with suppress(Rejected):  # a probe, or not ours
                check_key(key)
                if key.startswith(prefix):
                    yield key

    def delete(self, key: str) -> None:
        check_key(key)
        client = self._clients.now()
        with suppress(NotFound), self._clients.reporting("delete", key):
            obstore.delete(client.small, FOLDER + key)
