"""Schedules and their fires in the ledger: what is due, and every change in one transaction.

A fire, the run that it begins and the events of runs that it wakes are written together or not at all. The
fire's key is its planned instant, so it is written once. Decides nothing: `orchestrator.core.schedule` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, delete, insert, or_, select, update

from orchestrator.core import wire
from orchestrator.core.bounds import TIME_MAX
from orchestrator.errors import BackendError, InputError, LedgerConflict
from orchestrator.ledger.database import Database
from orchestrator.ledger.tables import damage, fires, runs, schedules

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.schedule import Changes, Fire, Schedule, Steps

LOOK_NOW = 0.0
_DUE = select(schedules.c.name).where(
    or_(schedules.c.next_at <= bindparam("now"), schedules.c.next_at > TIME_MAX)  # the latter is damaged
).order_by(schedules.c.next_at, schedules.c.name)  # fmt: skip


class Schedules:
    """The schedules of one ledger. `write` appends what a schedule does to runs, within its transaction, and
    `free` events of runs that it no longer has."""

    def __init__(
        self,
        database: Database,
        write: Callable[[Connection, Steps], None],
        free: Callable[[Connection, Changes], None],
        check: Callable[[Connection, int | None], None],
    ) -> None:
        self._database = database
        self._write = write
        self._free = free
        self._check = check

    # --- Reading ----------------------------------------------------------------------------------------

    def all(self) -> tuple[Schedule, ...]:
        """Every schedule that can be read, by name."""
        return tuple(found for found in (self._read(row) for row in self._rows()) if found is not None)

    def one(self, name: str) -> Schedule | None:
        """The schedule of this name. Raises BackendError if this version cannot read it."""
        with self._database.read() as connection:
            row = connection.execute(select(schedules).where(schedules.c.name == name)).one_or_none()
        return None if row is None else _decoded(row)

    def unreadable(self) -> dict[str, str]:
        """The schedules that this version cannot read, with the reason. They do not fire."""
        found: dict[str, str] = {}
        for row in self._rows():
            try:
                _decoded(row)
            except BackendError as error:
                found[row.name] = str(error)
        return found

    def due(self, now: float) -> tuple[str, ...]:
        """The names of the schedules for which something is to be done."""
        with self._database.read() as connection:
            return tuple(row[0] for row in connection.execute(_DUE, {"now": now}))

    def next_at(self, besides: Collection[str] = ()) -> tuple[str, float] | None:
        """The schedule for which something is to be done first, and when; None if there is none. `besides`:
        schedules that do not count."""
        first = select(schedules.c.name, schedules.c.next_at).where(
            schedules.c.next_at.is_not(None), schedules.c.name.not_in(besides)
        )
        with self._database.read() as connection:
            rows = connection.execute(first.order_by(schedules.c.next_at, schedules.c.name)).all()
        return next(((row[0], row[1]) for row in rows if not damage(row)), None)

    def runs_of(self, name: str) -> tuple[str, ...]:
        """The runs under way that carry the name of the schedule's job."""
        under_way = select(runs.c.run).where(runs.c.name == name, runs.c.ended_at.is_(None))
        with self._database.read() as connection:
            return tuple(row[0] for row in connection.execute(under_way.order_by(runs.c.run)))

    def existing(self, names: Collection[str]) -> frozenset[str]:
        """Those of these runs that exist, over or not."""
        if not names:
            return frozenset()
        with self._database.read() as connection:
            return frozenset(
                row[0] for row in connection.execute(select(runs.c.run).where(runs.c.run.in_(names)))
            )

    def fires(self, name: str, limit: int | None = None) -> tuple[Fire, ...]:
        """What became of its planned instants, the newest first."""
        query = select(fires).where(fires.c.schedule == name).order_by(fires.c.planned.desc()).limit(limit)
        with self._database.read() as connection:
            return tuple(_fire(row) for row in connection.execute(query))

    def fired(self, name: str, planned: Sequence[float]) -> frozenset[float]:
        """Those of these planned instants that were handled."""
        if not planned:
            return frozenset()
        query = select(fires.c.planned).where(fires.c.schedule == name, fires.c.planned.between(
            min(planned), max(planned)
        ))  # fmt: skip
        with self._database.read() as connection:
            return frozenset(row[0] for row in connection.execute(query)) & frozenset(planned)

    def _rows(self) -> list[Any]:
        with self._database.read() as connection:
            return list(connection.execute(select(schedules).order_by(schedules.c.name)).all())

    def _read(self, row: Any) -> Schedule | None:
        try:
            return _decoded(row)
        except BackendError:
            return None

    # --- Writing ----------------------------------------------------------------------------------------

    def take(self, before: Schedule, steps: Steps, *, fence: int | None = None) -> Schedule:
        """Writes what a schedule does, all or nothing, and returns it as it is afterwards.

        Raises LedgerConflict if somebody changed the schedule or one of its runs since they were read, or if
        one of its fires was written before; then nothing has changed. Raises Fenced as `append` does.
        """
        after = replace(steps.schedule, version=before.version + 1)
        with self._database.write() as connection:
            self._check(connection, fence)
            self._update(connection, before, after, steps.next_at)
            if steps.fires:
                connection.execute(insert(fires), [_fire_row(before.name, each) for each in steps.fires])
            for each in steps.settled:
                row = _fire_row(before.name, each)
                connection.execute(
                    update(fires)
                    .where(fires.c.schedule == before.name, fires.c.planned == each.planned)
                    .values({key: row[key] for key in ("at", "outcome", "run", "reason")})
                )
            self._write(connection, steps)
        return after

    def look_at(self, schedule: Schedule, at: float | None, *, fence: int | None = None) -> None:
        """Sets when something is to be done for an unchanged schedule. If it was changed since it was read,
        it keeps its newer time."""
        unchanged = (schedules.c.name == schedule.name, schedules.c.version == schedule.version)
        with self._database.write() as connection:
            self._check(connection, fence)
            connection.execute(update(schedules).where(*unchanged).values(next_at=at))

    def add(self, schedule: Schedule) -> None:
        """Registers a schedule. Raises LedgerConflict if there is one of this name."""
        with self._database.write() as connection:
            connection.execute(insert(schedules), {"name": schedule.name, **_row(schedule, LOOK_NOW)})

    def remove(self, schedule: Schedule, steps: Steps) -> None:
        """Removes it with its history, and does to its runs what `steps` say. Raises LedgerConflict as `take`
        does."""
        with self._database.write() as connection:
            gone = connection.execute(
                delete(schedules).where(
                    schedules.c.name == schedule.name, schedules.c.version == schedule.version
                )
            )
            _check_one(gone.rowcount, schedule.name)
            connection.execute(delete(fires).where(fires.c.schedule == schedule.name))
            self._write(connection, steps)

    def remove_unreadable(self, name: str, changes: Changes) -> None:
        """As `remove`, for a schedule that this version cannot read. `changes`: events of its runs."""
        with self._database.write() as connection:
            gone = connection.execute(delete(schedules).where(schedules.c.name == name))
            _check_one(gone.rowcount, name)
            connection.execute(delete(fires).where(fires.c.schedule == name))
            self._free(connection, changes)

    def _update(
        self, connection: Connection, before: Schedule, after: Schedule, next_at: float | None
    ) -> None:
        changed = connection.execute(
            update(schedules)
            .where(schedules.c.name == before.name, schedules.c.version == before.version)
            .values(_row(after, next_at))
        )
        _check_one(changed.rowcount, before.name)


