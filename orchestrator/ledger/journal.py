"""What happened to the runs, with the inputs of each decision, as the ledger keeps it.

Long histories are read in pages, each in a transaction of its own, so that no reader delays a controller.
Changes nothing, and decides nothing about a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Select, or_, select

from orchestrator.core import wire
from orchestrator.core.bounds import COUNT_MAX
from orchestrator.core.lifecycle import Kind
from orchestrator.ledger import takeover
from orchestrator.ledger.database import Database
from orchestrator.ledger.identity import Made
from orchestrator.ledger.tables import Damaged, events, runs

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.event import ActionFailed, Event

EVENTS_A_PAGE = 200  # with its inputs an event takes up to some 50 kB
RUNS_A_PAGE = 500
_MADE = tuple(
    kind.value for kind in (Kind.SUBMITTED, Kind.STARTED, Kind.ACCEPTED, Kind.OUTPUTS_KEPT, Kind.ADOPTED)
)
_ONE = ("checkpoint", "outputs", "start")  # the fields of these events that hold one checkpoint
_EVENTS = select(events.c.seq, events.c.at, events.c.kind, events.c.body, events.c.inputs).order_by(
    events.c.seq
)


@dataclass(frozen=True)
class Stored:
    """One event of a run's history. `inputs`: what it was decided from, as JSON values (for `wire.decode`),
    on the first event of a decision; None on the others. If this version cannot read an event, it becomes a
    note with the reason, which is also in `trouble`. `inputs_trouble`: why there are inputs that cannot be
    read."""

    seq: int
    event: Event
    inputs: Any | None
    trouble: str = ""
    inputs_trouble: str = ""


class Journal:
    """The queries. Each may raise `Transient` or another BackendError if the database fails."""

    _database: Database

    def history(self, run: str, after: int = 0) -> tuple[Stored, ...]:
        """The run's events with a seq above `after`, in order."""
        with self._database.read() as connection:
            rows = connection.execute(_after(run, after)).all()
        return tuple(_all_stored(rows))

    def entries(self, run: str) -> Iterator[Stored]:
        """The run's events in order, in pages: histories may be long."""
        after = -1
        while True:
            with self._database.read() as connection:
                rows = connection.execute(_after(run, after).limit(EVENTS_A_PAGE)).all()
            yield from _all_stored(rows)
            if len(rows) < EVENTS_A_PAGE or isinstance(rows[-1].seq, Damaged):  # those are the last ones
                return
            after = rows[-1].seq

    def made(self, run: str) -> Made:
        """What the run's journal says of its checkpoints. A history that was forgotten says nothing."""
        from orchestrator.core.checkpoint import CheckpointRef

        query = select(events.c.kind, events.c.body).where(events.c.run == run, events.c.kind.in_(_MADE))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(events.c.seq)).all()
        names: set[str] = set()
        own: set[str] = set()
        started: set[str] = set()
        judged = 0
        for row in rows:
            if row.kind == Kind.ADOPTED.value:  # the ledger that it comes from knows those before
                own = set()
            try:
                body = json.loads(row.body)
                if row.kind == Kind.STARTED.value:
                    own.add(body["incarnation"])
                    started.add(body["incarnation"])
                    continue
                if row.kind == Kind.ADOPTED.value:
                    judged = int(body["generation"])
                given = (*(body.get(key) for key in _ONE), *body.get("accepted", ()))
                refs = [CheckpointRef(**each["ref"]) for each in given if each]
            except (ValueError, TypeError, KeyError, AttributeError):  # what it says of stays in the store
                continue
            names.update(ref.name for ref in refs)
            started.update(ref.incarnation for ref in refs)
        return Made(frozenset(names), frozenset(own), frozenset(started), judged)

    def failing(self, names: Sequence[str]) -> dict[str, ActionFailed]:
        """Of these runs, those whose last event is an action that failed and is tried again."""
        found: dict[str, ActionFailed] = {}
        last = (events.c.run == runs.c.run) & (events.c.seq == runs.c.version)
        query = _EVENTS.add_columns(runs.c.run).select_from(runs).join(events, last)
        for start in range(0, len(names), RUNS_A_PAGE):
            page = runs.c.run.in_(names[start : start + RUNS_A_PAGE])
            with self._database.read() as connection:
                rows = connection.execute(query.where(page, events.c.kind == Kind.ACTION_FAILED.value)).all()
            for row in rows:
                event = _stored(row, row.seq).event
                if event.kind is Kind.ACTION_FAILED:
                    found[str(row.run)] = event
        return found

    def first_store(self) -> str:
        """The home store of runs whose submission names none, because the first version wrote it."""
        return takeover.older_store(self._database)

    def under_way_since(self, at: float) -> Iterator[str]:
        """The runs that had not ended before `at`, in order of submission."""
        c = runs.c
        query = select(c.run).where(or_(c.ended_at.is_(None), c.ended_at >= at))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(c.submitted_at, c.run)).all()
        return iter([str(row.run) for row in rows])


def _after(run: str, seq: int) -> Select[Any]:
    """The events of a run above a seq. Damaged ones come last, and with the beginning only."""
    page = _EVENTS.where(events.c.run == run, events.c.seq > seq)
    return page if seq <= 0 else page.where(events.c.seq <= COUNT_MAX)


def _all_stored(rows: Iterable[Any]) -> Iterator[Stored]:
    """The events as they were journalled. One whose seq is damaged gets that of the one before it."""
    seq = 0
    for row in rows:
        seq = seq if isinstance(row.seq, Damaged) else row.seq
        yield _stored(row, seq)


def _stored(row: Any, seq: int) -> Stored:
    """An event as it was journalled; a note if it cannot be read, for example because it is newer."""
    from orchestrator.core.event import Event, Noted

    inputs, unread, which = None, "", f"event {seq}, {row.kind!r},"
    if row.inputs is not None:
        try:  # unlike events, they may contain numbers that are not finite
            inputs = json.loads(_text(row.inputs), parse_constant=wire.NotFinite)
        except (ValueError, RecursionError) as error:
            unread = f"the inputs of {which} cannot be read: {error}"
    try:
        event = cast(Event, wire.decode(cast("type[Any]", Event), _text(row.body).encode()))
        if isinstance(row.seq, Damaged):
            raise ValueError(f"its seq is {row.seq.seen}")
    except ValueError as error:
        trouble = f"{which} cannot be read: {error}"
        return Stored(seq, Noted(max(0.0, row.at), trouble), inputs, trouble, unread)
    return Stored(seq, event, inputs, "", unread)


def _text(held: str) -> str:
    if isinstance(held, Damaged):
        raise ValueError(f"it is {held.seen}")
    return held
