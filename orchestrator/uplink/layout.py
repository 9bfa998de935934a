"""The keys that an uplink writes in a run's home store, and the key of the run's fence. No I/O.

For the keys of checkpoints see `orchestrator.stores.checkpoints`. Below `runs/<run>/`:

    fence                                       register
    sessions/<session>/claim                     register
    sessions/<session>/heartbeat                 register
    sessions/<session>/pins                      register, which only the engine writes
    sessions/<session>/result.json/<sha256>      object, which the heartbeat names
    sessions/<session>/<name>/<offset>-<sha256>  objects: pieces of progress.jsonl, log/000001.log, …
    sessions/<session>/parcel/<sha256>           objects, which only the engine writes: see parcel.py
    sessions/<session>/parcel/key                object, which only the engine writes, for itself
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.session.layout import LOG, PROGRESS, RESULT

PIECE_BYTES_MAX = 1 << 20
SHA256 = re.compile(r"[0-9a-f]{64}")
_PIECE = re.compile(rf"({re.escape(PROGRESS)}|{LOG}/[0-9]{{1,9}}\.log)/([0-9]{{12,16}})-({SHA256.pattern})")


def fence_key(run: str) -> str:
    return f"runs/{run}/fence"


@dataclass(frozen=True)
class SessionKeys:
    """The keys of one session."""

    run: str
    session: str

    @property
    def root(self) -> str:
        return f"runs/{self.run}/sessions/{self.session}/"

    @property
    def claim(self) -> str:
        return f"{self.root}claim"

    @property
    def heartbeat(self) -> str:
        return f"{self.root}heartbeat"

    @property
    def pins(self) -> str:
        return f"{self.root}pins"

    @property
    def parcel(self) -> str:
        return f"{self.root}parcel/"

    @property
    def parcel_key(self) -> str:
        return f"{self.parcel}key"

    def parcel_part(self, sha256: str) -> str:
        return f"{self.parcel}{sha256}"

    def result(self, sha256: str) -> str:
        return f"{self.root}{RESULT}/{sha256}"

    def piece(self, name: str, offset: int, sha256: str) -> str:
        """The key of a piece of an outbox file, from this offset."""
        return f"{self.root}{name}/{offset:012d}-{sha256}"

    def parse_piece(self, key: str) -> tuple[str, int, str] | None:
        """The name, offset and sha256 in a piece's key; None if it is not such a key."""
        match = _PIECE.fullmatch(key.removeprefix(self.root))
        return None if match is None else (match[1], int(match[2]), match[3])
