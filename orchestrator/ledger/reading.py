"""Every query of the ledger, for the engine (what is due, which runs have a session) and for people.

Changes nothing. Knows the tables and the stored records; decides nothing about a run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, false, func, or_, select, tuple_

from orchestrator.core import bounds, wire
from orchestrator.core.lifecycle import FINAL, Phase
from orchestrator.core.wording import did_you_mean
from orchestrator.errors import AmbiguousRun, BackendError, InputError
from orchestrator.ledger import takeover
from orchestrator.ledger.controlled import Controlled
from orchestrator.ledger.database import Database
from orchestrator.ledger.journal import Journal
from orchestrator.ledger.measured import Measured
from orchestrator.ledger.notifications import Notifications
from orchestrator.ledger.tables import (
    PHASES,
    RUN_NAME,
    Damaged,
    damage,
    metadata,
    notifications,
    runs,
    schedules,
)

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.run import RunRecord
    from orchestrator.core.session import ClosedSession
    from orchestrator.core.speed import Measurement

CHUNK = 500  # rows per query by name
CANDIDATES_MAX = 10
_NEAREST, _NEAREST_OF = 3, 5000
_NONE = (None, "")
_RESTING = (*(phase.value for phase in FINAL), Phase.HELD.value)


@dataclass(frozen=True)
class RunSummary:
    """A run in a listing. `platform`, `accelerator` and `session` are of the current session, if any.
    `accepted_step` is of the newest accepted checkpoint. Times in unix seconds. `store`: the home store;
    empty: the config's. `unreadable`: what of the row is damaged, so that no other field can be relied on."""

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
    store: str = ""
    unreadable: str = ""


@dataclass(frozen=True)
class Counts:
    """Runs by phase, notifications by state, and when the next schedule is due in unix seconds, if one is."""

    phases: Mapping[str, int]
    notifications: Mapping[str, int]
    next_fire: float | None


_SHOWN = tuple(runs.c[field.name] for field in fields(RunSummary) if field.name in runs.c)
_SUMMARIES = select(*_SHOWN, runs.c.live, runs.c.closed_at)  # only to say whether they are damaged
_SORTED = sorted(PHASES)
# Damaged values sort before, after or between the good ones, where the indexes find them.
_PHASE_DAMAGED = or_(
    runs.c.phase.is_(None), runs.c.phase < _SORTED[0], runs.c.phase > _SORTED[-1],
    *(and_(runs.c.phase > before, runs.c.phase < after) for before, after in pairwise(_SORTED)),
)  # fmt: skip
_MAY_BE_LIVE = runs.c.live.is_not(false())


