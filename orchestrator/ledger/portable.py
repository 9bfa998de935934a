"""The whole ledger as rows, out of one database and into another, SQLite or PostgreSQL alike.

Decides how a consistent copy is read while others write, and how an empty database is filled. A copy that an
older version made is filled into tables of its version, which are then upgraded. Must never know what a row
means, except that the fence must grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

from sqlalchemy import Connection, column, delete, func, insert, inspect, select, table, text, update

from orchestrator import installation
from orchestrator.errors import InputError
from orchestrator.ledger import takeover
from orchestrator.ledger.database import Database, is_absent
from orchestrator.ledger.lock import Owner
from orchestrator.ledger.migration import checked_revision, known_revisions, upgrade
from orchestrator.ledger.reading import LedgerReader
from orchestrator.ledger.tables import REVISION, VERSION_TABLE, controller, metadata

CHUNK = 500
_IN_USE = ("runs", "measurements", "schedules", "notifications")  # a row in one tells that somebody uses it
FENCE_MARGIN = 1_000  # takeovers that may have happened since the copy was made
Rows = Iterator[dict[str, Any]]


@contextmanager
def exported(ledger: LedgerReader) -> Iterator[Iterator[tuple[str, Rows]]]:
    """Table by table and row by row, all as they were at one moment. Writers are not delayed."""
    database = ledger._database
    with database.read() as connection:
        if database.path is None:
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        yield ((each.name, _rows(connection, each.name)) for each in metadata.sorted_tables)


def _rows(connection: Connection, name: str) -> Rows:
    query = select(metadata.tables[name]).order_by(*metadata.tables[name].primary_key)
    for row in connection.execution_options(stream_results=True).execute(query):
        yield dict(row._mapping)


def check_fillable(url: str, revision: str, tables: Iterable[str]) -> None:
    """Raises InputError if `filled` would refuse this now. Creates neither a file nor tables."""
    _check_copy(revision, tables)
    if is_absent(url):
        return
    with closing(Database(url)) as database:
        _check_unowned(database)
        with database.read() as connection:
            _check_unused(connection, database)


def is_blank(url: str) -> bool:
    """Whether this database has no table at all, as a process that was killed while it created it leaves it.
    Raises InputError for a file that is no database."""
    with closing(Database(url)) as database, database.read() as connection:
        return not inspect(connection).get_table_names()


def controller_of(url: str) -> Owner | None:
    """Who controls this database; None if nobody does. Creates neither a file nor tables."""
    if is_absent(url):
        return None
    with closing(Database(url)) as database:
        return takeover.owner(database)


def filled(url: str, revision: str, tables: Mapping[str, Iterable[dict[str, Any]]]) -> None:
    """Fills a database that nobody uses, all or nothing. The next takeover's number is above all others.

    Raises InputError if it has runs, measurements, schedules or notifications, if a controller runs, or if a
    newer version made the copy.
    """
    _check_copy(revision, tables)
    with closing(Database(url)) as database:
        _check_unowned(database)
        with database.write() as connection:
            _check_unused(connection, database)
            _empty(connection)
            upgrade(connection, revision)
            for name in reversed(_ordered(tables)):
                connection.execute(delete(table(name)))
            for name in _ordered(tables):
                _insert(connection, name, tables[name])
            upgrade(connection, "head")
            connection.execute(update(controller).values(fence=controller.c.fence + FENCE_MARGIN, pid=0))
            if database.path is None:
                connection.execute(text(_NEXT_NUMBER))


_NEXT_NUMBER = """
    SELECT setval(pg_get_serial_sequence('measurements', 'number'), greatest(max(number), 1))
    FROM measurements
"""


def _check_copy(revision: str, tables: Iterable[str]) -> None:
    if revision not in known_revisions():
        raise InputError(
            f"a newer version made this backup (its tables are {revision}, this version knows {REVISION}): "
            f"upgrade with {installation.found().updating}"
        )
    if strange := sorted(set(tables) - set(metadata.tables)):
        raise InputError(f"the backup has tables that are not ours: {', '.join(strange)}")


def _check_unowned(database: Database) -> None:
    if (owner := takeover.owner(database)) is not None:
        raise InputError(
            f"a controller of the ledger {database.shown} is running: {owner}. Restore into a home or "
            "database that nobody uses"
        )


def _check_unused(connection: Connection, database: Database) -> None:
    if checked_revision(connection, database.shown) is None:
        return
    found = set(inspect(connection).get_table_names())
    for name in _IN_USE:
        if name in found and connection.execute(select(func.count()).select_from(table(name))).scalar():
            raise InputError(
                f"the ledger {database.shown} already has {name}: restore into an empty home or database, so "
                "that nothing is overwritten"
            )


def _empty(connection: Connection) -> None:
    found = set(inspect(connection).get_table_names())
    for name in (*(each.name for each in reversed(metadata.sorted_tables)), VERSION_TABLE):
        if name in found:
            connection.execute(text(f"DROP TABLE {name}"))


def _ordered(tables: Iterable[str]) -> list[str]:
    """Those that others refer to come first."""
    return [each.name for each in metadata.sorted_tables if each.name in set(tables)]


def _insert(connection: Connection, name: str, rows: Iterable[dict[str, Any]]) -> None:
    left = iter(rows)
    while chunk := list(islice(left, CHUNK)):
        if any(row.keys() != chunk[0].keys() for row in chunk):
            raise InputError(f"the backup's table {name} has rows with different columns")
        target = table(name, *(column(key) for key in chunk[0]))
        connection.execute(insert(target), chunk)
