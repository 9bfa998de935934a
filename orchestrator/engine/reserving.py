"""What is kept for schedules: schedules × their runs × now → the fires to come, and the runs that go first.

Reads the ledger once a minute and when something was done for a schedule; never while there is none. Decides
on no place: `orchestrator.core.queueing` does.
"""

from __future__ import annotations

from itertools import islice

from orchestrator import cron
from orchestrator.core.job import Mode
from orchestrator.core.lifecycle import Phase
from orchestrator.core.queueing import RESERVE_SECONDS, Kept, Reserve, fired_at
from orchestrator.core.run import RunRecord
from orchestrator.core.schedule import Planned, Schedule, has_more
from orchestrator.ledger import Ledger
from orchestrator.unforeseen import Unforeseen

LOOK_SECONDS = 60.0
INTERVAL_SECONDS_MIN = 3 * 3600.0  # for one that fires more often nothing is kept: others would never run
KEPT_MAX = 64  # fires for which places are kept at a time


class Reserving:
    """The reserve for the schedules of one ledger. Not thread-safe."""

    def __init__(self, ledger: Ledger, unforeseen: Unforeseen) -> None:
        self._ledger = ledger
        self._unforeseen = unforeseen
        self._reserve = Reserve()
        self._stale = False
        self.schedules: tuple[Schedule, ...] = ()  # as they were last read
        self._again_at: float | None = None  # monotonic; None: there is no schedule

    def look(self, now: float, monotonic: float, stirred: bool) -> Reserve:
        """The reserve at this time. `stirred`: something was done for a schedule since the last look. Raises
        BackendError if the ledger does not answer."""
        self._stale = self._stale or stirred
        if self._stale or (self._again_at is not None and monotonic >= self._again_at):
            self._reserve = self._read(now, monotonic)
            self._stale = False
        return self._reserve

    def _read(self, now: float, monotonic: float) -> Reserve:
        schedules = self.schedules = self._ledger.schedules.all()
        self._again_at = monotonic + LOOK_SECONDS if schedules else None
        active = [each for each in schedules if each.active]
        names = [each.run for each in active if each.run]
        runs = {each.run: each for each in self._ledger.records(names)} if names else {}
        kept: list[Kept] = []
        first: dict[str, float] = {}
        for each in active:
            run = runs.get(each.run)
            try:
                if is_frequent(each, now):
                    continue
                coming = next_place(each, run, now)
            except Exception as error:  # noqa: BLE001 the barrier: nothing is kept for this one
                self._unforeseen(f"keeping a place for the schedule {each.name}", error)
                continue
            if coming is not None and coming.planned <= now + RESERVE_SECONDS:
                kept.append(coming)
            if run is not None and (fired := fired_at(run)) is not None:
                first[run.run] = fired
        kept.sort(key=lambda each: (each.planned, each.record.run))
        return Reserve(tuple(kept[:KEPT_MAX]), first)


def is_frequent(schedule: Schedule, now: float) -> bool:
    """Whether it fires too often for places to be kept."""
    instants = [each.planned for each in _coming(schedule, now, 2)]
    return len(instants) == 2 and instants[1] - instants[0] < INTERVAL_SECONDS_MIN


def next_place(schedule: Schedule, run: RunRecord | None, now: float) -> Kept | None:
    """The place that the schedule needs next. None if its run (the last that it submitted) needs none, or is
    awake: then it has a place, or is in the queue itself."""
    if run is not None and not run.phase.final:
        return _woken(schedule, run)
    following = next(iter(_coming(schedule, now, 1)), None)
    if following is None:
        return None
    record = RunRecord(
        schedule.name, schedule.job, following.planned, store=schedule.store, schedule=schedule.name
    )
    if run is not None and run.phase is Phase.DONE and schedule.recurrence.mode is Mode.CONTINUE:
        if not has_more(schedule, run):
            return None
        record = RunRecord(
            run.run, schedule.job, following.planned, accepted=run.accepted, store=run.store,
            schedule=schedule.name, micro_batch_caps=run.micro_batch_caps,
        )  # fmt: skip
    return Kept(record, following.planned, following.closes)


def _woken(schedule: Schedule, run: RunRecord) -> Kept | None:
    """The place of a run that sleeps until its schedule wakes it."""
    if not run.asleep or run.until is None or run.wish is not None or run.standing is not Phase.QUEUED:
        return None
    return Kept(run, run.until, cron.closes_at(schedule.recurrence, run.until))


def _coming(schedule: Schedule, now: float, count: int) -> list[Planned]:
    after = max(schedule.counts_from(now), now)
    return list(islice(cron.planned_after(schedule.recurrence, schedule.name, after), count))