def _check_one(count: int, name: str) -> None:
    if count != 1:
        raise LedgerConflict(f"somebody else has just changed or removed the schedule {name}: try again")


def _row(schedule: Schedule, next_at: float | None) -> dict[str, Any]:
    return {
        "version": schedule.version,
        "created_at": schedule.created_at,
        "paused": schedule.paused_at is not None,
        "next_at": next_at,
        "run": schedule.run or None,
        "body": wire.encode(schedule).decode(),
    }


def _decoded(row: Any) -> Schedule:
    from orchestrator.core.schedule import Schedule

    name = row.name
    try:
        if wrong := damage(row):
            raise ValueError(wrong)
        found = wire.decode(Schedule, row.body.encode())
        if found.job.schedule is None:
            raise ValueError("its job has no schedule")
    except ValueError as error:
        raise BackendError(
            f"the schedule {name} cannot be read: {error}; update the orchestrator if a newer one wrote it, "
            f"or remove it with `orchestrator schedule rm {name}`",
            backend="ledger",
        ) from error
    return found


def _fire_row(name: str, fire: Fire) -> dict[str, Any]:
    return {
        "schedule": name,
        "planned": fire.planned,
        "at": fire.at,
        "outcome": fire.outcome.value,
        "run": fire.run or None,
        "reason": fire.reason,
        "count": fire.count,
    }


def _fire(row: Any) -> Fire:
    from orchestrator.core.schedule import Fire, FireOutcome

    try:
        outcome, reason = FireOutcome(row.outcome), row.reason
    except ValueError:  # a newer version wrote it
        outcome, reason = FireOutcome.SKIPPED, f"{row.outcome}: {row.reason}"
    if wrong := damage(row):
        reason = f"damaged: {wrong}"
    planned, at, count = max(0.0, row.planned), max(0.0, row.at), max(1, row.count)
    return Fire(planned, at, outcome, row.run or "", reason, count)


def unknown(name: str, known: Iterable[str]) -> InputError:
    """The error for a schedule that does not exist."""
    from orchestrator.core.wording import did_you_mean

    near = did_you_mean(name, known)
    return InputError(f"there is no schedule called {name!r}; {near}`orchestrator schedule list` lists them")
