"""The first tables: runs, their events, measured rates, and who controls the database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _runs()
    op.create_table(
        "events",
        sa.Column("run", sa.Text, sa.ForeignKey("runs.run"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("inputs", sa.Text),
    )
    op.create_table(
        "measurements",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("job_key", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("measurements_job", "measurements", ["job_key", "at"])
    controller = op.create_table(
        "controller",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
    )
    op.bulk_insert(controller, [{"number": 1, "fence": 0, "owner": "", "pid": 0, "host": "", "since": 0.0}])


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Double),
        sa.Column("live", sa.Boolean, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("platform", sa.Text),
        sa.Column("accelerator", sa.Text),
        sa.Column("session", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("until", sa.Double),
        sa.Column("steps_total", sa.BigInteger, nullable=False),
        sa.Column("accepted_step", sa.BigInteger),
        sa.Column("ended_at", sa.Double),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_index("runs_due", "runs", ["due_at", "run", "version"])
    op.create_index("runs_phase", "runs", ["phase", "submitted_at", "run"])
    op.create_index("runs_submitted", "runs", ["submitted_at", "run"])
    op.create_index("runs_name", "runs", ["name", "submitted_at"])
    op.create_index(
        "runs_live",
        "runs",
        ["run"],
        sqlite_where=sa.text("live IS NOT 0"),  # a damaged value, too
        postgresql_where=sa.text("live IS NOT FALSE"),
    )
