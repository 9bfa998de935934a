"""Every change to the ledger: events appended in one transaction, with optimistic versions and a fence.

Only the fold (`orchestrator.core.run.apply`) changes a record; this module stores the result. Decides
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Connection, bindparam, insert, select, update

from orchestrator.core import wire
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.errors import Fenced, InputError, LedgerConflict
from orchestrator.ledger import takeover
from orchestrator.ledger.database import Database
from orchestrator.ledger.measured import place_key
from orchestrator.ledger.migration import migrate
from orchestrator.ledger.reading import CHUNK, LedgerReader
from orchestrator.ledger.schedules import Schedules
from orchestrator.ledger.tables import CONTROLLER_ROW, controller, damage, events, measurements, run_row, runs

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.event import Event, Submitted, Wished
    from orchestrator.core.job import Job
    from orchestrator.core.lifetimes import Lifetime
    from orchestrator.core.notice import Outgoing
    from orchestrator.core.run import RunRecord
    from orchestrator.core.schedule import Changes, Steps
    from orchestrator.core.speed import Measurement

DUE_NOW = 0.0
Check = Callable[[], None]
Notices = Callable[["RunRecord", "Event", "RunRecord"], "Sequence[Outgoing]"]
Missed = Callable[[str, "Job", float, float, str], "Sequence[Outgoing]"]

# The queries of every tick, built once.
_FENCE = select(controller.c.fence).where(controller.c.number == CONTROLLER_ROW).with_for_update(read=True)
_VERSIONS = (
    select(runs.c.run, runs.c.version)
    .where(runs.c.run.in_(bindparam("names", expanding=True)))
    .order_by(runs.c.run)
    .with_for_update()
)
_RECORD = update(runs).where(runs.c.run == bindparam("of"))
_DUE = _RECORD.where(runs.c.version == bindparam("at_version"))
_WAKE = (
    update(runs)
    .where(runs.c.phase == Phase.QUEUED.value, runs.c.until.is_not(None), runs.c.due_at > DUE_NOW)
    .values(due_at=None)
)


@dataclass(frozen=True)
class Proposal:
    """One or more events to append to the run in `record`, and when it is due afterwards.

    `inputs` is what the events were decided from: any value that `orchestrator.core.wire` can encode.
    """

    record: RunRecord
    events: Sequence[Event]
    due_at: float | None
    inputs: object | None = None


class Ledger(LedgerReader):
    """The ledger of one database. Safe to use from several threads; several processes may open one.

    `notices`: record before × event × record after → what somebody is to be told of it. `append` and
    `append_many` write these rows with the event, or neither. It must not raise. `missed`: the same for a
    fire of a schedule that did not take place.
    """

    notices: Notices | None = None
    missed: Missed | None = None
    _takeover: takeover.Takeover | None = None

    @classmethod
    def open(cls, url: str, *, alone: bool = False) -> Self:
        """Opens `sqlite:///PATH` or `postgresql://…`, and creates or upgrades its tables.

        `alone` (SQLite only): opens it also on a full disk, and for this process only. Raises InputError (not
        a ledger, or of a newer version), AccessDenied (not writable, wrong password), Transient (locked, no
        server) and DiskFull; each message says what to do next.
        """
        database = Database(url, alone=alone)
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        """Releases the takeover, if this ledger holds it, and closes the database."""
        if self._takeover is not None:
            self._takeover.release()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def schedules(self) -> Schedules:
        """The schedules of this ledger, and their fires."""
        return Schedules(self._database, self._take_steps, self._take_changes, _check_fence)

    def _take_steps(self, connection: Connection, steps: Steps) -> None:
        """Writes what a schedule does to runs. Raises LedgerConflict if one of them has changed."""
        self._take_changes(connection, steps.changes, steps.submissions, self._missed(steps))

    def _take_changes(
        self,
        connection: Connection,
        changes: Changes,
        submissions: Iterable[Submitted] = (),
        outgoing: Iterable[Outgoing] = (),
    ) -> None:
        from orchestrator.core.run import submit

        proposals = [Proposal(record, events, DUE_NOW) for record, events in changes]
        drafts = [_draft(proposal, self.notices) for proposal in proposals]
        versions = _lock_versions(connection, (draft.run for draft in drafts))
        for draft in drafts:
            if versions.get(draft.run) != draft.version:
                raise _conflict(draft, versions.get(draft.run))
        for event in submissions:
            record = submit(event)
            connection.execute(insert(runs), run_row(record, DUE_NOW))
            connection.execute(insert(events), _event_row(event, record.run, record.version, None))
        _write(connection, drafts)
        self.notifications.add(connection, [*outgoing, *(o for d in drafts for o in d.outgoing)])

    def _missed(self, steps: Steps) -> Iterator[Outgoing]:
        from orchestrator.core.schedule import FireOutcome

        if self.missed is None:
            return
        name, job = steps.schedule.name, steps.schedule.job
        for fire in steps.fires:
            if fire.outcome is FireOutcome.MISSED:
                yield from self.missed(name, job, fire.planned, fire.at, fire.reason)

    # --- Events -----------------------------------------------------------------------------------------

    def submit(
        self, event: Submitted, *, due_at: float | None = DUE_NOW, check: Check | None = None
    ) -> RunRecord:
        """Records a new run. `check` is called just before the commit; if it raises, nothing is recorded.

        Raises LedgerConflict if a run of this name exists.
        """
        from orchestrator.core.run import submit

        record = submit(event)
        with self._database.write() as connection:
            connection.execute(insert(runs), run_row(record, due_at))
            connection.execute(insert(events), _event_row(event, record.run, record.version, None))
            if check is not None:
                check()
        return record

    def adopt(self, submitted: Submitted, then: Sequence[Event]) -> RunRecord:
        """Records a run of another ledger with these events after its submission, all or nothing. It is not
        due. Raises LedgerConflict if a run of this name exists."""
        from orchestrator.core.run import submit

        first = submit(submitted)
        draft = _draft(Proposal(first, then, None))
        with self._database.write() as connection:
            connection.execute(insert(runs), draft.row)
            rows = [_event_row(submitted, first.run, first.version, None), *draft.event_rows]
            connection.execute(insert(events), rows)
        return draft.after

    def append(
        self,
        record: RunRecord,
        events: Sequence[Event],
        *,
        due_at: float | None,
        inputs: object | None = None,
        fence: int | None = None,
    ) -> RunRecord:
        """Appends to one run and returns its record afterwards.

        Raises LedgerConflict if another process appended to it first, and Fenced if `fence` is not the number
        of the current controller (None: this process is not a controller).
        """
        [answer] = self.append_many([Proposal(record, events, due_at, inputs)], fence=fence)
        if isinstance(answer, LedgerConflict):
            raise answer
        return answer

    def append_many(
        self, proposals: Sequence[Proposal], *, fence: int | None = None
    ) -> list[RunRecord | LedgerConflict]:
        """Appends to several runs in one transaction: a record or a conflict for each, in their order.

        A conflict leaves its run unchanged and does not affect the others. Raises Fenced as `append` does.
        """
        drafts = [_draft(proposal, self.notices) for proposal in proposals]
        assert len({draft.run for draft in drafts}) == len(drafts), "one proposal a run"
        if not drafts:
            return []
        with self._database.write() as connection:
            _check_fence(connection, fence)
            versions = _lock_versions(connection, (draft.run for draft in drafts))
            accepted = [draft for draft in drafts if versions.get(draft.run) == draft.version]
            _write(connection, accepted)
            self.notifications.add(connection, [row for draft in accepted for row in draft.outgoing])
        taken = {draft.run for draft in accepted}
        return [d.after if d.run in taken else _conflict(d, versions.get(d.run)) for d in drafts]

    def wish(self, run: str, event: Wished) -> RunRecord:
        """Records what a user wants, whatever else happens to the run, and makes the run due at once.

        A run with nothing left to do keeps its due time. Raises InputError if there is no such run.
        """
        query = select(runs.c.record, runs.c.due_at).where(runs.c.run == run).with_for_update()
        self._store_of_older()
        with self._database.write() as connection:
            row = connection.execute(query).one_or_none()
            if row is None:
                raise InputError(f"there is no run called {run!r}; `orchestrator ps` lists them")
            record = self._record_of(run, row.record)
            revived = record.phase is Phase.FAILED and event.wish is Wish.RELEASE
            over = record.phase.final and not record.strays and not revived
            draft = _draft(Proposal(record, (event,), row.due_at if over else DUE_NOW))
            _write(connection, [draft])
        return draft.after

    def mend(self, run: str, now: float) -> bool:
        """Writes the row of a run again from its record, with a note, if a column is damaged. Returns whether
        one was. Raises BackendError if the record is."""
        from orchestrator.core.event import Noted

        self._store_of_older()
        with self._database.write() as connection:
            row = connection.execute(select(runs).where(runs.c.run == run).with_for_update()).one_or_none()
            if row is None:
                return False
            record = self._record_of(run, row.record)
            wrong = damage(row) or ("" if row.version == record.version else "its version is wrong")
            if wrong:
                over = record.phase.final and not record.strays
                noted = Noted(now, f"{wrong}: the row was written again from its record")
                _write(connection, [_draft(Proposal(record, (noted,), None if over else DUE_NOW))])
        return bool(wrong)

    # --- Due times --------------------------------------------------------------------------------------

    def schedule(self, due: Iterable[tuple[RunRecord, float | None]], *, fence: int | None = None) -> None:
        """Sets when runs are due next, without an event (None: when something else happens).

        If another process appended to a run since its record was read, the run keeps its newer due time.
        """
        rows = sorted(
            ({"of": r.run, "at_version": r.version, "due_at": at} for r, at in due),
            key=lambda row: str(row["of"]),
        )
        if not rows:
            return
        with self._database.write() as connection:
            _check_fence(connection, fence)
            connection.execute(_DUE, rows)

    def wake_queued(self) -> None:
        """To call when offers have changed: queued runs that were deferred to a time now wait for a slot."""
        with self._database.write() as connection:
            connection.execute(_WAKE)

    # --- Control and rates ------------------------------------------------------------------------------

    def take_over(self, name: str, *, now: float, home_store: str = "") -> takeover.Takeover:
        """Makes this process the one controller of the database, until released or dead.

        `name` is shown to people. `home_store` is the config's; runs that the first version submitted get it
        for good. Raises ControllerRunning if another controller is running.
        """
        taken = takeover.take_over(self._database, name, now, home_store)
        self._took(taken)
        return taken

    def stand_by(self, name: str, *, now: float) -> takeover.Waiting:
        """Puts this process in the line for control of the database. `name` as in `take_over`."""
        return takeover.Waiting(self._database, name, now, self._took)

    def _took(self, taken: takeover.Takeover) -> None:
        self._takeover = taken
        self._older_store = None
        self._controls = True
        self._measured.clear()  # an earlier controller may have added to them

    def add_measurement(self, job_key: str, measurement: Measurement) -> None:
        """Stores a measured rate of a job."""
        row = {"job_key": job_key, "at": measurement.at, "body": wire.encode(measurement).decode()}
        with self._database.write() as connection:
            connection.execute(insert(measurements), row)
        self._measured.pop(job_key, None)

    def add_lifetime(self, platform: str, accelerator: str, lifetime: Lifetime) -> None:
        """Stores how long a session there lived."""
        body = wire.encode(lifetime).decode()
        row = {"job_key": place_key(platform, accelerator), "at": lifetime.at, "body": body}
        with self._database.write() as connection:
            connection.execute(insert(measurements), row)


@dataclass(frozen=True)
class _Draft:
    """A proposal, applied and encoded before the transaction begins."""

    run: str
    version: int
    after: RunRecord
    row: dict[str, Any]
    event_rows: list[dict[str, Any]]
    outgoing: list[Outgoing]


def _draft(proposal: Proposal, notices: Notices | None = None) -> _Draft:
    from orchestrator.core.run import apply

    record = proposal.record
    assert proposal.events, "nothing to append; `schedule` changes a due time"
    rows: list[dict[str, Any]] = []
    outgoing: list[Outgoing] = []
    inputs = proposal.inputs
    for event in proposal.events:
        before, record = record, apply(record, event)
        rows.append(_event_row(event, record.run, record.version, inputs))
        outgoing += () if notices is None else notices(before, event, record)
        inputs = None
    row = run_row(record, proposal.due_at)
    return _Draft(record.run, proposal.record.version, record, row, rows, outgoing)


def _event_row(event: Event, run: str, seq: int, inputs: object | None) -> dict[str, Any]:
    return {
        "run": run,
        "seq": seq,
        "at": event.at,
        "kind": event.kind.value,
        "body": wire.encode(event).decode(),
        "inputs": None if inputs is None else _explanation(inputs),
    }


def _explanation(inputs: object) -> str:
    """Unlike events, the inputs may contain numbers that are not finite."""
    return json.dumps(wire.to_json(inputs), separators=(",", ":"))


def _check_fence(connection: Connection, fence: int | None) -> None:
    """The row stays locked until the commit: a takeover waits for it, and then the next write is refused."""
    if fence is None:
        return
    current = connection.execute(_FENCE).scalar_one()
    if current != fence:
        raise Fenced(f"another controller has taken over (it is number {current}, this one was {fence})")


def _lock_versions(connection: Connection, names: Iterable[str]) -> dict[str, int]:
    """The versions of these runs, locked until the commit."""
    ordered = sorted(names)
    versions: dict[str, int] = {}
    for start in range(0, len(ordered), CHUNK):
        chunk = ordered[start : start + CHUNK]
        versions |= {row.run: row.version for row in connection.execute(_VERSIONS, {"names": chunk})}
    return versions


def _write(connection: Connection, drafts: Sequence[_Draft]) -> None:
    if drafts:
        rows = [{"of" if name == "run" else name: v for name, v in draft.row.items()} for draft in drafts]
        connection.execute(_RECORD, rows)
        connection.execute(insert(events), [row for draft in drafts for row in draft.event_rows])


def _conflict(draft: _Draft, version: int | None) -> LedgerConflict:
    found = "is not in the ledger" if version is None else f"is at version {version}"
    return LedgerConflict(f"{draft.run} {found}; this was decided at version {draft.version}")