class LedgerReader(Journal, Measured, Controlled):
    """The queries. Each may raise `Transient` or another BackendError if the database fails.

    `notifications`: what somebody is to be told, and was.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.notifications = Notifications(database)
        self._unreadable: dict[str, tuple[int, str]] = {}  # run → its version, and why
        self._measured: dict[str, tuple[Measurement, ...]] = {}
        self._controls = False
        self._older_store: str | None = None

    @property
    def unreadable(self) -> Mapping[str, str]:
        """The runs that `live`, `due` and `waiting` left out as unreadable, with the reason.

        Such a run is not read again until it changes. Nothing of it is deleted.
        """
        return {run: reason for run, (_, reason) in self._unreadable.items()}

    # --- One run ----------------------------------------------------------------------------------------

    def record(self, run: str) -> RunRecord:
        """The run's record. Raises InputError if there is no run of this name."""
        with self._database.read() as connection:
            text = connection.execute(select(runs.c.record).where(runs.c.run == run)).scalar()
        if text is not None:
            return self._record_of(run, str(text))
        raise InputError(f"there is no run called {run!r}; `orchestrator ps` lists them")

    def records(self, runs: Iterable[str]) -> Iterator[RunRecord]:
        """The records of those of these runs that exist, in the order of the names."""
        return self._records(runs)

    def find(self, text: str) -> str:
        """Finds a run by its name, by its job's name (the newest run), or by a unique prefix.

        Raises InputError with the candidates or the nearest names.
        """
        named = select(runs.c.run).order_by(runs.c.submitted_at.desc(), runs.c.run.desc())
        if RUN_NAME.fullmatch(text):
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
                raise AmbiguousRun(f"{text!r} matches several runs: {listed}{more}")
        known = [str(row.run) for row in self._all(named.limit(_NEAREST_OF))]
        near = did_you_mean(text, known, _NEAREST)
        raise InputError(f"there is no run called {text!r}; {near}`orchestrator ps` lists them")

    # --- Listings ---------------------------------------------------------------------------------------

    def summaries(
        self,
        phases: Collection[Phase] | None = None,
        limit: int | None = None,
        *,
        run: str | None = None,
        after: str | None = None,
    ) -> tuple[RunSummary, ...]:
        """Runs in these phases (None: in any), newest first, or the one `run`; with `after`, only those that
        come behind that run. Reads no record. A run whose phase is damaged may be in any."""
        query = _SUMMARIES if run is None else _SUMMARIES.where(runs.c.run == run)
        if phases is not None:
            query = query.where(or_(runs.c.phase.in_(phase.value for phase in phases), _PHASE_DAMAGED))
        if after is not None:  # compared by the database, where damaged times have a place in the order, too
            other = runs.alias()
            place = select(other.c.submitted_at, other.c.run).where(other.c.run == after).scalar_subquery()
            query = query.where(tuple_(runs.c.submitted_at, runs.c.run) < place)
        query = query.order_by(runs.c.submitted_at.desc(), runs.c.run.desc()).limit(limit)
        return tuple(_summary(row) for row in self._all(query))

    def damaged(self, names: Iterable[str]) -> dict[str, str]:
        """Those of these runs whose record is no record, and why. Fast, so it does not read all of a record:
        of one that is JSON and names its run, a wrong part is found only where the record is used."""
        found: dict[str, str] = {}
        for row in self._rows(names, runs.c.run, runs.c.record):
            if wrong := _wrong_record(row.run, row.record):
                found[row.run] = f"its record is unreadable ({wrong}); {_removed_by(row.run)}"
        return found

    def live(self) -> tuple[RunRecord, ...]:
        """The runs that have a session or strays."""
        query = select(runs.c.run).where(_MAY_BE_LIVE).order_by(runs.c.run)
        found = self._records([row.run for row in self._all(query)])
        return tuple(record for record in found if record.session is not None or record.strays)

    def closed_since(self, at: float) -> tuple[ClosedSession, ...]:
        """The sessions of any run that ended after `at`, as far as the records still have them."""
        query = select(runs.c.run).where(runs.c.closed_at > at).order_by(runs.c.closed_at, runs.c.run)
        found = (
            each for record in self._records([row.run for row in self._all(query)]) for each in record.closed
        )
        return tuple(each for each in found if each.gone_at > at)

    def waiting(self, known: Mapping[str, int]) -> tuple[RunRecord | str, ...]:
        """All queued runs that wait for a slot (no due time), in order of submission. `known` as in `due`."""
        query = (
            select(runs.c.run, runs.c.version)
            .where(or_(runs.c.phase == Phase.QUEUED.value, _PHASE_DAMAGED), runs.c.due_at.is_(None))
            .order_by(runs.c.submitted_at, runs.c.run)
        )
        found = self._unless_known(query, known)
        return tuple(each for each in found if isinstance(each, str) or each.phase is Phase.QUEUED)

    # --- What is due ------------------------------------------------------------------------------------

    def due(
        self, now: float, limit: int | None = None, known: Mapping[str, int] | None = None
    ) -> tuple[RunRecord | str, ...]:
        """The runs whose due time has come, or is damaged; the longest due first.

        `known` maps runs to the versions that the caller has. A run at that version is returned as its name.
        """
        query = (
            select(runs.c.run, runs.c.version)
            .where(or_(runs.c.due_at <= now, runs.c.due_at > bounds.TIME_MAX))
            .order_by(runs.c.due_at, runs.c.run)
            .limit(limit)
        )
        return self._unless_known(query, known or {})

    def _unless_known(self, query: Any, versions: Mapping[str, int]) -> tuple[RunRecord | str, ...]:
        rows = [(row[0], versions.get(row[0]) == row[1]) for row in self._all(query)
                if self._unreadable.get(row[0], _NONE)[0] != row[1]]  # fmt: skip
        fresh = {record.run: record for record in self._records([run for run, same in rows if not same])}
        return tuple(run if same else fresh[run] for run, same in rows if same or run in fresh)

    def next_due(self) -> float | None:
        """The earliest due time of any run that can be read, in unix seconds; None if no run has one."""
        query = select(runs.c.run, runs.c.due_at).where(runs.c.due_at.is_not(None)).order_by(runs.c.due_at)
        with self._database.read() as connection:
            found = connection.execute(query.limit(len(self._unreadable) + CHUNK))
            return next((row.due_at for row in found if self._is_readable(row.run)), None)

    def anything_left(self, besides: Collection[str] = ()) -> bool:
        """Whether any run is neither final nor held, has strays, or has a due time (a wish, a clean-up).

        For the runs in `besides` only a due time counts; runs that cannot be read do not count. A controller
        that exits because of this must check again after it has released its takeover: a process that
        submitted in between saw it running, and started no other.
        """
        if self.next_due() is not None or any(record.run not in besides for record in self.live()):
            return True
        active = [phase.value for phase in Phase if phase.value not in _RESTING]
        query = select(runs.c.run).where(runs.c.phase.in_(active))
        found = self._all(query.limit(len(besides) + len(self._unreadable) + CHUNK))
        return any(row.run not in besides and self._is_readable(row.run) for row in found)

    def _is_readable(self, run: str) -> bool:
        return run not in self._unreadable and not isinstance(run, Damaged)

    def anything_queued(self) -> bool:
        """Whether any run is queued."""
        query = select(runs.c.run).where(runs.c.phase == Phase.QUEUED.value).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

    def counts(self) -> Counts:
        """How many runs and notifications there are, and when the next schedule is due."""
        kept, sent, c = runs.c.phase, notifications.c.state, schedules.c
        due = select(func.min(c.next_at)).where(c.paused.is_(False), c.next_at.between(0, bounds.TIME_MAX))
        with self._database.read() as connection:
            phases = connection.execute(select(kept, func.count()).group_by(kept)).all()
            states = connection.execute(select(sent, func.count()).group_by(sent)).all()
            next_fire = connection.execute(due).scalar()
        return Counts({row[0]: row[1] for row in phases}, {row[0]: row[1] for row in states}, next_fire)

    # --- Size -------------------------------------------------------------------------------------------

    def size(self) -> int:
        """The size of the ledger on disk, in bytes: all of SQLite's files, or the server's tables."""
        path = self._database.path
        if path is not None:
            files = (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm"))
            return sum(file.stat().st_size for file in files if file.exists())
        sizes = [func.pg_total_relation_size(table.name) for table in metadata.sorted_tables]
        with self._database.read() as connection:
            return sum(connection.execute(select(*sizes)).one())

    # --- Rows -------------------------------------------------------------------------------------------

    def _all(self, query: Any) -> list[Any]:
        with self._database.read() as connection:
            return list(connection.execute(query).all())

    def _rows(self, names: Iterable[str], *columns: Any) -> Iterator[Any]:
        """These columns of those of these runs that exist, in the order of the names. The first is `run`."""
        remaining = iter(names)
        while chunk := list(islice(remaining, CHUNK)):
            rows = {row.run: row for row in self._all(select(*columns).where(runs.c.run.in_(chunk)))}
            yield from (rows[run] for run in chunk if run in rows)

    def _records(self, names: Iterable[str]) -> Iterator[RunRecord]:
        """The records of those of these runs that exist and can be read, in the order of the names."""
        for run, version, text in self._rows(self._named(names), runs.c.run, runs.c.version, runs.c.record):
            try:
                record = self._record_of(run, text)
                if version != record.version:  # nobody could append to it
                    seen = version.seen if isinstance(version, Damaged) else version
                    raise BackendError(
                        f"the ledger's row of {run} is damaged: its version is unreadable ({seen}); "
                        f"{_mended_by(run)}", backend="ledger",
                    )  # fmt: skip
            except BackendError as error:  # a run that cannot be read must not hide the others
                self._unreadable[run] = (version, str(error))
            else:
                self._unreadable.pop(run, None)
                yield record

    def _named(self, names: Iterable[str]) -> Iterator[str]:
        for run in names:
            if isinstance(run, Damaged):  # the database may have no text that is equal to it
                what = f"the ledger's row of {run} is damaged: its run is unreadable ({run.seen})"
                self._unreadable[run] = (-1, f"{what}; {_mended_by(run)}")
            else:
                yield run

    def _record_of(self, run: str, text: str) -> RunRecord:
        """The record in a row. Raises BackendError if it cannot be read. The first version journalled no
        store; its runs get the one that the next version's first controller found in the config."""
        try:
            if isinstance(text, Damaged):
                raise ValueError(f"it is {text.seen}")
            record = _decoded(text)
            if record.run != run:
                raise ValueError(f"it is of another run, {record.run!r}")
        except ValueError as error:
            raise BackendError(
                f"the ledger's record of {run} cannot be read: {error}; {_removed_by(run)}", backend="ledger"
            ) from error
        return record if record.store else replace(record, store=self._store_of_older())

    def _store_of_older(self) -> str:
        """The home store of runs that name none. The first call asks the database, so it must not happen
        inside a transaction that writes: that could wait for its own connection."""
        if self._older_store is None:
            self._older_store = takeover.older_store(self._database)
        return self._older_store


@lru_cache(maxsize=64)
def _decoded(text: str) -> RunRecord:
    """Kept for those who ask again and again until a run has changed. Raises ValueError."""
    from orchestrator.core.run import RunRecord

    return wire.decode(RunRecord, text.encode())


def _summary(row: Any) -> RunSummary:
    """The columns are the fields of RunSummary, in their order."""
    run, name, phase, *rest = row[: len(_SHOWN)]
    wrong = damage(row)
    if not wrong:
        return RunSummary(run, name, Phase(phase), *rest)
    known = Phase.HELD if isinstance(phase, Damaged) else Phase(phase)
    found = RunSummary(run, name, known, *rest)
    return replace(found, unreadable=f"{wrong}; {_mended_by(run)}")


def _wrong_record(run: str, text: str) -> str:
    """Why this is not the record of the run, as far as can be told without decoding it."""
    if isinstance(text, Damaged):
        return text.seen
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    return "" if isinstance(found, dict) and found.get("run") == run else "not a record of this run"


def _mended_by(run: str) -> str:
    """What to do about a damaged column that repeats a part of the record."""
    return _by(run, f"`orchestrator release {run}` writes it again from the run's record")


def _removed_by(run: str) -> str:
    """What to do about a damaged record."""
    return _by(run, f"`orchestrator rm --keep-checkpoints {run}` removes the run from this ledger only")


def _by(run: str, remedy: str) -> str:
    return "`orchestrator restore` brings back a backup" if isinstance(run, Damaged) else remedy
