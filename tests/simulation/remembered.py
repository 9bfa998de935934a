"""A ledger that answers from memory what every tick asks, and regularly compares that with the database.

A difference is a bug of the ledger, or of this memory. Who writes to it fills it: tests/simulation/ledger.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.ledger import Ledger
from orchestrator.ledger.database import Database
from orchestrator.ledger.journal import Stored

COMPARED_EVERY = 64  # readings
T = TypeVar("T")


class RememberedLedger(Ledger):
    """The readings of a ledger. `_latest` and `_due_at` are what is remembered of each run."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._latest: dict[str, RunRecord] = {}
        self._due_at: dict[str, float | None] = {}
        self._histories: dict[str, tuple[int, tuple[Stored, ...]]] = {}
        self._readings = 0

    def known(self) -> list[str]:
        """Every run, in the order in which they came."""
        return list(self._latest)

    def history(self, run: str, after: int = 0) -> tuple[Stored, ...]:
        """Read once per version, because many checks ask for it."""
        version = self._latest[run].version
        if after or self._histories.get(run, (0, ()))[0] != version:
            found = super().history(run, after)
            if after:
                return found
            self._histories[run] = (version, found)
        return self._histories[run][1]

    def record(self, run: str) -> RunRecord:
        return self._compared(self._latest[run], lambda: super(RememberedLedger, self).record(run))

    def live(self) -> tuple[RunRecord, ...]:
        """What a new controller continues from is read from the database, not remembered."""
        return tuple(self._same(self._latest[record.run], record) for record in super().live())

    def waiting(self, known: Mapping[str, int]) -> tuple[RunRecord | str, ...]:
        rows = [r for r in self._latest.values()
                if r.phase is Phase.QUEUED and self._due_at[r.run] is None]  # fmt: skip
        rows.sort(key=lambda record: (record.submitted_at, record.run))
        found = tuple(r.run if known.get(r.run) == r.version else r for r in rows)
        ask = super().waiting
        return self._compared(found, lambda: ask(known))

    def due(
        self, now: float, limit: int | None = None, known: Mapping[str, int] | None = None
    ) -> tuple[RunRecord | str, ...]:
        rows = sorted((at, run) for run, at in self._due_at.items() if at is not None and at <= now)
        versions = known or {}
        latest = (self._latest[run] for _, run in rows[:limit])
        found = tuple(r.run if versions.get(r.run) == r.version else r for r in latest)
        ask = super().due
        return self._compared(found, lambda: ask(now, limit, known))

    def next_due(self) -> float | None:
        earliest = min((at for at in self._due_at.values() if at is not None), default=None)
        return self._compared(earliest, super().next_due)

    def latest(self, run: str) -> RunRecord:
        """The run's record, for readers that only observe."""
        return self._latest[run]

    def compare(self) -> None:
        """Compares everything in memory with everything stored."""
        for run, record in self._latest.items():
            self._same(record, super().record(run))

    def _compared(self, remembered: T, ask: Callable[[], T]) -> T:
        self._readings += 1
        return self._same(remembered, ask()) if self._readings % COMPARED_EVERY == 0 else remembered

    def _same(self, remembered: T, stored: T) -> T:
        assert stored == remembered, f"the ledger says {stored}, the memory says {remembered}"
        return stored
