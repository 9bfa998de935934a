"""A session folder on this machine: staged whole or not at all, started at most once, read while it runs.

The controller's side of docs/session-folder.md, for every platform whose sessions share this machine's
disk. Decides nothing, starts nothing and knows no process: liveness is the lock, never a pid.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import files
from orchestrator.clock import Clock
from orchestrator.core import bounds, wire
from orchestrator.core.order import Order
from orchestrator.core.session import Sighting
from orchestrator.errors import NameTaken, Rejected
from orchestrator.files import (
    PLAIN,
    Odd,
    allow,
    allow_file,
    copy_file,
    copy_tree,
    draft_folder,
    set_aside,
    sync_folder,
    write_whole,
)
from orchestrator.session.layout import INCARNATION, ORDER, OUTBOX, RESULT, SESSION, Layout
from orchestrator.session.saying import incarnations
from orchestrator.session.staging import Materials, contents

_UNREADABLE = "unreadable"
_LOCK_TRIES = 200
_LOCK_PAUSE_SECONDS = 0.01
_NO_LOCK = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR})


@dataclass(frozen=True)
class SessionFolder(Layout):
    """The platform's folder is the parent of `root`."""

    @classmethod
    def of(cls, platform_folder: Path, session: str) -> SessionFolder:
        """Raises Rejected for a name that is none of ours: it could lead out of the platform's folder."""
        if not SESSION.fullmatch(session):
            raise Rejected(f"{session!r} is not the name of a session")
        return cls(platform_folder / session)

    @property
    def incarnation(self) -> str | None:
        """The id of the agent that started here, the only one ever; None where none has."""
        try:
            data = files.read(self.root, f"{OUTBOX}/{INCARNATION}", bounds.INCARNATION_BYTES_MAX)
        except Odd:
            return _UNREADABLE  # something has started here
        return None if data is None else next(iter(incarnations(data)), _UNREADABLE)

    @property
    def stopped(self) -> bool:
        return self.stop.exists()

    def ordered(self) -> Order | None:
        """The order that was staged here, or None. Raises ValueError for what is no order."""
        try:
            data = files.read(self.root, ORDER, bounds.ORDER_BYTES_MAX)
        except Odd as odd:
            raise ValueError(str(odd)) from odd
        return None if data is None else wire.decode(Order, data)

    # --- staging ----------------------------------------------------------------------------------------

    def stage(self, order: Order, materials: Materials) -> None:
        """Puts everything a session needs in place, by one rename. Replaces what was staged for another
        order of this name and never started."""
        there = self.ordered()
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
            if self.ordered() != order and not self.stopped:  # else: staged or stopped by another meanwhile
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
        set_aside(self.lock)

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
        lock = self.lock
        try:
            return os.open(lock, flags | PLAIN, 0o600)
        except PermissionError:  # a session may take every right away; its owner takes them back
            allow(self.root)
            allow_file(lock)
            return os.open(lock, flags | PLAIN, 0o600)

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
            return os.path.samestat(os.fstat(descriptor), (self.lock).stat())
        except FileNotFoundError:
            return False

    # --- looking ----------------------------------------------------------------------------------------

    def sighting(self) -> Sighting:
        """The incarnation is looked for before the lock, the result after: an agent that had started when the
        lock was found free has died, and what it left by then is all there will ever be."""
        started = self.incarnation is not None
        alive = self.alive()
        with suppress(OSError):  # there is none
            if stat.S_ISREG((self.outbox / RESULT).lstat().st_mode):
                return Sighting.ENDED
        if started:
            return Sighting.RUNNING if alive else Sighting.ENDED
        return Sighting.PENDING if alive else Sighting.ABSENT


def _fill(folder: Path, order: Order, materials: Materials) -> None:
    """Everything of a session that has not started, under a name that nobody looks for. Copies, never links:
    what a session writes into its own files must reach nobody else's."""
    for entry in contents(order, materials):
        target = folder / entry.name
        if isinstance(entry.content, bytes):
            write_whole(target, entry.content)
        elif entry.content.is_dir():
            copy_tree(entry.content, target)
        else:
            copy_file(entry.content, target, 0o400)
