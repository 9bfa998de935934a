"""The session folder: where everything is, which agent may use it, and how files are written atomically.

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
from orchestrator.files import flock, make_folder, open_file, remove_file, rename
from orchestrator.session.layout import BLOBS, CHECKPOINTS, INCARNATION, LOG, PROGRESS, Layout

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BALLAST_BYTES = 256 * 1024


class AlreadyClaimed(Exception):
    """Another agent runs, or ran, in this folder: exit at once and touch nothing."""


class Folder(Layout):
    """The paths of one session, and what the agent does with them."""

    @property
    def source(self) -> Path:
        return self.work / "source"

    @property
    def checkpoints(self) -> Path:
        """Where the command saves. Committed checkpoints are in the outbox."""
        return self.work / "checkpoints"

    @property
    def watched(self) -> Path:
        """Copies of what the command saves by itself, before they are committed."""
        return self.work / "watched"

    @property
    def resume(self) -> Path:
        return self.work / "resume"

    @property
    def save_request(self) -> Path:
        return self.work / "save-request"

    @property
    def progress(self) -> Path:
        """Where the command reports. A copy without secrets is in the outbox."""
        return self.work / PROGRESS

    @property
    def ballast(self) -> Path:
        """A file that reserves some disk space, so that the result fits on a full disk."""
        return self.work / "ballast"

    def lay_out(self) -> None:
        """Makes the agent's own folders, and reserves some space for the result on a full disk."""
        for path in (self.source, self.checkpoints, self.watched, self.resume, self.outbox / LOG,
                     self.outbox / BLOBS, self.outbox / CHECKPOINTS):  # fmt: skip
            make_folder(path)
        write_whole(self.save_request, b"0\n")
        try:
            files.write_whole(self.ballast, b"\0" * _BALLAST_BYTES, sync=False)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def read_order(self) -> Order:
        """Raises ValueError or OSError if the order cannot be read."""
        return wire.decode(Order, files.read_plain(self.order))

    def take_secrets(self) -> dict[str, str]:
        """The secrets' values. Removes their file."""
        path = self.secrets
        try:
            data = files.read_plain(path)
        except FileNotFoundError:
            return {}
        remove_file(path)
        try:
            values = json.loads(data)
        except ValueError:
            values = None
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError("secrets.json is not an object of texts")  # never repeat its content
        return values

    def take_store(self) -> bytes | None:
        """What opens the home store for the uplink; None for a session without one. Removes its file, so that
        the training never finds it."""
        try:
            data = files.read_plain(self.store)
        except FileNotFoundError:
            return None
        remove_file(self.store)
        return data if self.uplink.exists() else None

    def take_parcel(self) -> bytes | None:
        """What tells the uplink what to fetch; None if everything was staged. Removes its file, which may
        hold a key."""
        try:
            data = files.read_plain(self.parcel)
        except FileNotFoundError:
            return None
        remove_file(self.parcel)
        return data


@contextmanager
def alone(folder: Folder, inherited: str | None) -> Iterator[None]:
    """Holds the folder's lock. `inherited` is the number of a descriptor on which the launcher took it.

    Raises AlreadyClaimed if another agent holds it. The lock is released when the last process with the
    descriptor is gone: the agent, or its guardian if that still cleans up.
    """
    path = folder.lock
    descriptor = _inherited(path, inherited)
    if descriptor is None:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    os.set_inheritable(descriptor, False)
    try:
        if not flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path):
            raise AlreadyClaimed("another agent holds the lock of this session")
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
    """Makes this incarnation the session's only one. Raises AlreadyClaimed if there was one before."""
    make_folder(folder.outbox)
    path = folder.outbox / INCARNATION
    try:
        files.write_new(path, incarnation.encode() + b"\n")
    except FileExistsError:
        before = (files.read_small(path) or b"unknown").decode(errors="replace").strip()
        raise AlreadyClaimed(f"agent {before} already ran this session") from None


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Like `orchestrator.files.write_whole`, but if the command has made a folder of that name, the folder is
    renamed. `durable=False` is for files that are replaced every second anyway."""
    try:
        files.write_whole(path, data, sync=durable)
    except IsADirectoryError:
        rename(path, path.with_name(f".tmp-aside-{path.name}"))
        files.write_whole(path, data, sync=durable)
