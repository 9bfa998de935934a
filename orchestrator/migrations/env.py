"""Alembic's entry point: runs the scripts in `versions` on the ledger's connection.

The ledger has begun a transaction and holds the lock; nothing is committed here.
"""

from __future__ import annotations

from alembic import context

from orchestrator.ledger.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
context.run_migrations()
