"""The session folder: where everything lies, who may be here, and how a file appears whole or not at all.

Layout and rules: docs/session-folder.md. Decides nothing about the training.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import files
from orchestrator.core import wire
from orchestrator.core.order import Order
from orchestrator.session.layout import BLOBS, CHECKPOINTS, INCARNATION, LOG, PROGRESS, Layout

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BALLAST_BYTES = 256 * 1024


class AlreadyClaimed(Exception):
    """Another agent lives, or lived, in this folder: leave at once and touch nothing."""


class Folder(Layout):
    """The paths of one session, and what the agent makes of them."""

    @property
    def source(self) -> Path:
        return self.work / "source"

    @property
    def checkpoints(self) -> Path:
        """Where the command saves; what is committed lies in the outbox."""
        return self.work / "checkpoints"

    @property
    def resume(self) -> Path:
        return self.work / "resume"

    @property
    def save_request(self) -> Path:
        return self.work / "save-request"

    @property
    def progress(self) -> Path:
        """Where the command reports; a copy without the secrets lies in the outbox."""
        return self.work / PROGRESS

    @property
    def ballast(self) -> Path:
        """A little room for the result on a full disk."""
        return self.work / "ballast"

    def lay_out(self) -> None:
        """Makes the agent's own folders, and sets a little room aside for the result of a full disk."""
        for path in (self.source, self.checkpoints, self.resume, self.outbox / LOG,
                     self.outbox / BLOBS, self.outbox / CHECKPOINTS):  # fmt: skip
            path.mkdir(parents=True, exist_ok=True)
        write_whole(self.save_request, b"0\n")
        try:
            self.ballast.write_bytes(b"\0" * _BALLAST_BYTES)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def read_order(self) -> Order:
        """Raises ValueError or OSError where there is none that can be understood."""
        return wire.decode(Order, self.order.read_bytes())

    def take_secrets(self) -> dict[str, str]:
        """The secrets' values; their file is gone afterwards."""
        path = self.secrets
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
        path.unlink()
        try:
            values = json.loads(data)
        except ValueError:
            values = None
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError("secrets.json is not an object of texts")  # and its content stays unsaid
        return values


@contextmanager
def alone(folder: Folder, inherited: str | None) -> Iterator[None]:
    """Holds the folder's lock. `inherited` is the number of a descriptor on which the launcher took it.

    Raises AlreadyClaimed while another agent holds it. The lock is released when the last process that
    holds the descriptor is gone: the agent, and its guardian while that still cleans up.
    """
    path = folder.lock
    descriptor = _inherited(path, inherited)
    if descriptor is None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.set_inheritable(descriptor, False)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyClaimed("another agent holds the lock of this session") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _inherited(path: Path, number: str | None) -> int | None:
    if number is None or not number.isdecimal():
        return None
    try:
        same = os.path.samestat(os.fstat(int(number)), path.stat())
    except OSError:
        return None
    return int(number) if same else None


def claim(folder: Folder, incarnation: str) -> None:
    """Makes this incarnation the session's one and only. Raises AlreadyClaimed if there was one before."""
    folder.outbox.mkdir(parents=True, exist_ok=True)
    path = folder.outbox / INCARNATION
    try:
        files.write_new(path, incarnation.encode() + b"\n")
    except FileExistsError:
        raise AlreadyClaimed(f"this session was {path.read_text().strip()}'s already") from None


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """As `orchestrator.files` does it, also where the command has made a folder of that name: it loses
    nothing but the name. Not `durable` is for what the next second replaces anyway."""
    try:
        files.write_whole(path, data, sync=durable)
    except IsADirectoryError:
        path.rename(path.with_name(f".tmp-aside-{path.name}"))
        files.write_whole(path, data, sync=durable)
