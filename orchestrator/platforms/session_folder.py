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
from orchestrator.core import wire
from orchestrator.core.session import ABSENT, AgentStatus, Observation, Order, Outcome, Sighting
from orchestrator.errors import NameTaken, Rejected
from orchestrator.files import copy_file, copy_tree, draft_folder, set_aside, sync_folder, write_whole
from orchestrator.platforms import reading
from orchestrator.platforms.platform import Materials

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,200}")
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
        text = _read(self.outbox / "incarnation")
        return None if text is None else text.decode(errors="replace").strip()

    @property
    def stopped(self) -> bool:
        return (self.root / "stop").exists()

    def order(self) -> Order | None:
        """What was staged here, or None."""
        data = _read(self.root / "order.json")
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
            descriptor = os.open(self.root / "lock", os.O_RDONLY | _NO_TRICKS)
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
                return os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | _NO_TRICKS, 0o600)
            except FileNotFoundError:
                raise Rejected(f"{self.root.name} is not prepared") from None
            except OSError as error:
                if error.errno not in _NO_LOCK:
                    raise
                self.break_lock()  # a link, a folder, a pipe: no lock of ours
        raise Rejected(f"something in {self.root} puts itself in the place of the lock")

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

    def status(self) -> AgentStatus | None:
        """The agent's last status; None where there is none that can be read."""
        return reading.status(_read(self.outbox / "status.json"))

    def observation(self, *, killed: str | None = None) -> Observation:
        """One reading. `killed`: why the platform killed it, if it did.

        The incarnation is read before the lock, the result after: an agent that had started when the lock
        was found free has died, and what it left by then is all there will ever be.
        """
        incarnation = self.incarnation
        alive = self.alive()
        marker, status = _read(self.outbox / "result.json"), self.status()
        if incarnation is None:
            return Observation(Sighting.PENDING) if alive else ABSENT
        seen = (incarnation,)
        if marker is not None:
            return reading.ended(seen, status, marker)
        if alive:
            return Observation(Sighting.RUNNING, seen, status)
        return Observation(
            Sighting.ENDED, seen, status, ending=Outcome.LOST, detail=killed or "the agent died"
        )


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


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
