"""Every question to the ledger: the engine's (what is due, who has a session) and people's.

Changes nothing. Knows the tables and the fold's snapshot; decides nothing about a run.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import ColumnElement, func, select, tuple_

from orchestrator.core import wire
from orchestrator.core.lifecycle import FINAL, Phase
from orchestrator.errors import BackendError, InputError
from orchestrator.ledger import takeover
from orchestrator.ledger.database import Database
from orchestrator.ledger.tables import events, measurements, runs

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.event import Event
    from orchestrator.core.run import RunRecord
    from orchestrator.core.speed import Measurement

CHUNK = 500  # rows asked for by name at once
MEASUREMENTS_MAX = 256
CANDIDATES_MAX = 10
_NEAREST_OF = 5000
_RESTING = (*(phase.value for phase in FINAL), Phase.HELD.value)
_RUN = re.compile(r"[a-z0-9-]+")


@dataclass(frozen=True)
class Stored:
    """One event of a run's history. `inputs`: what it was decided from, as JSON values (for `wire.decode`);
    on the first event of a decision, None on the others."""

    seq: int
    event: Event
    inputs: Any | None


@dataclass(frozen=True)
class RunSummary:
    """A run in a listing. `platform`, `accelerator`, `session` are of the current session, if it has one;
    `accepted_step` is of the newest accepted checkpoint; times in unix seconds."""

    run: str
    name: str
    phase: Phase
    version: int
    due_at: float | None
    submitted_at: float
    platform: str | None
    accelerator: str | None
    session: str | None
    reason: str
    until: float | None
    steps_total: int
    accepted_step: int | None
    ended_at: float | None


class LedgerReader:
    """The questions. Every one may raise `Transient` or another BackendError where the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._measured: dict[str, tuple[Measurement, ...]] = {}

    # --- One run ----------------------------------------------------------------------------------------

    def record(self, run: str) -> RunRecord:
        """The run's record; InputError where there is no run of this name."""
        for record in self._records([run]):
            return record
        raise InputError(f"there is no run called {run!r}; `orchestrator ps` lists them")

    def history(self, run: str, after: int = 0) -> tuple[Stored, ...]:
        """The run's events in order, those whose seq is above `after`."""
        query = (
            select(events.c.seq, events.c.body, events.c.inputs)
            .where(events.c.run == run, events.c.seq > after)
            .order_by(events.c.seq)
        )
        return tuple(
            Stored(row.seq, _event(run, row.body), None if row.inputs is None else json.loads(row.inputs))
            for row in self._all(query)
        )

    def find(self, text: str) -> str:
        """The run somebody means: its name, its job's name (the newest run), or a prefix that only it has.

        Raises InputError that lists the candidates, or the nearest names.
        """
        named = select(runs.c.run).order_by(runs.c.submitted_at.desc(), runs.c.run.desc())
        if _RUN.fullmatch(text):
            for condition in (runs.c.run == text, runs.c.name == text):
                for row in self._all(named.where(condition).limit(1)):
                    return str(row.run)
            starting = named.where(runs.c.run.startswith(text, autoescape=True)).limit(CANDIDATES_MAX + 1)
            found = [str(row.run) for row in self._all(starting)]
            if len(found) == 1:
                return found[0]
            if found:
                more = ", …" if len(found) > CANDIDATES_MAX else ""
                listed = ", ".join(found[:CANDIDATES_MAX])
                raise InputError(f"{text!r} may be several runs: {listed}{more}")
        known = [str(row.run) for row in self._all(named.limit(_NEAREST_OF))]
        near = difflib.get_close_matches(text, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`orchestrator ps` lists them"
        raise InputError(f"there is no run called {text!r}; {hint}")

    # --- Listings ---------------------------------------------------------------------------------------

    def summaries(
        self, phases: Collection[Phase] | None = None, limit: int | None = None
    ) -> tuple[RunSummary, ...]:
        """Runs, newest first, in these phases (None: in any); reads no record."""
        query = select(*(runs.c[field.name] for field in fields(RunSummary)))
        if phases is not None:
            query = query.where(runs.c.phase.in_(phase.value for phase in phases))
        query = query.order_by(runs.c.submitted_at.desc(), runs.c.run.desc()).limit(limit)
        return tuple(_summary(*row) for row in self._all(query))

    def live(self) -> tuple[RunRecord, ...]:
        """The runs that have a session, or strays."""
        names = [row.run for row in self._all(select(runs.c.run).where(runs.c.live).order_by(runs.c.run))]
        return tuple(self._records(names))

    def queued_waiting(self, limit: int, after: tuple[float, str] | None = None) -> tuple[RunRecord, ...]:
        """Queued runs that wait for a slot (no due time), in order of submission, `limit` at most.

        The next page is that after the last record's `(submitted_at, run)`.
        """
        query = select(runs.c.run).where(runs.c.phase == Phase.QUEUED.value, runs.c.due_at.is_(None))
        if after is not None:
            query = query.where(tuple_(runs.c.submitted_at, runs.c.run) > tuple_(*after))
        query = query.order_by(runs.c.submitted_at, runs.c.run).limit(limit)
        return tuple(self._records([row.run for row in self._all(query)]))

    # --- What is due ------------------------------------------------------------------------------------

    def due(
        self, now: float, limit: int | None = None, known: Mapping[str, int] | None = None
    ) -> tuple[RunRecord | str, ...]:
        """The runs whose due time has come, the longest due first.

        `known` maps runs to the versions the caller has: such a run is given by its name alone.
        """
        query = (
            select(runs.c.run, runs.c.version)
            .where(runs.c.due_at <= now)
            .order_by(runs.c.due_at, runs.c.run)
            .limit(limit)
        )
        versions = known or {}
        rows = [(row[0], versions.get(row[0]) == row[1]) for row in self._all(query)]
        fresh = {record.run: record for record in self._records([run for run, same in rows if not same])}
        return tuple(run if same else fresh[run] for run, same in rows)

    def next_due(self) -> float | None:
        """The earliest due time of any run, in unix seconds; None where none has one."""
        with self._database.read() as connection:
            return cast("float | None", connection.execute(select(func.min(runs.c.due_at))).scalar())

    def anything_left(self, besides: Collection[str] = ()) -> bool:
        """Whether any run is neither final nor held, has strays, or has a due time (a wish, a clean-up).
        Of the runs `besides` only a due time counts.

        A controller that leaves because of this must look once more after it has let go of its takeover:
        whoever submitted in between saw it alive and started none.
        """
        active = [phase.value for phase in Phase if phase.value not in _RESTING]
        others = runs.c.run.not_in(besides)
        left: tuple[ColumnElement[bool], ...] = (runs.c.live & others, runs.c.phase.in_(active) & others)
        with self._database.read() as connection:
            if connection.execute(select(func.min(runs.c.due_at))).scalar() is not None:
                return True
            return any(connection.execute(select(runs.c.run).where(c).limit(1)).first() for c in left)

    # --- Rates and control ------------------------------------------------------------------------------

    def measurements(self, job_key: str) -> tuple[Measurement, ...]:
        """The rates a job was seen to reach, on any accelerator, oldest first; the newest 256 at most."""
        if job_key not in self._measured:
            c = measurements.c
            query = select(c.body).where(c.job_key == job_key).order_by(c.at.desc(), c.number.desc())
            rows = self._all(query.limit(MEASUREMENTS_MAX))
            self._measured[job_key] = tuple(_measurement(job_key, row.body) for row in reversed(rows))
        return self._measured[job_key]

    def owner(self) -> takeover.Owner | None:
        """Who controls this database now; None where no controller lives."""
        return takeover.owner(self._database)

    # --- Rows -------------------------------------------------------------------------------------------

    def _all(self, query: Any) -> list[Any]:
        with self._database.read() as connection:
            return list(connection.execute(query).all())

    def _records(self, names: Iterable[str]) -> Iterator[RunRecord]:
        """The records of these runs, those that exist, in the order of the names."""
        remaining = iter(names)
        while chunk := list(islice(remaining, CHUNK)):
            query = select(runs.c.run, runs.c.record).where(runs.c.run.in_(chunk))
            texts = {row.run: row.record for row in self._all(query)}
            yield from (record_of(run, texts[run]) for run in chunk if run in texts)


def record_of(run: str, text: str) -> RunRecord:
    """The record a row holds; BackendError where it cannot be read."""
    from orchestrator.core.run import RunRecord

    try:
        return wire.decode(RunRecord, text.encode())
    except ValueError as error:
        raise BackendError(
            f"the ledger's record of {run} cannot be read: {error}", backend="ledger"
        ) from error


def _summary(run: str, name: str, phase: str, *rest: Any) -> RunSummary:
    return RunSummary(run, name, Phase(phase), *rest)  # the columns are those of its fields, in their order


def _event(run: str, text: str) -> Event:
    from orchestrator.core.event import Event

    try:
        return cast(Event, wire.decode(cast("type[Any]", Event), text.encode()))
    except ValueError as error:
        raise BackendError(f"an event of {run} cannot be read: {error}", backend="ledger") from error


def _measurement(job_key: str, text: str) -> Measurement:
    from orchestrator.core.speed import Measurement

    try:
        return wire.decode(Measurement, text.encode())
    except ValueError as error:
        raise BackendError(
            f"a measured rate of {job_key} cannot be read: {error}", backend="ledger"
        ) from error
