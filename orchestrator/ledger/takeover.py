"""Who controls a database: one process, for as long as it lives; no clock is involved.

The lock is the kernel's (SQLite: flock on a file beside it) or the server's (PostgreSQL: an advisory lock of
one connection). Both are released when the process dies, and not when a laptop sleeps. The fence number grows
with every takeover, so that late writes of an earlier controller are refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, select, text, update
from sqlalchemy.exc import DBAPIError

from orchestrator.errors import AccessDenied, ControllerRunning
from orchestrator.files import tighten
from orchestrator.ledger.database import Database
from orchestrator.ledger.tables import CONTROLLER_ROW, controller, runs

_LOCK = 0x6F726368  # with the schema's hash: several ledgers may share a PostgreSQL database
_KEYS = {"key": _LOCK}
_ATTEMPTS = 20
_ATTEMPT_SECONDS = 0.05
_MARK = 32  # digits


@dataclass(frozen=True)
class Owner:
    """The running controller: the `name` it gave itself, its `pid` on `host`, and `since` in unix seconds."""

    name: str
    pid: int
    host: str
    since: float

    @property
    def mark(self) -> str:
        """Marks its lock, so that nobody takes it for an earlier controller's."""
        return hashlib.sha256(repr((self.name, self.pid, self.host, self.since)).encode()).hexdigest()[:_MARK]

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid} on {self.host})" if self.pid else "one that is just starting"


class Takeover:
    """Control of a database until `release`, or until this process dies. `fence` goes with every write."""

    def __init__(self, fence: int, release: Callable[[], None]) -> None:
        self.fence = fence
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Releases control; the next controller may start at once. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Takeover:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take_over(database: Database, name: str, now: float, home_store: str = "") -> Takeover:
    """Makes this process the controller. Raises ControllerRunning, with its name, if one is running."""
    us = Owner(name, os.getpid(), socket.gethostname(), float(now))
    release = _lock_file(database.path, us) if database.path is not None else _lock_server(database, us)
    if release is None:
        raise ControllerRunning(
            f"a controller of {database.shown} is already running: {_row_owner(database)}; "
            "stop it with `orchestrator down`"
        )
    try:
        return Takeover(_raise_fence(database, us, home_store), release)
    except BaseException:
        release()
        raise


def owner(database: Database) -> Owner | None:
    """Who controls the database now; None if nobody does.

    A controller takes the lock, marks it, and then writes who it is. Until it has, the row names an earlier
    controller: waits up to a second for the new name. A `pid` of 0 says that none came.
    """
    for _ in _attempts():
        mark = _file_mark(database.path) if database.path is not None else _server_mark(database)
        if mark is None:
            return None
        found = _row_owner(database)
        if mark in (found.mark, ""):
            return found
    return Owner("", 0, "", 0.0)


def last_owner(database: Database) -> Owner | None:
    """Who controlled the database last; None if nobody ever did."""
    found = _row_owner(database)
    return found if found.pid else None


def older_store(database: Database) -> str:
    """The home store of runs whose submission names none; empty: no controller has set it yet."""
    query = select(controller.c.older_store).where(controller.c.number == CONTROLLER_ROW)
    with database.read() as connection:
        return str(connection.execute(query).scalar_one())


def _raise_fence(database: Database, us: Owner, home_store: str) -> int:
    row = controller.c.number == CONTROLLER_ROW
    values = {"owner": us.name, "pid": us.pid, "host": us.host, "since": us.since}
    with database.write() as connection:
        connection.execute(update(controller).where(row).values(fence=controller.c.fence + 1, **values))
        if home_store:
            _settle_older_store(connection, home_store)
        return int(connection.execute(select(controller.c.fence).where(row)).scalar_one())


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


def _attempts() -> Iterator[None]:
    """Retries for a moment: a process that only checks the lock, or was just killed, may still hold it."""
    for _ in range(_ATTEMPTS):
        yield
        threading.Event().wait(_ATTEMPT_SECONDS)


# --- SQLite: flock on a file beside the database ---------------------------------------------------------


def _lock_path(database: Path) -> Path:
    return database.with_name(database.name + ".lock")


def _lock_file(database: Path, us: Owner) -> Callable[[], None] | None:
    path = _lock_path(database)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        tighten(path)  # anyone who can open it can hold it for ever
    except OSError as error:
        raise AccessDenied(
            f"{path} cannot be opened for writing ({error.strerror}): make its folder writable, or set "
            "ORCHESTRATOR_HOME to one that is",
            backend="ledger",
            operation="take over",
        ) from error
    with ExitStack() as opened:  # also after a full disk, no lock may stay
        opened.callback(os.close, descriptor)
        for _ in _attempts():
            if _flock(descriptor, fcntl.LOCK_EX):
                os.pwrite(descriptor, us.mark.encode(), 0)
                # The file stays: without it, two processes could lock two files.
                return opened.pop_all().close
    return None


def _file_mark(database: Path) -> str | None:
    """The mark of the lock, empty if an older version holds it; None if nobody holds it."""
    try:
        descriptor = os.open(_lock_path(database), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _flock(descriptor, fcntl.LOCK_SH):
            return None
        return os.pread(descriptor, _MARK, 0).decode("ascii", "replace")
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- PostgreSQL: an advisory lock of one connection ------------------------------------------------------


def _lock_server(database: Database, us: Owner) -> Callable[[], None] | None:
    connection = database.dedicated()
    try:
        _notice_dead_hosts(connection)
        connection.execute(text(_NAME_CONNECTION), {"name": _NAMED + us.mark})
        for _ in _attempts():
            if connection.execute(text(_TRY_LOCK), _KEYS).scalar():
                return partial(_unlock_server, connection)
    except BaseException:
        connection.close()
        raise
    connection.close()
    return None


def _unlock_server(connection: Connection) -> None:
    with suppress(DBAPIError), connection:  # a broken connection has released it already
        connection.execute(text("SELECT pg_advisory_unlock_all()"))


def _notice_dead_hosts(connection: Connection) -> None:
    """If a controller's machine loses power, TCP alone would keep its lock for two hours."""
    for setting in ("tcp_keepalives_idle = 60", "tcp_keepalives_interval = 15", "tcp_keepalives_count = 4"):
        connection.execute(text(f"SET {setting}"))


def _server_mark(database: Database) -> str | None:
    """The mark of the lock, empty if an older version holds it; None if nobody holds it."""
    with database.read() as connection:
        found = connection.execute(text(_HOLDER), _KEYS).first()
    if found is None:
        return None
    name = str(found[0] or "")
    return name.removeprefix(_NAMED) if name.startswith(_NAMED) else ""


_SCHEMA = "(hashtext(current_schema()) & 2147483647)"
_TRY_LOCK = f"SELECT pg_try_advisory_lock(:key, {_SCHEMA})"
_NAMED = "orchestrator "
_NAME_CONNECTION = "SELECT set_config('application_name', :name, false)"
_HOLDER = f"""
    SELECT activity.application_name
    FROM pg_locks AS lock LEFT JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
    WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = :key AND objid = {_SCHEMA}
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
