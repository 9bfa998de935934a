"""The real ledger, fast enough for thousands of schedules, with another writer in between.

Every change goes to SQLite, and what it answers is remembered: see tests/simulation/remembered.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import event

from orchestrator.core.event import Submitted, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.schedule import Schedule, Steps
from orchestrator.errors import LedgerConflict
from orchestrator.ledger import Ledger, Proposal
from orchestrator.ledger.database import Database
from orchestrator.ledger.ledger import DUE_NOW, Check, _check_fence
from orchestrator.ledger.schedules import Schedules
from tests.simulation.remembered import COMPARED_EVERY, RememberedLedger


class SimulatedLedger(RememberedLedger):
    """The ledger of one process: nobody else may write to its database.

    `before` and `after` run around every append: there a user's wish may arrive, and the controller may die.
    `changed` is called for every change.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.before: Callable[[Sequence[Proposal]], None] = lambda _proposals: None
        self.after: Callable[[], None] = lambda: None
        self.changed: Callable[[RunRecord], None] = lambda _record: None
        self.conflicts = 0

    @classmethod
    def make(cls, path: Path) -> SimulatedLedger:
        """Creates a ledger at this path. It need not survive a power failure."""
        return cls._of(path, _empty())

    @classmethod
    def _of(cls, path: Path, content: bytes) -> SimulatedLedger:
        path.write_bytes(content)
        database = Database(f"sqlite:///{path}")
        event.listen(database._engine, "connect", _without_disk)
        return cls(database)

    def copied(self, path: Path) -> SimulatedLedger:
        """A copy of this ledger, as `cp` would make it. It goes its own way."""
        assert self.path is not None
        with sqlite3.connect(self.path) as connection:
            content = connection.serialize()
        connection.close()
        other = self._of(path, content)
        other._latest, other._due_at = dict(self._latest), dict(self._due_at)
        return other

    @property
    def schedules(self) -> SimulatedSchedules:
        return SimulatedSchedules(self)

    # --- Changes: the database's word, remembered -----------------------------------------------------------

    def submit(
        self, event: Submitted, *, due_at: float | None = DUE_NOW, check: Check | None = None
    ) -> RunRecord:
        return self._remember(super().submit(event, due_at=due_at, check=check), due_at)

    def append_many(
        self, proposals: Sequence[Proposal], *, fence: int | None = None
    ) -> list[RunRecord | LedgerConflict]:
        self.before(proposals)
        answers = super().append_many(proposals, fence=fence)
        for proposal, answer in zip(proposals, answers, strict=True):
            if isinstance(answer, LedgerConflict):
                self.conflicts += 1
            else:
                self._remember(answer, proposal.due_at)
        self.after()
        return answers

    def wish(self, run: str, event: Wished) -> RunRecord:
        before = self._latest[run]
        revived = before.phase is Phase.FAILED and event.wish is Wish.RELEASE
        over = before.phase.final and not before.strays and not revived
        return self._remember(super().wish(run, event), self._due_at[run] if over else DUE_NOW)

    def schedule(self, due: Iterable[tuple[RunRecord, float | None]], *, fence: int | None = None) -> None:
        news = [(record, at) for record, at in due]
        super().schedule(news, fence=fence)
        for record, at in news:
            if self._latest[record.run].version == record.version:
                self._due_at[record.run] = at

    def wake_queued(self) -> None:
        deferred = [
            run for run, due_at in self._due_at.items() if due_at is not None and due_at > DUE_NOW
            and self._latest[run].phase is Phase.QUEUED and self._latest[run].until is not None
        ]  # fmt: skip
        self._readings += 1
        if deferred or self._readings % COMPARED_EVERY == 0:
            super().wake_queued()
        self._due_at.update(dict.fromkeys(deferred))

    def _remember(self, record: RunRecord, due_at: float | None) -> RunRecord:
        self._latest[record.run] = record
        self._due_at[record.run] = due_at
        self.changed(record)
        return record


class SimulatedSchedules(Schedules):
    """Its ledger remembers what schedules do to runs. The controller may die before and after each fire."""

    def __init__(self, ledger: SimulatedLedger) -> None:
        super().__init__(ledger._database, ledger._take_steps, ledger._take_changes, _check_fence)
        self._ledger = ledger

    def take(self, before: Schedule, steps: Steps, *, fence: int | None = None) -> Schedule:
        self._ledger.before([])
        found = super().take(before, steps, fence=fence)
        self._remember(steps)
        self._ledger.after()
        return found

    def remove(self, schedule: Schedule, steps: Steps) -> None:
        super().remove(schedule, steps)
        self._remember(steps)

    def _remember(self, steps: Steps) -> None:
        for submission in steps.submissions:
            self._ledger._remember(submit(submission), DUE_NOW)
        for before, events in steps.changes:
            self._ledger._remember(reduce(apply, events, before), DUE_NOW)


@cache
def _empty() -> bytes:
    """A database with the tables of this version and no rows: made once, copied for each world."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        Ledger.open(f"sqlite:///{path}").close()
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.close()
        return path.read_bytes()


def _without_disk(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")
