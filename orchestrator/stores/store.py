"""The store protocol: five verbs for immutable objects, and optional registers. Knows no checkpoints or runs.

A key is a relative path with forward slashes (`runs/<run>/fence`). Verbs block and are idempotent. They raise
`Transient` (worth a retry), `AccessDenied`, `QuotaExhausted` (the store is full), `Rejected`, or `NotFound`
for a missing key. A problem with the local file raises a plain `OSError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, runtime_checkable

from orchestrator.core import bounds
from orchestrator.errors import Rejected, TooLarge
from orchestrator.stores.register import Registers

KEY_CHARACTERS_MAX = 900
SHARED = 0o666  # mode of what a store writes: the user's umask decides who can read it
_PIECE = r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,199}"
_KEY = re.compile(rf"{_PIECE}(?:/{_PIECE})*")
_PREFIX = re.compile(rf"(?:{_PIECE}/)*(?:{_PIECE})?")


def check_key(key: str) -> None:
    """Raises Rejected unless the key is made of letters, digits, `-_.=`, in pieces between single slashes.

    No piece starts with a dot, so that no key leaves the store or meets its private files.
    """
    if len(key) > KEY_CHARACTERS_MAX or not _KEY.fullmatch(key):
        raise Rejected(
            f"{key!r} is not a key: letters, digits and -_.= between single slashes, no leading dots"
        )


def check_prefix(prefix: str) -> None:
    """Raises Rejected if no key can start with this text."""
    if len(prefix) > KEY_CHARACTERS_MAX or not _PREFIX.fullmatch(prefix):
        raise Rejected(f"no key can start with {prefix!r}")


@dataclass(frozen=True)
class Stat:
    """One object: its key and its size in bytes."""

    key: str
    size: int


class Store(Protocol):
    @property
    def registers(self) -> Registers | None:
        """Its small mutable values; None if the store has no compare-and-swap."""

    def put(self, key: str, source: Path, sha256: str) -> None:
        """Stores the file's bytes under the key, atomically, and durably when this returns.

        `sha256` is the expected hash. A source with another hash raises `SourceChanged` and stores nothing.
        The source may change meanwhile, so it is hashed in the same pass that sends it. Putting the same
        bytes again changes nothing. Objects are immutable: other bytes under an existing key raise
        `Rejected`.
        """

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        """Writes the object's bytes to `target`, which is replaced only after they were verified.

        Raises `CorruptCheckpoint` (with the key as its name) if `sha256` is given and the bytes differ, and
        `TooLarge` for an object of more than `bytes_max` bytes, which is not fetched: others may write to the
        store. The target's folder must exist.
        """

    def stat(self, key: str) -> Stat | None:
        """The object under the key, or None."""

    def list(self, prefix: str) -> Iterator[Stat]:
        """Every object whose key starts with the prefix, in key order, without unfinished puts."""

    def delete(self, key: str) -> None:
        """Removes the object. No error if it is missing."""


def check_size(key: str, size: int, bytes_max: int | None) -> None:
    """Raises TooLarge for an object of more bytes."""
    if bytes_max is not None and size > bytes_max:
        raise TooLarge(key, f"larger than {bounds.size_text(bytes_max)}")


def content(store: Store, key: str, bytes_max: int, sha256: str | None = None) -> bytes:
    """The bytes of a small object. Raises what `get` raises."""
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        target = Path(folder) / "object"
        store.get(key, target, sha256, bytes_max=bytes_max)
        return target.read_bytes()


@runtime_checkable
class Emptiness(Protocol):
    """Optional, for a store in which a whole listing is expensive."""

    def is_empty(self) -> bool:
        """Whether the store has no object at all."""


def is_empty(store: Store) -> bool:
    """Whether the store has no object at all, found out as cheaply as it can be."""
    if isinstance(store, Emptiness):
        return store.is_empty()
    return next(iter(store.list("")), None) is None
