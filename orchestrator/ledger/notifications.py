"""Notifications: rows that are written with the event they tell of, and what became of them.

Decides nothing: `orchestrator.core.notice` says which rows there are, `orchestrator.core.delivery` when each
is tried again. Never holds an address, only the name of a target or a reference. A row is added once by its
id, however often somebody decides it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Insert, case, delete, func, insert, or_, select, update

from orchestrator.core import wire
from orchestrator.core.bounds import TIME_MAX
from orchestrator.core.delivery import PAUSE_SECONDS_MAX, State, Verdict
from orchestrator.ledger.database import Database
from orchestrator.ledger.tables import Damaged, damage, notifications

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.message import Digest
    from orchestrator.core.notice import Notice, Outgoing

c = notifications.c
PAGE = 500
DUE_NOW = 0.0
FAR_SECONDS = 2 * PAUSE_SECONDS_MAX
KEPT_SECONDS = 14 * 86400.0  # rows that were sent
DEAD_KEPT_SECONDS = 60 * 86400.0
WAITING_MAX = 20_000  # rows of one target: older ones are given up, so that there is an end
CROWDED_OUT = f"more than {WAITING_MAX:,} newer ones wait for the same target"


@dataclass(frozen=True)
class Row:
    """One row. `body` is a `Notice`, or a `Digest` if `kind` says so; None if this version cannot read it, or
    if the row is `damaged`, which says why. If its state is damaged, it counts as dead."""

    id: str
    created_at: float
    target: str
    kind: str
    run: str
    state: State
    attempts: int
    due_at: float
    ended_at: float | None
    error: str
    body: Notice | Digest | None
    damaged: str = ""


@dataclass(frozen=True)
class Count:
    """How many rows of a target are in a state, and when the last of them got there or was created."""

    target: str
    state: State
    rows: int
    last_at: float


class Notifications:
    """The rows of one database. Every method may raise `Transient` or another BackendError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- Changes ----------------------------------------------------------------------------------------

    def add(self, connection: Connection, rows: Sequence[Outgoing]) -> None:
        """Adds the rows in the caller's transaction; those that are there already stay as they are."""
        if rows:
            connection.execute(self._adding(), [_columns(row) for row in rows])

    def post(self, rows: Sequence[Outgoing]) -> None:
        """Adds the rows in a transaction of their own."""
        with self._database.write() as connection:
            self.add(connection, rows)

    def gather(self, rows: Sequence[Row], identity: str, digest: Digest) -> None:
        """Replaces these waiting rows of one target by one row for all of them."""
        [target] = {row.target for row in rows}
        columns = _row(identity, digest.at, target, "digest", "", wire.encode(digest).decode())
        with self._database.write() as connection:
            for ids in _chunks([row.id for row in rows]):
                gone = {"state": State.GATHERED.value, "ended_at": digest.at, "error": f"in {identity}"}
                connection.execute(update(notifications).where(c.id.in_(ids)).values(gone))
            connection.execute(self._adding(), [columns])

    def attempted(self, row: Row, found: Verdict, now: float) -> None:
        """Records an attempt. What was sent is sent; else, a row that somebody changed meanwhile stays as it
        is."""
        over = found.state is not State.WAITING
        values = {
            "state": found.state.value, "attempts": row.attempts + 1, "due_at": found.due_at,
            "ended_at": now if over else None, "error": found.error,
        }  # fmt: skip
        its = [c.id == row.id, c.state == State.WAITING.value]
        if (
            found.state is not State.SENT and not row.damaged
        ):  # a retry may change only the dates: nobody must lose it
            its += [c.attempts == row.attempts, c.created_at == row.created_at, c.due_at == row.due_at]
        with self._database.write() as connection:
            connection.execute(update(notifications).where(*its).values(values))

    def retry(self, ids: Collection[str], now: float) -> int:
        """Makes these dead or waiting rows due now, with new patience. Returns how many there were. What was
        tried before still counts as tried: it may have arrived, so it keeps its id."""
        tried = case((c.attempts > 0, 1), else_=0)
        values = {
            "state": State.WAITING.value, "attempts": tried, "due_at": DUE_NOW, "created_at": now,
            "ended_at": None,
        }  # fmt: skip
        retried = 0
        with self._database.write() as connection:
            for chunk in _chunks(list(ids)):
                may = (c.id.in_(chunk), _in((State.DEAD, State.WAITING)))
                retried += connection.execute(update(notifications).where(*may).values(values)).rowcount
        return retried

    def prune(self, now: float) -> None:
        """Deletes rows that nobody needs any more, and gives up the oldest of a target with too many."""
        old, over = now - KEPT_SECONDS, (State.SENT.value, State.GATHERED.value)
        with self._database.write() as connection:
            connection.execute(delete(notifications).where(c.state.in_(over), c.ended_at < old))
            dead = (c.state == State.DEAD.value, c.ended_at < now - DEAD_KEPT_SECONDS)
            connection.execute(delete(notifications).where(*dead))
        for count in self.counts():
            if count.state is State.WAITING and count.rows > WAITING_MAX:
                self._give_up_oldest(count.target, count.rows - WAITING_MAX, now)

    def _give_up_oldest(self, target: str, rows: int, now: float) -> None:
        oldest = (
            select(c.id)
            .where(c.target == target, c.state == State.WAITING.value)
            .order_by(c.created_at, c.id)
            .limit(rows)
        )
        values = {"state": State.DEAD.value, "ended_at": now, "error": CROWDED_OUT}
        with self._database.write() as connection:
            connection.execute(update(notifications).where(c.id.in_(oldest)).values(values))

    # --- Queries ----------------------------------------------------------------------------------------

    def due(self, now: float) -> dict[str, float]:
        """The targets with rows that are due, and when the oldest of these was."""
        query = select(c.target, func.min(c.due_at)).where(*_due(now)).group_by(c.target)
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query).all()}

    def retried(self) -> dict[str, float]:
        """The targets with rows that a person wants to be tried at once, and when that was said last."""
        query = select(c.target, func.max(c.created_at)).where(
            c.state == State.WAITING.value, c.attempts > 0, c.due_at == DUE_NOW
        )
        with self._database.read() as connection:
            return {row[0]: row[1] for row in connection.execute(query.group_by(c.target)).all()}

    def due_of(self, target: str, now: float, limit: int = PAGE) -> tuple[Row, ...]:
        """The rows of this target that are due, oldest first."""
        query = select(notifications).where(*_due(now), c.target == target)
        rows = self._rows(query.order_by(c.created_at, c.id).limit(limit))
        return tuple(row for row in rows if not isinstance(row.id, Damaged))  # nobody could record an attempt

    def waiting_since(self, at: float) -> bool:
        """Whether any row that was created after `at` still waits."""
        since = c.created_at.between(at, TIME_MAX)  # beyond that it is damaged
        query = select(c.id).where(c.state == State.WAITING.value, since).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def rows(self, states: Iterable[State], limit: int | None = None) -> tuple[Row, ...]:
        """The rows in these states, newest first, and those whose state is damaged."""
        query = select(notifications).where(_in(states))
        return self._rows(query.order_by(c.created_at.desc(), c.id).limit(limit))

    def counts(self) -> tuple[Count, ...]:
        """How many rows each target has in each state."""
        last = func.max(func.coalesce(c.ended_at, c.created_at))
        query = select(c.target, c.state, func.count(), last).where(c.state.in_(list(State)))
        query = query.group_by(c.target, c.state).order_by(c.target, c.state)
        with self._database.read() as connection:
            return tuple(
                Count(target, State(state), rows, max(0.0, last_at))
                for target, state, rows, last_at in connection.execute(query).all()
            )

    def _rows(self, query: Any) -> tuple[Row, ...]:
        with self._database.read() as connection:
            return tuple(_read(row) for row in connection.execute(query).all())

    def _adding(self) -> Insert:
        """SQLAlchemy has this for each dialect apart."""
        if self._database.path is not None:
            return insert(notifications).prefix_with("OR IGNORE")
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(notifications).on_conflict_do_nothing()


