"""The current tables, and how a record becomes a row.

`orchestrator/migrations` has the steps that create them; a test checks that both are the same. The other
columns repeat parts of `record` and `body` for queries; a record is never read from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)

from orchestrator.core import wire

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.run import RunRecord

REVISION = "0003"  # the newest script in orchestrator/migrations/versions
VERSION_TABLE = "orchestrator_version"

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("run", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("due_at", Double),
    Column("live", Boolean, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("platform", Text),
    Column("accelerator", Text),
    Column("session", Text),
    Column("reason", Text, nullable=False),
    Column("until", Double),
    Column("steps_total", BigInteger, nullable=False),
    Column("accepted_step", BigInteger),
    Column("ended_at", Double),
    Column("record", Text, nullable=False),
    Column("store", Text, nullable=False, server_default=""),
    Column("closed_at", Double),
)
Index("runs_due", runs.c.due_at, runs.c.run, runs.c.version)  # for most runs, a tick needs only this
Index("runs_phase", runs.c.phase, runs.c.submitted_at, runs.c.run)
Index("runs_submitted", runs.c.submitted_at, runs.c.run)
Index("runs_closed", runs.c.closed_at, runs.c.run)
Index("runs_name", runs.c.name, runs.c.submitted_at)
# The first migration limits it to live runs. Doing that here would make every `ps` load PostgreSQL's dialect.
Index("runs_live", runs.c.run)

events = Table(
    "events",
    metadata,
    Column("run", Text, ForeignKey("runs.run"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("inputs", Text),
)

measurements = Table(
    "measurements",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("job_key", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("body", Text, nullable=False),
)
Index("measurements_job", measurements.c.job_key, measurements.c.at)

controller = Table(
    "controller",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("fence", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("host", Text, nullable=False),
    Column("since", Double, nullable=False),
    Column("older_store", Text, nullable=False, server_default=""),  # of runs whose submission names none
    Column(
        "alike", Text, nullable=False, server_default=""
    ),  # what other machines must have in common with it
    Column("identity", Text, nullable=False, server_default=""),  # which tells it from its copies
)
CONTROLLER_ROW = 1

schedules = Table(
    "schedules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("next_at", Double),  # when something is to be done for it; None: never
    Column("run", Text),  # the run that it started last
    Column("body", Text, nullable=False),
)
Index("schedules_next", schedules.c.next_at, schedules.c.name)

fires = Table(
    "fires",
    metadata,
    Column("schedule", Text, primary_key=True),
    Column("planned", Double, primary_key=True),  # the planned instant, in unix seconds: each fires once
    Column("at", Double, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("run", Text),
    Column("reason", Text, nullable=False),
    Column("count", Integer, nullable=False),  # of planned instants: missed ones are one row
)

notifications = Table(
    "notifications",
    metadata,
    Column("id", Text, primary_key=True),  # the delivery id, the same in every attempt
    Column("created_at", Double, nullable=False),
    Column("target", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("run", Text),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("error", Text, nullable=False),
)
Index("notifications_due", notifications.c.state, notifications.c.due_at, notifications.c.id)


def run_row(record: RunRecord, due_at: float | None) -> dict[str, Any]:
    """The row of `runs` for a record."""
    from orchestrator.core.checkpoint import newest

    order = record.session.order if record.session is not None else None
    accepted = newest(record.accepted)
    return {
        "run": record.run,
        "name": _printable(record.job.name),
        "phase": record.standing.value,
        "version": record.version,
        "due_at": due_at,
        "live": order is not None or bool(record.strays),
        "submitted_at": record.submitted_at,
        "platform": order.platform if order else None,
        "accelerator": order.accelerator if order else None,
        "session": order.session if order else None,
        "reason": _printable(record.standing_reason),
        "until": record.until,
        "steps_total": record.job.work.total,
        "accepted_step": accepted.ref.step if accepted else None,
        "ended_at": record.ended_at,
        "record": wire.encode(record).decode(),
        "store": record.store,
        "closed_at": max((each.gone_at for each in record.closed), default=None),
    }


def _printable(text: str) -> str:
    """The text without NUL and lone surrogates: a platform or log may send them, and no column takes them."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
