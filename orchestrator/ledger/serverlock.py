"""The lock of a ledger in PostgreSQL: an advisory lock of one connection, and who waits for it.

The server releases it when the connection ends. A process that dies closes its connection. A machine that is
cut off or has lost power is noticed by TCP (`database.LOST_SECONDS`). A frozen process is noticed by its
heartbeat alone: the holder asks something every second, and pg_stat_activity has the time of that by the
server's clock. A standby that has seen none for FROZEN_SECONDS, by the server's clock and by its own, ends
the holder's connection. All this decides only how fast a takeover is; the fence makes sure that nothing is
written twice. Knows no fence, and of the tables one name.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from orchestrator.errors import Transient
from orchestrator.ledger.database import Database
from orchestrator.ledger.lock import (
    ATTEMPT_SECONDS,
    ATTEMPTS,
    HOST_CHARS,
    MARK,
    Held,
    Owner,
    Standby,
    attempts,
)

FROZEN_SECONDS = 6.0  # without a heartbeat, which comes every second
_LOCK = 0x6F726368  # with the schema's hash: several ledgers may share a PostgreSQL database
_KEYS = {"key": _LOCK}


class ServerLock:
    """The lock for one process, from `take` to `release`. Safe to use from several threads."""

    def __init__(self, database: Database, connection: Connection | None = None) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._connection = connection
        self._us: Owner | None = None
        self._released = False

    def take(self, us: Owner, *, looks: int = ATTEMPTS) -> bool:
        """Takes it, unless another process has it."""
        with self._guard:
            self._us = us
            connection = self._connection or self._database.dedicated()
            taken = False
            try:
                if self._connection is None:  # before it has the lock, so that nobody takes it for another's
                    _name(connection, us)
                for _ in attempts(looks):
                    if connection.execute(text(_TRY_LOCK), _KEYS).scalar():
                        _name(connection, us)
                        taken = True
                        break
            finally:
                if not taken and self._connection is None:
                    connection.close()
            if taken:
                self._connection = connection
            return taken

    def keep(self) -> Held:
        """The heartbeat. If the connection has ended, takes the lock again on another one, if it can.

        Raises Transient if the server does not answer, or has not noticed yet that the connection has ended.
        """
        with self._guard:
            assert self._us is not None
            if self._released:
                return Held.ALWAYS
            if self._connection is not None:
                with suppress(DBAPIError):
                    self._connection.execute(text(_BEAT))
                    return Held.ALWAYS
                _end(self._connection)
                self._connection = None
            return self._again(self._us)

    def _again(self, us: Owner) -> Held:
        connection = self._database.dedicated()
        try:
            _name(connection, us)
            if connection.execute(text(_TRY_LOCK), _KEYS).scalar():
                self._connection = connection
                return Held.AGAIN
            found = _holder(connection)
            if found is None or found.mark == us.mark:
                if found is not None:  # our own broken connection, of which the server does not know yet
                    found.end(connection)
                raise Transient(
                    f"the lock of the ledger {self._database.shown} is not free yet", backend="ledger"
                )
            return Held.OTHERS
        except DBAPIError as error:
            reason = f"the ledger {self._database.shown} does not answer"
            raise Transient(reason, backend="ledger", operation="keep") from error
        finally:
            if self._connection is not connection:
                _end(connection)

    def release(self) -> None:
        with self._guard:
            connection, self._connection, self._released = self._connection, None, True
            if connection is not None:
                with suppress(DBAPIError):  # a broken connection has released it already
                    connection.execute(text("SELECT pg_advisory_unlock_all()"))
                _end(connection)


class ServerStandby:
    """This process in the line for the lock, as the name of its connection says, until `close`."""

    def __init__(self, database: Database, us: Owner) -> None:
        self._database = database
        self._us = us
        self._connection: Connection | None = None
        self._seen: _Holder | None = None
        self._seen_at = 0.0

    def attempt(self, us: Owner, monotonic: float) -> ServerLock | None:
        """The lock, if it is free. Ends the connection of a holder that has been frozen for FROZEN_SECONDS.
        Raises Transient if the server does not answer."""
        try:
            connection = self._connected()
            if self._ends_frozen(connection, monotonic):
                threading.Event().wait(ATTEMPT_SECONDS)  # the server ends it
            lock = ServerLock(self._database, connection)
            if lock.take(us, looks=1):
                self._connection = None
                return lock
        except DBAPIError as error:
            self.close()
            reason = f"the ledger {self._database.shown} does not answer"
            raise Transient(reason, backend="ledger", operation="wait") from error
        return None

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.dedicated()
            values = {"prefix": _WAITS, "who": f" {self._us.pid} {self._us.host[:HOST_CHARS]}"}
            self._connection.execute(text(_NAME_WAITING), values)
        return self._connection

    def _ends_frozen(self, connection: Connection, monotonic: float) -> bool:
        found = _holder(connection)
        if found is None or found.beat != (self._seen.beat if self._seen is not None else None):
            self._seen, self._seen_at = found, monotonic
            return False
        watched = monotonic - self._seen_at
        return found.frozen_for(FROZEN_SECONDS) and watched >= FROZEN_SECONDS and found.end(connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._seen = None
        if connection is not None:
            _end(connection)


@dataclass(frozen=True)
class _Holder:
    """The connection that holds the lock. `beat`: which connection, and when it last asked something, by the
    server's clock. `seconds_ago`: how long ago its last heartbeat was; None: it never had one, as in an older
    version, or this user may not know."""

    mark: str
    beat: tuple[Any, ...]
    seconds_ago: float | None

    def frozen_for(self, seconds: float) -> bool:
        return self.seconds_ago is not None and self.seconds_ago >= seconds

    def end(self, connection: Connection) -> bool:
        """Ends it, if it has asked nothing since. False if this user may not."""
        pid, start, asked_at = self.beat
        try:
            given = {"pid": pid, "start": start, "asked_at": asked_at}
            return bool(connection.execute(text(_END), given).scalar())
        except DBAPIError as error:
            if connection.invalidated or getattr(error.orig, "sqlstate", None) != "42501":
                raise
            return False


def mark(database: Database) -> str | None:
    """The mark of the lock, empty if an older version holds it; None if nobody holds it."""
    with database.read() as connection:
        found = _holder(connection)
    return None if found is None else found.mark


def standbys(database: Database) -> tuple[Standby, ...]:
    """Who waits for the lock, the longest first."""
    with database.read() as connection:
        rows = connection.execute(text(_WAITING), {"prefix": _WAITS}).all()
    found = []
    for name, since, silent in rows:
        pid, _, host = str(name).partition(" ")
        if pid.isdecimal():
            found.append(Standby(int(pid), host, float(since), max(0.0, float(silent or 0.0))))
    return tuple(found)


def end_stuck(connection: Connection) -> None:
    """Ends transactions that have locked the controller's row and do nothing: of a controller that froze in
    one. Without this, a takeover would wait for it as long as it is frozen."""
    with suppress(DBAPIError), connection.begin_nested():  # of another user: the takeover waits
        connection.execute(text(_END_STUCK), {"seconds": FROZEN_SECONDS / 2.0})


def _holder(connection: Connection) -> _Holder | None:
    found = connection.execute(text(_HOLDER), _KEYS).first()
    if found is None:
        return None
    pid, start, asked_at, seconds_ago, name, beats = found
    given = str(name or "")
    return _Holder(
        given.removeprefix(_NAMED)[:MARK] if given.startswith(_NAMED) else "",
        (pid, start, asked_at),
        float(seconds_ago) if beats and seconds_ago is not None else None,
    )


def _name(connection: Connection, us: Owner) -> None:
    connection.execute(text(_NAME_CONNECTION), {"name": _NAMED + us.mark})
    connection.execute(text(_BEAT))


def _end(connection: Connection) -> None:
    with suppress(DBAPIError, OSError):
        connection.close()


_SCHEMA = "(hashtext(current_schema()) & 2147483647)"
_HERE = "(SELECT oid FROM pg_database WHERE datname = current_database())"
_TRY_LOCK = f"SELECT pg_try_advisory_lock(:key, {_SCHEMA})"
_BEAT = "SELECT 1 AS orchestrator_beats"
_NAMED = "orchestrator "
_WAITS = "orchestrator waits "
_NAME_CONNECTION = "SELECT set_config('application_name', :name, false)"
_NAME_WAITING = (
    f"SELECT set_config('application_name', CAST(:prefix AS text) || to_hex({_SCHEMA}) || :who, false)"
)
_HOLDER = f"""
    SELECT lock.pid, activity.backend_start, activity.state_change,
           EXTRACT(epoch FROM clock_timestamp() - activity.state_change), activity.application_name,
           activity.query LIKE '%orchestrator_beats%'
    FROM pg_locks AS lock LEFT JOIN pg_stat_activity AS activity ON activity.pid = lock.pid
    WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = :key AND objid = {_SCHEMA}
      AND database = {_HERE}
"""
_END = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = :pid AND backend_start = :start AND state_change = :asked_at
"""
_WAITING = f"""
    SELECT substr(application_name, length(:prefix) + length(to_hex({_SCHEMA})) + 2),
           EXTRACT(epoch FROM backend_start), EXTRACT(epoch FROM clock_timestamp() - state_change)
    FROM pg_stat_activity
    WHERE datname = current_database()
      AND starts_with(application_name, CAST(:prefix AS text) || to_hex({_SCHEMA}) || ' ')
    ORDER BY backend_start, pid
"""
_END_STUCK = f"""
    SELECT pg_terminate_backend(activity.pid)
    FROM pg_stat_activity AS activity JOIN pg_locks AS lock ON lock.pid = activity.pid
    WHERE locktype = 'relation' AND granted AND database = {_HERE}
      AND relation = to_regclass('controller') AND mode IN ('RowShareLock', 'RowExclusiveLock')
      AND activity.pid <> pg_backend_pid() AND starts_with(activity.state, 'idle in transaction')
      AND clock_timestamp() - activity.state_change > make_interval(secs => :seconds)
"""
