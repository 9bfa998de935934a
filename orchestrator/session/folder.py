"""A session folder on this machine: staged atomically, started at most once, read while it runs.

The controller's side of docs/session-folder.md, for every platform whose sessions share this machine's
disk. Decides nothing, starts nothing and knows no process: a session is alive if its lock is held.
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
    Odd,
    allow,
    allow_file,
    copy_file,
    copy_tree,
    draft_folder,
    flock,
    look,
    make_folder,
    open_file,
    rename,
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
        """Raises Rejected if this is not a session's name: it could lead out of the platform's folder."""
        if not SESSION.fullmatch(session):
            raise Rejected(f"{session!r} is not the name of a session")
        return cls(platform_folder / session)

    @property
    def incarnation(self) -> str | None:
        """The id of the only agent that ever started here; None if none has."""
        try:
            data = files.read(self.root, f"{OUTBOX}/{INCARNATION}", bounds.INCARNATION_BYTES_MAX)
        except Odd:
            return _UNREADABLE  # something has started here
        return None if data is None else next(iter(incarnations(data)), _UNREADABLE)

    @property
    def stopped(self) -> bool:
        return look(self.stop) is not None

    def ordered(self) -> Order | None:
        """The order that was staged here, or None. Raises ValueError if it cannot be read."""
        try:
            data = files.read(self.root, ORDER, bounds.ORDER_BYTES_MAX)
        except Odd as odd:
            raise ValueError(str(odd)) from odd
        return None if data is None else wire.decode(Order, data)

    # --- staging ----------------------------------------------------------------------------------------

    def stage(self, order: Order, materials: Materials) -> None:
        """Puts everything that a session needs in place with one rename. Replaces what was staged for
        another order of this name, if that never started."""
        if not self.reclaim():
            raise Rejected(
                f"there is a link on the way to {self.root}, and it is not followed: remove the link"
            )
        there = self.ordered()
        if there == order or (there is None and look(self.root) is not None):
            return  # already staged, or stopped before that and never to start
        parent = self.root.parent
        make_folder(parent, 0o700)
        try:
            with draft_folder(parent, 0o700) as draft:
                _fill(draft, order, materials)
                if there is not None:
                    self._withdraw()
                rename(draft, self.root)
        except OSError as error:
            # Otherwise another has just staged or stopped it. A write names no file; a folder tells the disk.
            if self.ordered() != order and not self.stopped:
                error.filename = error.filename or str(parent)
                raise
        sync_folder(parent)

    def _withdraw(self) -> None:
        with self.locked() as held:
            if held is None or self.incarnation is not None:
                raise NameTaken(f"{self.root.name} was started with another order")
            if not self.stopped:
                self.remove()

    def reclaim(self) -> bool:
        """Removes a link or a file that a session has put in the place of its folder, never what it points
        at. False if there is a link on the way there: then nothing can be staged or read there."""
        try:
            found = look(self.root)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return False
        if found is not None and not stat.S_ISDIR(found.st_mode):
            self.remove()
        return True

    def remove(self) -> None:
        """Removes the folder: first its name, then its contents."""
        set_aside(self.root)

    # --- the lock ---------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """Whether an agent (or its launcher) holds the lock. If a session has replaced the lock with a pipe
        or a link, nobody holds it."""
        try:
            descriptor = self._opened_lock(os.O_RDONLY)
        except OSError as error:
            if error.errno not in _NO_LOCK:
                raise
            return False
        try:
            return not flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, self.lock)
        finally:
            os.close(descriptor)

    def break_lock(self) -> None:
        """Removes the lock from its holder. Call this only when no process of the session can be found any
        more: then a process hidden by the session holds it, which must not block us forever."""
        set_aside(self.lock)

    @contextmanager
    def locked(self, clock: Clock | None = None) -> Iterator[int | None]:
        """The descriptor of the lock, held exclusively; None if somebody else holds it.

        With a clock it tries for two seconds, because another process may hold the lock for a moment just to
        look at it. Closing the descriptor releases the lock, unless a child has inherited it.
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
                if error.errno not in _NO_LOCK or not self.reclaim():
                    raise
                self.break_lock()  # a link, a folder or a pipe instead of our lock
        raise Rejected(f"something in {self.root} keeps replacing the lock")

    def _opened_lock(self, flags: int) -> int:
        lock = self.lock
        try:
            return open_file(lock, flags)
        except PermissionError:  # a session may remove all permissions; restore them
            allow(self.root)
            allow_file(lock)
            return open_file(lock, flags)

    def _take(self, descriptor: int, clock: Clock | None) -> bool:
        for _ in range(_LOCK_TRIES if clock else 1):
            if flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self.lock):
                return self._is_current(descriptor)
            if clock is None or self.incarnation is not None:
                return False
            clock.wait(threading.Event(), _LOCK_PAUSE_SECONDS)
        return False

    def _is_current(self, descriptor: int) -> bool:
        """Whether this is still the folder's lock: it may have been removed while we waited."""
        found = look(self.lock)
        return found is not None and os.path.samestat(os.fstat(descriptor), found)

    # --- looking ----------------------------------------------------------------------------------------

    def sighting(self) -> Sighting:
        """Reads the incarnation before the lock and the result after it. If an agent had started and the lock
        is free, that agent has died, and nothing more will appear. An agent with an uplink lives on after its
        result, until that is shipped."""
        started = self.incarnation is not None
        alive = self.alive()
        with suppress(OSError):  # it lies behind a link
            found = look(self.outbox / RESULT)
            if found is not None and stat.S_ISREG(found.st_mode):
                ships = alive and look(self.uplink) is not None
                return Sighting.RUNNING if ships else Sighting.ENDED
        if started:
            return Sighting.RUNNING if alive else Sighting.ENDED
        return Sighting.PENDING if alive else Sighting.ABSENT


def _fill(folder: Path, order: Order, materials: Materials) -> None:
    """Fills a draft folder with everything for a session. Copies and never links, so that a session cannot
    change anybody else's files through its own."""
    for entry in contents(order, materials, here=True):
        target = folder / entry.name
        if isinstance(entry.content, bytes):
            write_whole(target, entry.content)
        elif entry.content.is_dir():
            copy_tree(entry.content, target)
        else:
            copy_file(entry.content, target, 0o400)
