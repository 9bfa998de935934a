"""The store protocol: five verbs over immutable objects. Knows nothing of checkpoints or runs.

A key is a relative path with forward slashes (`runs/<run>/blobs/<sha256>`), of letters, digits, `-_.=` and
`/` only. Verbs block, are idempotent, and raise `Transient` (worth a retry), `AccessDenied`,
`QuotaExhausted` (the store is full) or `Rejected`; `NotFound` where a key holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Stat:
    """One object: its key and its size in bytes."""

    key: str
    size: int


class Store(Protocol):
    def put(self, key: str, source: Path, sha256: str) -> None:
        """Stores the file's bytes under the key, whole or not at all, durable when this returns.

        `sha256` is of the bytes meant; a source that differs raises `Rejected` and stores nothing. Putting
        the same bytes again changes nothing. Objects are immutable: other bytes under a key that is taken
        raise `Rejected`.
        """

    def get(self, key: str, target: Path, sha256: str | None = None) -> None:
        """Writes the object's bytes to `target`, which is replaced only after they were verified.

        Raises `CorruptCheckpoint` (named by the key) where `sha256` is given and the bytes differ.
        """

    def stat(self, key: str) -> Stat | None:
        """The object under the key, or None."""

    def list(self, prefix: str) -> Iterator[Stat]:
        """Every object whose key starts with the prefix, in key order; unfinished puts are not among them."""

    def delete(self, key: str) -> None:
        """Removes the object; deleting what is not there is no error."""
