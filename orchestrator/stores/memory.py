"""A store in this process's memory, for the simulation. It is the simplest form of the protocol.

Decides nothing. Its objects are lost with the process, so the catalogue does not offer it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import Conflict, CorruptCheckpoint, NotFound, Rejected, SourceChanged
from orchestrator.files import write_whole
from orchestrator.stores.register import Held, check_value, content_version
from orchestrator.stores.store import SHARED, Stat, check_key, check_prefix, check_size


class MemoryRegisters:
    """Implements `Registers`; may be shared by threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def read(self, key: str) -> Held | None:
        check_key(key)
        value = self._values.get(key)
        return None if value is None else Held(value, content_version(value))

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        check_key(key)
        check_value(value)
        with self._lock:
            held = self.read(key)
            if (None if held is None else held.version) != version:
                raise Conflict(f"{key} has changed", operation="swap")
            self._values[key] = value
        return content_version(value)

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._lock:
            found = sorted(key for key in self._values if key.startswith(prefix))
        yield from found

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._values.pop(key, None)


class MemoryStore:
    """Implements `Store`; may be shared by threads."""

    def __init__(self) -> None:
        self.registers = MemoryRegisters()
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, key: str, source: Path, sha256: str) -> None:
        check_key(key)
        data = source.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise SourceChanged(f"put {key}: the source has the sha256 {found[:12]}…, not {sha256[:12]}…")
        with self._lock:
            if self._objects.setdefault(key, data) != data:
                raise Rejected(f"put {key}: the key has other bytes, and objects never change")

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        check_key(key)
        try:
            data = self._objects[key]
        except KeyError:
            raise NotFound(f"the store has no {key}", operation="get") from None
        check_size(key, len(data), bytes_max)
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptCheckpoint(key, f"its bytes do not have the sha256 {sha256[:12]}…")
        write_whole(target, data, sync=False, mode=SHARED)

    def stat(self, key: str) -> Stat | None:
        check_key(key)
        data = self._objects.get(key)
        return None if data is None else Stat(key, len(data))

    def list(self, prefix: str) -> Iterator[Stat]:
        check_prefix(prefix)
        with self._lock:
            found = [Stat(key, len(data)) for key, data in self._objects.items() if key.startswith(prefix)]
        yield from sorted(found, key=lambda stat: stat.key)

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)
