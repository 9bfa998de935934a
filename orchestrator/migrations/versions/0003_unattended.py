"""Schedules and their fires, the notifications to send, what controllers tell each other, and what tells a
ledger from its copies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("controller", sa.Column("alike", sa.Text, nullable=False, server_default=""))
    op.add_column("controller", sa.Column("identity", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "schedules",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("next_at", sa.Double),
        sa.Column("run", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("schedules_next", "schedules", ["next_at", "name"])
    op.create_table(
        "fires",
        sa.Column("schedule", sa.Text, primary_key=True),
        sa.Column("planned", sa.Double, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
    )
    op.create_table(
        "notifications",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_index("notifications_due", "notifications", ["state", "due_at", "id"])
