"""The register protocol, a store's second and optional one: small values, changed by compare-and-swap only.

A fence, a heartbeat, a claim. Their keys look like those of objects, and are none; checkpoints never depend
on a register. Verbs block, and raise what the store's own raise. Must never know what the values mean.

A version says which value was read, not which writing of it: two equal values may have the same one, as the
ETag of S3 is a digest of the content. So a value that must not be mistaken for somebody else's, or for an
older one, names its writer or counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from orchestrator.core import bounds
from orchestrator.errors import Rejected


@dataclass(frozen=True)
class Held:
    """One reading of a register. `version` is for `swap` alone, and means nothing else."""

    value: bytes
    version: str


class Registers(Protocol):
    def read(self, key: str) -> Held | None:
        """The value now, or None where there is none."""

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        """Writes the value if the register still has this version (None: if there is none yet), durably, and
        returns the new version.

        Raises `Conflict` where it has another: nothing was written. After `Transient` it may have been
        written; a repeat may then meet its own value as a conflict, so read before deciding.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """The keys that start with the prefix, in order. One written a moment ago may still be missing."""

    def delete(self, key: str) -> None:
        """Removes a register that nobody uses any more; one that is not there is no error."""


def check_value(value: bytes) -> None:
    """Raises Rejected for a value larger than a register holds."""
    if len(value) > bounds.REGISTER_BYTES_MAX:
        limit = bounds.size_text(bounds.REGISTER_BYTES_MAX)
        raise Rejected(f"a register holds {limit} at the most, not {len(value):,} bytes")


def content_version(value: bytes) -> str:
    """A version as weak as the protocol allows, for stores that have none of their own."""
    return hashlib.sha256(value).hexdigest()
