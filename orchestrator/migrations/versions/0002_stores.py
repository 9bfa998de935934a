"""Every run has its own store and the time its last session closed; the ledger keeps older runs' store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("runs", sa.Column("store", sa.Text, nullable=False, server_default=""))
    op.add_column("runs", sa.Column("closed_at", sa.Double))
    op.create_index("runs_closed", "runs", ["closed_at", "run"])
    op.add_column("controller", sa.Column("older_store", sa.Text, nullable=False, server_default=""))
