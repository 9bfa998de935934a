"""Who controls a database: one process, for as long as it lives; no clock is involved.

The lock is the kernel's (SQLite) or the server's (PostgreSQL), and both release it when the process dies.
The fence number grows with every takeover, so that late writes of an earlier controller are refused. So a
controller whose lock was released too early, or who does not know yet that it was, changes nothing more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection, select, update

from orchestrator.errors import BackendError, ControllerRunning, Fenced
from orchestrator.ledger import filelock, serverlock
from orchestrator.ledger.database import Database
from orchestrator.ledger.filelock import FileLock, FileStandby
from orchestrator.ledger.lock import Held, Owner, Standby, attempts
from orchestrator.ledger.migration import check_current
from orchestrator.ledger.serverlock import ServerLock, ServerStandby
from orchestrator.ledger.tables import CONTROLLER_ROW, Damaged, controller, runs

Lock = FileLock | ServerLock


class Takeover:
    """Control of a database until `release`, or until this process dies. `fence` goes with every write."""

    def __init__(self, database: Database, lock: Lock, us: Owner, fence: int) -> None:
        self.fence = fence
        self._database = database
        self._lock = lock
        self._us = us

    @property
    def owner(self) -> Owner:
        """This controller, as others see it."""
        return self._us

    @property
    def may_be_lost(self) -> bool:
        """Whether the lock can end before this process does, as with a server."""
        return self._database.path is None

    def keep(self) -> bool:
        """To call every second or so: without that, a standby takes over. False if the lock was gone, and has
        been taken again before anybody else took it.

        Raises Fenced if another controller has taken over, and Transient if the server does not answer.
        """
        held = self._lock.keep()
        if held is Held.ALWAYS:
            return True
        if held is Held.OTHERS:
            raise self._fenced()
        try:
            self.confirm()
        except Fenced:  # somebody took over, and has left since
            self._lock.release()
            raise
        return False

    def confirm(self) -> None:
        """Raises Fenced if another controller has taken over."""
        query = select(controller.c.fence).where(controller.c.number == CONTROLLER_ROW)
        with self._database.read() as connection:
            current = int(connection.execute(query).scalar_one())
        if current != self.fence:
            raise self._fenced()

    def tell(self, text: str) -> None:
        """Keeps a text for the next controllers. Nothing is changed if another one has taken over."""
        mine = controller.c.fence == self.fence
        with self._database.write() as connection:
            connection.execute(update(controller).where(mine).values(alike=text))

    def _fenced(self) -> Fenced:
        other = _row_owner(self._database)
        who = "another controller" if other == self._us else f"another controller, {other},"
        return Fenced(f"{who} has taken over; this one decides nothing more. Sessions continue")

    def release(self) -> None:
        """Releases control; the next controller may start at once. A second call does nothing."""
        self._lock.release()

    def __enter__(self) -> Takeover:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Waiting:
    """This process in the line for control, until `close`. The line has no order: who asks first gets it."""

    def __init__(self, database: Database, name: str, now: float, taken: Callable[[Takeover], None]) -> None:
        self._database = database
        self._name = name
        self._told = taken
        us = _us(name, now)
        path = database.path
        self._place = ServerStandby(database, us) if path is None else FileStandby(path, us)

    def attempt(self, now: float, monotonic: float, home_store: str = "") -> Takeover | None:
        """Control, if nobody has it. To call about twice a second. With a server, takes control from a
        controller that is frozen, too.

        Raises Transient if the server does not answer, and InputError if a newer version has upgraded the
        ledger.
        """
        us = _us(self._name, now)
        lock = self._place.attempt(us, monotonic)
        if lock is None:
            return None
        try:
            check_current(self._database)  # another version may have upgraded it meanwhile
        except BaseException:
            lock.release()
            raise
        taken = _taken(self._database, lock, us, home_store)
        self._told(taken)
        return taken

    def close(self) -> None:
        self._place.close()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def take_over(database: Database, name: str, now: float, home_store: str = "") -> Takeover:
    """Makes this process the controller. Raises ControllerRunning, with its name, if one is running."""
    us = _us(name, now)
    lock: Lock = ServerLock(database) if database.path is None else FileLock(database.path)
    if not lock.take(us):
        raise ControllerRunning(
            f"a controller of {database.shown} is already running: {_row_owner(database)}; "
            "stop it with `orchestrator down`, or wait for your turn with `orchestrator up --standby`"
        )
    return _taken(database, lock, us, home_store)


def _us(name: str, now: float) -> Owner:
    return Owner(name, os.getpid(), socket.gethostname(), float(now))


def _taken(database: Database, lock: Lock, us: Owner, home_store: str) -> Takeover:
    try:
        return Takeover(database, lock, us, _raise_fence(database, us, home_store))
    except BaseException:
        lock.release()
        raise


def owner(database: Database) -> Owner | None:
    """Who controls the database now; None if nobody does.

    A controller takes the lock, marks it, and then writes who it is. Until it has, the row names an earlier
    controller: waits up to a second for the new name. A `pid` of 0 says that none came.
    """
    path = database.path
    marked = partial(serverlock.mark, database) if path is None else partial(filelock.mark, path)
    for _ in attempts():
        mark = marked()
        if mark is None:
            return None
        found = _row_owner(database)
        if mark in (found.mark, ""):
            return found
    return Owner("", 0, "", 0.0)


def standbys(database: Database) -> tuple[Standby, ...]:
    """The controllers that wait for their turn."""
    if database.path is None:
        return serverlock.standbys(database)
    return filelock.standbys(database.path, socket.gethostname())


def told(database: Database) -> str:
    """What the last controller told the others; empty if none ever did."""
    with database.read() as connection:
        return str(connection.execute(select(controller.c.alike)).scalar_one())


def last_owner(database: Database) -> Owner | None:
    """Who controlled the database last; None if nobody ever did."""
    found = _row_owner(database)
    return found if found.pid > 0 else None


def older_store(database: Database) -> str:
    """The home store of runs whose submission names none; empty: no controller has set it yet."""
    query = select(controller.c.older_store).where(controller.c.number == CONTROLLER_ROW)
    with database.read() as connection:
        return str(connection.execute(query).scalar_one())


def _raise_fence(database: Database, us: Owner, home_store: str) -> int:
    row = controller.c.number == CONTROLLER_ROW
    values = {"owner": us.name, "pid": us.pid, "host": us.host, "since": us.since}
    with database.write() as connection:
        if database.path is None:
            serverlock.end_stuck(connection)
        connection.execute(update(controller).where(row).values(fence=controller.c.fence + 1, **values))
        if home_store:
            _settle_older_store(connection, home_store)
        fence = connection.execute(select(controller.c.fence).where(row)).scalar_one()
        if isinstance(fence, Damaged):
            raise BackendError(
                f"the ledger {database.shown} is damaged: the number of its controller is unreadable "
                f"({fence.seen}); `orchestrator restore` brings back a backup",
                backend="ledger",
            )
        return int(fence)


def _settle_older_store(connection: Connection, home_store: str) -> None:
    nameless = runs.c.store == ""
    if connection.execute(select(runs.c.run).where(nameless).limit(1)).first() is None:
        return
    unsaid = controller.c.older_store == ""
    connection.execute(update(controller).where(unsaid).values(older_store=home_store))
    said = select(controller.c.older_store).where(controller.c.number == CONTROLLER_ROW).scalar_subquery()
    connection.execute(update(runs).where(nameless).values(store=said))


def _row_owner(database: Database) -> Owner:
    c = controller.c
    with database.read() as connection:
        found = connection.execute(
            select(c.owner, c.pid, c.host, c.since).where(c.number == CONTROLLER_ROW)
        ).one()
    return Owner(found.owner, found.pid, found.host, found.since)
