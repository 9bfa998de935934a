"""The register protocol, optional for a store: small values, changed only by compare-and-swap.

Examples: a fence, a heartbeat, a claim. Their keys look like keys of objects but are separate. Checkpoints
never depend on a register. Verbs block, and raise the same errors as the store. Must never know what the
values mean.

A version identifies the value that was read, not the write: two equal values may have the same version. (The
ETag of S3 is a digest of the content.) So a value that must not be mistaken for somebody else's or an older
one must name its writer or include a counter.
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
    """One reading of a register. `version` is only for `swap`."""

    value: bytes
    version: str


class Registers(Protocol):
    def read(self, key: str) -> Held | None:
        """The current value, or None if there is none."""

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        """Writes the value durably if the register still has this version (None: does not exist yet), and
        returns the new version.

        Raises `Conflict` if it has another version; nothing was written then. After `Transient`, the value
        may have been written. A repeat may then conflict with its own value, so read before deciding.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """The keys that start with the prefix, in order. One that was just written may still be missing."""

    def delete(self, key: str) -> None:
        """Removes a register that nobody uses any more. No error if it is missing."""


def check_value(value: bytes) -> None:
    """Raises Rejected for a value that is too large for a register."""
    if len(value) > bounds.REGISTER_BYTES_MAX:
        limit = bounds.size_text(bounds.REGISTER_BYTES_MAX)
        raise Rejected(f"a register value is limited to {limit}; this one has {len(value):,} bytes")


def content_version(value: bytes) -> str:
    """The weakest version that the protocol allows, for stores without versions of their own."""
    return hashlib.sha256(value).hexdigest()
