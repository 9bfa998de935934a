"""A run has a store of its own; of the runs before, the ledger says which it was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("runs", sa.Column("store", sa.Text, nullable=False, server_default=""))
    op.add_column("controller", sa.Column("older_store", sa.Text, nullable=False, server_default=""))
