"""The current tables, what each column may hold, and how a record becomes a row.

`orchestrator/migrations` has the steps that create the tables; a test checks that both are the same. The
columns beside `record` and `body` repeat parts of them for queries; a record is never read from them.

SQLite keeps any value in any column. So each type here checks what it reads, and what its column may not hold
becomes a `Damaged` value of the right type. No query fails because of it; `damage` says of a row which it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

from orchestrator.core import wire
from orchestrator.core.bounds import COUNT_MAX, STEP_MAX, TIME_MAX
from orchestrator.core.delivery import State
from orchestrator.core.lifecycle import Phase

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.run import RunRecord

REVISION = "0003"  # the newest script in orchestrator/migrations/versions
VERSION_TABLE = "orchestrator_version"

# --- What a column may hold -------------------------------------------------------------------------------

NAME_MAX, REASON_MAX, BODY_MAX = 1 << 10, 1 << 20, 1 << 30  # characters
RUN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,200}")  # also the name of its folder
PHASES = frozenset(phase.value for phase in Phase)
_SEEN_MAX = 60
_Reader = Callable[[Any], Any]


class Damaged:
    """What a row holds where its column may not hold it. `seen` shows it to people."""

    seen: str


class DamagedText(str, Damaged):
    """As much of it as is text."""

    def __new__(cls, held: object) -> DamagedText:
        data = held.encode("utf-8", "surrogateescape") if isinstance(held, str) else held
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)
        found = super().__new__(cls, text.replace("\0", "\ufffd")[:REASON_MAX])
        found.seen = _seen(held)
        return found


class DamagedNumber(float, Damaged):
    """-1, which no column of ours may hold: a backup brings it back as damaged."""

    def __new__(cls, held: object) -> DamagedNumber:
        found = super().__new__(cls, -1.0)
        found.seen = _seen(held)
        return found


class DamagedWhole(int, Damaged):
    """-1, likewise; as a truth, true: a session may still run."""

    def __new__(cls, held: object) -> DamagedWhole:
        found = super().__new__(cls, -1)
        found.seen = _seen(held)
        return found


def _seen(held: object) -> str:
    if held is None:
        return "nothing"
    if isinstance(held, str) and not _is_utf8(held):
        return f"no UTF-8: {_cut(repr(held.encode('utf-8', 'surrogateescape')))}"
    return _cut(repr(held))


def _cut(text: str) -> str:
    return text if len(text) <= _SEEN_MAX else f"{text[:_SEEN_MAX]}…"


def _is_utf8(text: str) -> bool:
    try:  # what is not arrives with lone surrogates (`database`)
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def damage(row: Any) -> str:
    """The first damaged value of a row, in words; empty if there is none."""
    for name, value in zip(row._fields, row, strict=True):
        if isinstance(value, Damaged):
            return f"its {name} is unreadable ({value.seen})"
    return ""


class _Checked(TypeDecorator[Any]):
    """A type that reads what its column may not hold as damaged. `optional`: the column may hold nothing."""

    cache_ok = True

    def __init__(self, *, optional: bool = False) -> None:
        super().__init__()
        self.optional = optional

    def result_processor(self, dialect: Dialect, coltype: object) -> _Reader:  # noqa: ARG002 SQLAlchemy's
        return self.reader()

    def reader(self) -> _Reader:
        raise NotImplementedError


class Words(_Checked):
    """Text of at most so many characters: one of `among`, or like a pattern, if they are given."""

    impl = Text
    cache_ok = True

    def __init__(
        self,
        longest: int = NAME_MAX,
        like: re.Pattern[str] | None = None,
        among: Collection[str] | None = None,
        *,
        optional: bool = False,
    ) -> None:
        super().__init__(optional=optional)
        self.longest, self.like, self.among = longest, like, among

    def reader(self) -> _Reader:
        longest, like, among, optional = self.longest, self.like, self.among, self.optional

        def read(value: Any) -> Any:
            if type(value) is str and len(value) <= longest and (value.isascii() or _is_utf8(value)):
                if (among is None or value in among) and (like is None or like.fullmatch(value)):
                    return value
            elif value is None and optional:
                return None
            return DamagedText(value)

        return read


class Moment(_Checked):
    """A time in unix seconds."""

    impl = Double
    cache_ok = True

    def reader(self) -> _Reader:
        optional = self.optional

        def read(value: Any) -> Any:
            if type(value) in _NUMBERS and 0 <= value <= TIME_MAX:
                return value
            return None if value is None and optional else DamagedNumber(value)

        return read


class Whole(_Checked):
    """A whole number from 0 on."""

    impl = Integer
    cache_ok = True
    most = COUNT_MAX

    def reader(self) -> _Reader:
        most, optional = self.most, self.optional

        def read(value: Any) -> Any:
            if type(value) is int and 0 <= value <= most:
                return value
            return None if value is None and optional else DamagedWhole(value)

        return read


class Large(Whole):
    """The same with 64 bits."""

    impl = BigInteger
    cache_ok = True
    most = STEP_MAX


class Truth(_Checked):
    """True or false."""

    impl = Boolean
    cache_ok = True

    def reader(self) -> _Reader:
        def read(value: Any) -> Any:
            return bool(value) if type(value) in _TRUTHS and value in (0, 1) else DamagedWhole(value)

        return read


_NUMBERS, _TRUTHS = (float, int), (bool, int)

# --- The tables ---------------------------------------------------------------------------------------------

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("run", Words(like=RUN_NAME), primary_key=True),
    Column("name", Words(), nullable=False),
    Column("phase", Words(among=PHASES), nullable=False),
    Column("version", Whole(), nullable=False),
    Column("due_at", Moment(optional=True)),
    Column("live", Truth(), nullable=False),
    Column("submitted_at", Moment(), nullable=False),
    Column("platform", Words(optional=True)),
    Column("accelerator", Words(optional=True)),
    Column("session", Words(like=RUN_NAME, optional=True)),
    Column("reason", Words(REASON_MAX), nullable=False),
    Column("until", Moment(optional=True)),
    Column("steps_total", Large(), nullable=False),
    Column("accepted_step", Large(optional=True)),
    Column("ended_at", Moment(optional=True)),
    Column("record", Words(BODY_MAX), nullable=False),
    Column("store", Words(), nullable=False, server_default=""),
    Column("closed_at", Moment(optional=True)),
)
Index("runs_due", runs.c.due_at, runs.c.run, runs.c.version)  # for most runs, a tick needs only this
Index("runs_phase", runs.c.phase, runs.c.submitted_at, runs.c.run)
Index("runs_submitted", runs.c.submitted_at, runs.c.run)
Index("runs_closed", runs.c.closed_at, runs.c.run)
Index("runs_name", runs.c.name, runs.c.submitted_at)
# The first migration limits it to what may be live. Doing that here would make every `ps` load PostgreSQL's
# dialect.
Index("runs_live", runs.c.run)

events = Table(
    "events",
    metadata,
    Column("run", Words(), ForeignKey("runs.run"), primary_key=True),
    Column("seq", Whole(), primary_key=True),
    Column("at", Moment(), nullable=False),
    Column("kind", Words(), nullable=False),
    Column("body", Words(BODY_MAX), nullable=False),
    Column("inputs", Words(BODY_MAX, optional=True)),
)

measurements = Table(
    "measurements",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("job_key", Words(), nullable=False),
    Column("at", Moment(), nullable=False),
    Column("body", Words(BODY_MAX), nullable=False),
)
Index("measurements_job", measurements.c.job_key, measurements.c.at)

controller = Table(
    "controller",
    metadata,
    Column("number", Whole(), primary_key=True, autoincrement=False),
    Column("fence", Large(), nullable=False),
    Column("owner", Words(), nullable=False),
    Column("pid", Whole(), nullable=False),
    Column("host", Words(), nullable=False),
    Column("since", Moment(), nullable=False),
    Column("older_store", Words(), nullable=False, server_default=""),  # of runs whose submission names none
    Column(
        "alike", Words(BODY_MAX), nullable=False, server_default=""
    ),  # what other machines must have in common with it
    Column("identity", Words(BODY_MAX), nullable=False, server_default=""),  # which tells it from its copies
)
CONTROLLER_ROW = 1

schedules = Table(
    "schedules",
    metadata,
    Column("name", Words(), primary_key=True),
    Column("version", Whole(), nullable=False),
    Column("created_at", Moment(), nullable=False),
    Column("paused", Truth(), nullable=False),
    Column("next_at", Moment(optional=True)),  # when something is to be done for it; None: never
    Column("run", Words(optional=True)),  # the run that it started last
    Column("body", Words(BODY_MAX), nullable=False),
)
Index("schedules_next", schedules.c.next_at, schedules.c.name)

fires = Table(
    "fires",
    metadata,
    Column("schedule", Words(), primary_key=True),
    Column("planned", Moment(), primary_key=True),  # the planned instant, in unix seconds: each fires once
    Column("at", Moment(), nullable=False),
    Column("outcome", Words(), nullable=False),
    Column("run", Words(optional=True)),
    Column("reason", Words(REASON_MAX), nullable=False),
    Column("count", Whole(), nullable=False),  # of planned instants: missed ones are one row
)

notifications = Table(
    "notifications",
    metadata,
    Column("id", Words(), primary_key=True),  # the delivery id, the same in every attempt
    Column("created_at", Moment(), nullable=False),
    Column("target", Words(), nullable=False),
    Column("kind", Words(), nullable=False),
    Column("run", Words(optional=True)),
    Column("body", Words(BODY_MAX), nullable=False),
    Column("state", Words(among=frozenset(State)), nullable=False),
    Column("attempts", Whole(), nullable=False),
    Column("due_at", Moment(), nullable=False),
    Column("ended_at", Moment(optional=True)),
    Column("error", Words(REASON_MAX), nullable=False),
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
