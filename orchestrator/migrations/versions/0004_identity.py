"""What tells a ledger from its copies, in the stores that it uses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("controller", sa.Column("identity", sa.Text, nullable=False, server_default=""))