def _due(now: float) -> tuple[ColumnElement[bool], ...]:
    """A date further away than any pause was set by a clock that was wrong then."""
    return c.state == State.WAITING.value, or_(c.due_at <= now, c.due_at > now + FAR_SECONDS)


def _in(states: Iterable[State]) -> ColumnElement[bool]:
    """Whether a row is in one of these states, or in none that there is."""
    return or_(c.state.in_([state.value for state in states]), c.state.not_in(list(State)), c.state.is_(None))


def _columns(row: Outgoing) -> dict[str, Any]:
    notice = row.notice
    body = wire.encode(notice).decode()
    return _row(row.id, notice.at, row.target, notice.kind.value, notice.run, body)


def _row(identity: str, at: float, target: str, kind: str, run: str, body: str) -> dict[str, Any]:
    return {
        "id": identity, "created_at": at, "target": target, "kind": kind, "run": run or None, "body": body,
        "state": State.WAITING.value, "attempts": 0, "due_at": DUE_NOW, "ended_at": None, "error": "",
    }  # fmt: skip


def _read(row: Any) -> Row:
    from orchestrator.core.message import DIGEST, Digest
    from orchestrator.core.notice import Notice

    body: Notice | Digest | None = None
    wrong = damage(row)
    if not wrong:
        with suppress(ValueError):
            data = row.body.encode()
            body = wire.decode(Digest, data) if row.kind == DIGEST else wire.decode(Notice, data)
    state = State.DEAD if isinstance(row.state, Damaged) else State(row.state)
    return Row(row.id, row.created_at, row.target, row.kind, row.run or "", state, row.attempts,
               row.due_at, row.ended_at, row.error, body, wrong)  # fmt: skip


def _chunks(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + PAGE] for start in range(0, len(ids), PAGE))
