"""A session folder on this machine: staged whole or not at all, started at most once, read while it runs.

The controller's side of docs/session-folder.md, for every platform whose sessions share this machine's
disk. Decides nothing, starts nothing and knows no process: liveness is the lock, never a pid.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core import bounds, wire
from orchestrator.core.order import Order, Outcome
from orchestrator.core.session import ABSENT, Observation, Sighting
from orchestrator.errors import NameTaken, Rejected
from orchestrator.files import (
    allow,
    allow_file,
    copy_file,
    copy_tree,
    draft_folder,
    set_aside,
    sync_folder,
    write_whole,
)
from orchestrator.platforms import reading
from orchestrator.platforms.mirror import WHOLE
from orchestrator.platforms.platform import Materials
from orchestrator.session import files
from orchestrator.session.files import Odd

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,200}")
_INCARNATION, _UNREADABLE = "outbox/incarnation", "unreadable"
_LOCK_TRIES = 200
_LOCK_PAUSE_SECONDS = 0.01
_NO_TRICKS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_LOCK = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR})


@dataclass(frozen=True)
class SessionFolder:
    """`root` is the session's folder, which need not exist; the platform's folder is its parent."""

    root: Path

    @classmethod
    def of(cls, platform_folder: Path, session: str) -> SessionFolder:
        """Raises Rejected for a name that is none of ours: it could lead out of the platform's folder."""
        if not NAME.fullmatch(session):
            raise Rejected(f"{session!r} is not the name of a session")
        return cls(platform_folder / session)

    @property
    def outbox(self) -> Path:
        return self.root / "outbox"

    @property
    def incarnation(self) -> str | None:
        """The id of the agent that started here, the only one ever; None where none has."""
        try:
            data = files.read(self.root, _INCARNATION, bounds.INCARNATION_BYTES_MAX)
        except Odd:
            return _UNREADABLE  # something has started here
        return None if data is None else reading.incarnation(data) or _UNREADABLE

    @property
    def stopped(self) -> bool:
        return (self.root / "stop").exists()

    def order(self) -> Order | None:
        """What was staged here, or None. Raises ValueError for what is no order."""
        try:
            data = files.read(self.root, "order.json", bounds.ORDER_BYTES_MAX)
        except Odd as odd:
            raise ValueError(str(odd)) from odd
        return None if data is None else wire.decode(Order, data)

    # --- staging ----------------------------------------------------------------------------------------

    def stage(self, order: Order, materials: Materials) -> None:
        """Puts everything a session needs in place, by one rename. Replaces what was staged for another
        order of this name and never started."""
        there = self.order()
        if there == order or (there is None and self.root.exists()):
            return  # staged already, or stopped before it was: it will never start
        parent = self.root.parent
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with draft_folder(parent, 0o700) as draft:
                _fill(draft, order, materials)
                if there is not None:
                    self._withdraw()
                draft.rename(self.root)
        except OSError:
            if self.order() != order and not self.stopped:  # else: staged or stopped by another meanwhile
                raise
        sync_folder(parent)

    def _withdraw(self) -> None:
        with self.locked() as held:
            if held is None or self.incarnation is not None:
                raise NameTaken(f"{self.root.name} was started with another order")
            if not self.stopped:
                self.remove()

    def remove(self) -> None:
        """Takes the folder away: at once under its name, then its contents."""
        set_aside(self.root)

    # --- the lock ---------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """Whether an agent (or its launcher) holds the lock. What is no lock (a session may have put a pipe
        or a link there) is held by nobody."""
        try:
            descriptor = self._opened_lock(os.O_RDONLY)
        except OSError as error:
            if error.errno not in _NO_LOCK:
                raise
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def break_lock(self) -> None:
        """Takes the lock away from whoever holds it. Only once no process of the session is left: it is then
        held by something that the session has hidden, and that must not keep it for ever."""
        set_aside(self.root / "lock")

    @contextmanager
    def locked(self, clock: Clock | None = None) -> Iterator[int | None]:
        """The descriptor of the lock, held exclusively; None where somebody else keeps it.

        With a clock it tries for two seconds, so that another's momentary look at the lock is not taken
        for a living agent. Closing the descriptor releases the lock, unless a child has inherited it.
        """
        descriptor = self._open_lock()
        try:
            yield descriptor if self._take(descriptor, clock) else None
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int:
        for _ in range(2):
            try:
                return self._opened_lock(os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                raise Rejected(f"{self.root.name} is not prepared") from None
            except OSError as error:
                if error.errno not in _NO_LOCK:
                    raise
                self.break_lock()  # a link, a folder, a pipe: no lock of ours
        raise Rejected(f"something in {self.root} puts itself in the place of the lock")

    def _opened_lock(self, flags: int) -> int:
        lock = self.root / "lock"
        try:
            return os.open(lock, flags | _NO_TRICKS, 0o600)
        except PermissionError:  # a session may take every right away; its owner takes them back
            allow(self.root)
            allow_file(lock)
            return os.open(lock, flags | _NO_TRICKS, 0o600)

    def _take(self, descriptor: int, clock: Clock | None) -> bool:
        for _ in range(_LOCK_TRIES if clock else 1):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if clock is None or self.incarnation is not None:
                    return False
                clock.wait(threading.Event(), _LOCK_PAUSE_SECONDS)
            else:
                return self._is_current(descriptor)
        return False

    def _is_current(self, descriptor: int) -> bool:
        """Whether the lock is still this folder's: it may have been taken away while we waited."""
        try:
            return os.path.samestat(os.fstat(descriptor), (self.root / "lock").stat())
        except FileNotFoundError:
            return False

    # --- reading ----------------------------------------------------------------------------------------

    def observation(self, *, killed: str | None = None) -> Observation:
        """One reading. `killed`: why the platform killed it, if it did.

        The incarnation is read before the lock, the result after: an agent that had started when the lock
        was found free has died, and what it left by then is all there will ever be.
        """
        notes: list[str] = []
        incarnation = self._small("incarnation", notes)
        alive = self.alive()
        marker, data = self._small("result.json", notes), self._small("status.json", notes)
        status, told = reading.status(data), tuple(notes)
        if data is not None and status is None:
            told += ("outbox/status.json is no status: it was not read",)
        if incarnation is None and not told:
            return Observation(Sighting.PENDING) if alive else ABSENT
        found = reading.incarnation(incarnation)
        seen = () if found is None else (found,)
        if marker is not None:
            return reading.ended(seen, status, marker, told)
        if alive:
            return Observation(Sighting.RUNNING, seen, status, notes=told)
        why = killed or "the agent died"
        return Observation(Sighting.ENDED, seen, status, ending=Outcome.LOST, detail=why, notes=told)

    def _small(self, name: str, notes: list[str]) -> bytes | None:
        """One of the outbox's whole files; None, and a note, where something else is in its place."""
        try:
            return files.read(self.root, f"outbox/{name}", WHOLE[name])
        except Odd as odd:
            notes.append(f"{odd}: it was not read")
            return None


def _fill(folder: Path, order: Order, materials: Materials) -> None:
    """Everything of a session that has not started, under a name that nobody looks for. Copies, never links:
    what a session writes into its own files must reach nobody else's."""
    copy_file(materials.agent, folder / "agent.pyz", 0o400)
    copy_file(materials.bundle, folder / "bundle.tar.gz", 0o400)
    if order.resume is not None:
        resume = materials.resume
        if resume is None or not (resume / "checkpoints" / order.resume / "manifest.json").is_file():
            raise Rejected(f"the order resumes at {order.resume}, the materials do not hold it")
        copy_tree(resume / "checkpoints" / order.resume, folder / "staged" / "checkpoints" / order.resume)
        copy_tree(resume / "blobs", folder / "staged" / "blobs")
    if materials.inputs is not None:
        copy_tree(materials.inputs, folder / "inputs")
    if materials.secrets:
        write_whole(folder / "secrets.json", json.dumps(dict(materials.secrets)).encode())
    write_whole(folder / "order.json", wire.encode(order))
