"""The names in a session's folder, and how large its files may be. docs/session-folder.md describes them.

Everyone uses these: the code that stages a session, the agent, and the code that reads the outbox. Ships with
the agent. Reads and writes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import bounds

SESSION = re.compile(r"[a-z0-9][a-z0-9-]{0,200}")  # the name of a session and of its folder

# In the folder, staged before the start.
ORDER, AGENT, BUNDLE, STAGED, INPUTS, SECRETS = (
    "order.json", "agent.pyz", "bundle.tar.gz", "staged", "inputs", "secrets.json",
)  # fmt: skip
UPLINK, STORE = "uplink.pyz", "store.json"  # only where the session ships its own outbox
PARCEL = "parcel.json"  # only where it also fetches the bundle, the inputs and the checkpoint itself
STOP, LOCK, WORK, OUTBOX, SHIPPING = "stop", "lock", "work", "outbox", "shipping"
PROGRAMS = "programs"  # those that the platform puts first in PATH, if any

# In the outbox, and below a store's or a staged checkpoint's root.
INCARNATION, STATUS, RESULT, PROGRESS, LOG = (
    "incarnation", "status.json", "result.json", "progress.jsonl", "log",
)  # fmt: skip
CHECKPOINTS, BLOBS, MANIFEST = "checkpoints", "blobs", "manifest.json"
SEGMENT = re.compile(r"[0-9]{1,9}\.log")
# Files that are written atomically, with the largest size that a reader accepts. The result comes last.
WHOLE = {
    INCARNATION: bounds.INCARNATION_BYTES_MAX,
    STATUS: bounds.STATUS_BYTES_MAX,
    RESULT: bounds.RESULT_BYTES_MAX,
}


def manifest_path(checkpoint: str) -> str:
    return f"{CHECKPOINTS}/{checkpoint}/{MANIFEST}"


def blob_path(sha256: str) -> str:
    return f"{BLOBS}/{sha256}"


def segment_number(name: str) -> int:
    """The number in a log segment's name."""
    return int(name.partition(".")[0])


@dataclass(frozen=True)
class Layout:
    """The paths of one session. `root` is its folder, which may be missing. `outbox_elsewhere`: its outbox,
    where the platform keeps that in another place."""

    root: Path
    outbox_elsewhere: Path | None = None

    @property
    def order(self) -> Path:
        return self.root / ORDER

    @property
    def agent(self) -> Path:
        return self.root / AGENT

    @property
    def bundle(self) -> Path:
        return self.root / BUNDLE

    @property
    def staged(self) -> Path:
        return self.root / STAGED

    @property
    def inputs(self) -> Path:
        return self.root / INPUTS

    @property
    def secrets(self) -> Path:
        return self.root / SECRETS

    @property
    def uplink(self) -> Path:
        return self.root / UPLINK

    @property
    def store(self) -> Path:
        return self.root / STORE

    @property
    def parcel(self) -> Path:
        return self.root / PARCEL

    @property
    def shipping(self) -> Path:
        return self.root / SHIPPING

    @property
    def stop(self) -> Path:
        return self.root / STOP

    @property
    def lock(self) -> Path:
        return self.root / LOCK

    @property
    def work(self) -> Path:
        return self.root / WORK

    @property
    def outbox(self) -> Path:
        return self.outbox_elsewhere or self.root / OUTBOX
