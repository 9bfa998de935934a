"""Creates or upgrades a database's tables when a process opens it for the first time with this version.

Alembic is imported only if there is something to do, because a listing must start fast.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table, text

from orchestrator import installation
from orchestrator.errors import InputError
from orchestrator.ledger import identity
from orchestrator.ledger.database import Database
from orchestrator.ledger.tables import REVISION, VERSION_TABLE, metadata

SCRIPTS = Path(__file__).parent.parent / "migrations"
_LOCK = 0x6F72636865  # any number that nothing else uses


def migrate(database: Database) -> None:
    """Creates or upgrades the tables, in one transaction and under a lock; does nothing if they are current.

    Raises InputError if the database is of a newer version, or already has other tables of these names.
    """
    with database.read() as connection:
        if _revision(connection) == REVISION:
            return
    with database.write() as connection:
        if database.path is None:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if checked_revision(connection, database.shown) != REVISION:
            upgrade(connection)
            identity.begin(connection)


def check_current(database: Database) -> None:
    """Raises InputError unless the tables are those of this version."""
    with database.read() as connection:
        found = _revision(connection)
    if found != REVISION:
        raise InputError(_newer(found, database.shown))


def _newer(found: str | None, shown: str) -> str:
    return (
        f"the ledger {shown} was written by a newer version (its tables are {found}, this version "
        f"knows {REVISION}): upgrade with {installation.found().updating}"
    )


def _revision(connection: Connection) -> str | None:
    """The version of the tables; None if there are no tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(
        select(column("version_num")).select_from(table(VERSION_TABLE))
    ).scalar()
    return found


def checked_revision(connection: Connection, shown: str) -> str | None:
    """The version of the tables; None if there are no tables. Raises InputError if they are of a newer
    version, or if there are other tables of these names."""
    found = _revision(connection)
    if found is not None:
        if found not in known_revisions():
            raise InputError(_newer(found, shown))
        return found
    taken = sorted(set(metadata.tables) & set(inspect(connection).get_table_names()))
    if taken:
        raise InputError(
            f"{shown} belongs to something else: it has tables called {', '.join(taken)}; "
            "use another database"
        )
    return None


def known_revisions() -> frozenset[str]:
    """The versions of the tables that this version can read."""
    return frozenset(script.name.split("_")[0] for script in (SCRIPTS / "versions").glob("[0-9]*.py"))


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Creates the tables or upgrades them to this version, in the connection's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
