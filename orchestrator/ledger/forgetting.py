"""Removes the history of runs that are over, so that a ledger does not grow for ever; or a run altogether.

`forget` keeps each run's record and its first and last event: listings, checkpoints and `pull` work on; what
happened in between, and from what it was decided, is gone for good. Decides nothing: the caller says which
runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import delete, func, select

from orchestrator.core.run import RunRecord
from orchestrator.ledger.ledger import Ledger
from orchestrator.ledger.tables import events, runs

CHUNK = 100  # runs in one transaction, so that a controller waits for a moment only
_OVER = ("done", "failed", "cancelled")


def forgettable(ledger: Ledger, names: Iterable[str]) -> dict[str, int]:
    """Of these runs, those that are over and have a history to remove → how many events."""
    found: dict[str, int] = {}
    for chunk in _chunks(names):
        query = (
            select(runs.c.run, func.count())
            .join(events, events.c.run == runs.c.run)
            .where(runs.c.run.in_(chunk), runs.c.phase.in_(_OVER), ~runs.c.live)
            .where(events.c.seq > 1, events.c.seq < runs.c.version)
            .group_by(runs.c.run)
        )
        with ledger._database.read() as connection:
            found |= {row[0]: int(row[1]) for row in connection.execute(query)}
    return found


def forget(
    ledger: Ledger, names: Iterable[str], stopped: Callable[[], bool], progress: Callable[[int], None]
) -> int:
    """Removes the histories of those that are still over. Returns how many events went."""
    gone = 0
    for chunk in _chunks(names):
        if stopped():
            break
        over = select(runs.c.run, runs.c.version).where(
            runs.c.run.in_(chunk), runs.c.phase.in_(_OVER), ~runs.c.live
        )
        with ledger._database.write() as connection:
            for run, version in connection.execute(over).all():
                between = (events.c.run == run) & (events.c.seq > 1) & (events.c.seq < version)
                gone += connection.execute(delete(events).where(between)).rowcount
        progress(len(chunk))
    return gone


def erase(ledger: Ledger, record: RunRecord) -> bool:
    """Removes the run with its events, as if it had never been submitted. Returns False, and changes nothing,
    if it is not over, or has changed since this record was read. What was measured of its job stays."""
    ours = (runs.c.run == record.run) & (runs.c.version == record.version)
    over = select(runs.c.run).where(ours, runs.c.phase.in_(_OVER), ~runs.c.live).with_for_update()
    with ledger._database.write() as connection:
        if connection.execute(over).one_or_none() is None:
            return False
        connection.execute(delete(events).where(events.c.run == record.run))
        connection.execute(delete(runs).where(runs.c.run == record.run))
    return True


def erase_unreadable(ledger: Ledger, run: str) -> None:
    """Removes a run whose record cannot be read, with its events, whatever its phase."""
    with ledger._database.write() as connection:
        connection.execute(delete(events).where(events.c.run == run))
        connection.execute(delete(runs).where(runs.c.run == run))


def compact(ledger: Ledger) -> bool:
    """Gives SQLite's free space back to the disk. Returns False if it was not possible now: another process
    writes, or the disk has no room for the copy; the space is then used by later events. PostgreSQL does this
    by itself."""
    if ledger._database.path is None:
        return True
    with ledger._database.dedicated() as connection:
        driver: Any = connection.connection.dbapi_connection  # SQLAlchemy would begin a transaction
        try:
            driver.execute("VACUUM")
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error:
            return False
    return True


def _chunks(names: Iterable[str]) -> Iterator[list[str]]:
    left = iter(names)
    while chunk := list(islice(left, CHUNK)):
        yield chunk
