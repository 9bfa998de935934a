"""Which queued runs are judged in a tick, in which order, and what the ones before them leave for each.

In memory only. The most urgent runs are laid out, one after the other. Those that are due, that may start, or
that were not asked since the offers changed are judged; a tick judges only so many, and the next one goes on.
Decides nothing: `orchestrator.core.queueing` has the order, `orchestrator.core.route` the answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from orchestrator.core.calendar import Calendar, Opening
from orchestrator.core.itinerary import SOON_SECONDS, Way
from orchestrator.core.layout import fitting, queued
from orchestrator.core.lifecycle import Phase
from orchestrator.core.pause import pausing
from orchestrator.core.queueing import (
    Kept,
    Place,
    Rank,
    Reserve,
    Waiting,
    in_order,
    place,
    rank,
    work_seconds,
)
from orchestrator.core.route import ways
from orchestrator.core.run import RunRecord
from orchestrator.core.speed import Measurement
from orchestrator.engine.market import Market

LAID_OUT_MAX = 64  # runs that can start in one tick are among so many, or they wait for the next
JUDGED_MAX = 200  # in a tick, of those that cannot start
RANKED_MAX = 1000  # first looks at how much work a run has left, in a tick


@dataclass(frozen=True)
class Turn:
    """A run to judge, and what the runs before it leave. `others`: how many wait besides it."""

    record: RunRecord
    openings: tuple[Opening, ...]
    others: int


@dataclass(frozen=True, slots=True)
class _Known:
    """How much work a run had left when it was last looked at."""

    version: int
    measured: tuple[Measurement, ...]
    work: float


Barrier = Callable[[str, str], AbstractContextManager[None]]


class Queue:
    """The waiting runs of one controller. Not thread-safe.

    `barrier` keeps what nobody foresaw about one run away from the others.
    """

    def __init__(
        self, market: Market, measurements: Callable[[str], tuple[Measurement, ...]], barrier: Barrier
    ) -> None:
        self._market = market
        self._measurements = measurements
        self._barrier = barrier
        self._known: dict[str, _Known] = {}
        self._unasked: dict[str, None] = {}  # since the offers changed, the most urgent first
        self._reserve = Reserve()

    def keep(self, reserve: Reserve) -> bool:
        """Sets what is kept for schedules; returns whether that changes what is left for others."""
        before, self._reserve = self._reserve, reserve
        return before is not reserve and _places(before) != _places(reserve)

    def stir(self, runs: Iterable[str]) -> None:
        """The offers changed: these runs are to be asked again. Those still unasked stay first."""
        self._unasked = dict.fromkeys((*self._unasked, *runs))

    @property
    def stirred(self) -> bool:
        """Whether runs are still to be asked, and it is worth it."""
        return bool(self._unasked) and self._market.is_worth_asking()

    def turns(
        self, due: Mapping[str, RunRecord], waiting: Mapping[str, RunRecord], now: float
    ) -> Iterator[Turn]:
        """The runs to judge now, the most urgent first. Lazy: what is reserved for one counts for the next.

        Runs that are due and not among them stay due.
        """
        runs = {run: record for run, record in {**waiting, **due}.items() if waits(record, now)}
        self._forget(runs)
        ranks = self._ranked(runs, now)
        calendar, others = self._market.calendar(), len(runs) - 1
        asked = set()
        for found in self._laid_out(
            heapq.nsmallest(LAID_OUT_MAX, runs, key=ranks.__getitem__), runs, calendar
        ):
            run = found.waiting.record.run
            starts = found.start is not None and found.start <= now + SOON_SECONDS
            if starts or run in due or run in self._unasked:
                asked.add(run)
                self._unasked.pop(run, None)
                yield Turn(runs[run], found.openings, others)
        left = calendar.openings()
        rest = dict.fromkeys((*sorted(due, key=lambda run: ranks.get(run, _LAST)), *self._unasked))
        for run in [run for run in rest if run not in asked][:JUDGED_MAX]:
            if run in due or self._market.is_worth_asking():
                self._unasked.pop(run, None)
                yield Turn(due.get(run) or runs[run], left, others)

    def _laid_out(
        self, top: Sequence[str], runs: Mapping[str, RunRecord], calendar: Calendar
    ) -> Iterator[Place]:
        """The places of these runs, as long as there is room for anybody."""
        coming = (each for each in self._reserve.kept if each.planned > calendar.now)
        queue = [self._waiting(each.record, each) for each in coming]
        queue += (self._waiting(runs[run]) for run in top)
        for waiting in in_order(queue, calendar.now):
            if not self._market.has_room():
                return
            found = None
            with self._barrier(waiting.record.run, "laying out"):
                found = place(waiting, calendar)
            if not waiting.planned:
                yield found or Place(waiting, (), ())

    def _waiting(self, record: RunRecord, kept: Kept | None = None) -> Waiting:
        found: tuple[Way, ...] = ()
        with self._barrier(record.run, "laying out"):
            found = ways(record, self._market.case(self._measurements(record.job.name)), self._market.now)
        if kept is not None:
            return Waiting(record, tuple(fitting(found, kept.planned, kept.until)), planned=kept.planned)
        return queued(record, found, self._market.now, self._reserve.first.get(record.run, 0.0))

    def _ranked(self, runs: Mapping[str, RunRecord], now: float) -> dict[str, Rank]:
        """Runs that were never looked at come last, in the order of their submission, until there is time."""
        found, looks = {}, 0
        for run, record in runs.items():
            known = self._known.get(run)
            if known is None or known.version != record.version:
                if looks >= RANKED_MAX:
                    found[run] = (2, record.submitted_at, run)
                    continue
                looks += 1
            measured = self._measurements(record.job.name)
            if known is None or known.version != record.version or known.measured is not measured:
                known = self._known[run] = _Known(
                    record.version, measured, work_seconds(self._waiting(record).ways)
                )
            fired = self._reserve.first.get(run, 0.0)
            found[run] = rank(record, known.work, now, record.deadline or 0.0, fired)
        return found

    def _forget(self, runs: Mapping[str, RunRecord]) -> None:
        for run in self._known.keys() - runs.keys():
            del self._known[run]
        for run in self._unasked.keys() - runs.keys():
            del self._unasked[run]


_LAST: Rank = (3, 0.0, "")


def _places(reserve: Reserve) -> list[tuple[str, float]]:
    return [(each.record.run, each.planned) for each in reserve.kept]


def waits(record: RunRecord, now: float) -> bool:
    """Whether the run may start, as far as it depends on itself."""
    if record.phase is not Phase.QUEUED or record.wish is not None or record.fault or record.asleep:
        return False
    return record.deferred or record.until is None or not pausing(now, record.paused_at, record.until)
