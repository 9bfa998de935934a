"""Fires schedules: asks the ledger what is due, the calendar what is planned and the core what happens, and
writes that in one transaction.

Decides nothing. A tick in which nothing is due costs one query. The trouble of one schedule never stops the
others, nor the runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from orchestrator import cron
from orchestrator.core.event import (
    Cancelled,
    Completed,
    Event,
    Faulted,
    GaveUp,
    Held,
    Released,
    Slept,
)
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.schedule import Fire, FireOutcome, Planned, Schedule, Steps, decide, run_name
from orchestrator.errors import BackendError, Fenced, LedgerConflict, Rejected
from orchestrator.files import make_folder
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.unforeseen import Unforeseen, sentence

AGAIN_SECONDS = 60.0  # after an error that nobody foresaw
NO_ZONE_SECONDS = 3600.0
CONFLICTS_MAX = 10  # in a row: then it is no person who was faster
Told = Callable[[RunRecord, Event], None]
# What concerns the schedule of a run: it is over, or it waits for something else than a place.
_STIRRING = (Cancelled, Completed, Faulted, GaveUp, Held, Released, Slept)


class Scheduling:
    """The schedules of one ledger, for its controller (`fence` is its number there). Not thread-safe."""

    def __init__(
        self, ledger: Ledger, fence: int, folders: Folders, say: Callable[[str], None], unforeseen: Unforeseen
    ) -> None:
        self._ledger = ledger
        self._fence = fence
        self._folders = folders
        self._say = say
        self._unforeseen = unforeseen
        self._stirred: set[str] | None = None  # to look at, besides the due ones; None: all
        self._unreadable: dict[str, str] = {}
        self._again_at: dict[str, float] = {}
        self._conflicts: Counter[str] = Counter()

    def stir(self, record: RunRecord, events: Iterable[Event]) -> None:
        """Something has happened to a run of a schedule that its schedule may wait for."""
        if record.schedule and self._stirred is not None and any(isinstance(e, _STIRRING) for e in events):
            self._stirred.add(record.schedule)

    def stir_all(self) -> None:
        """To call after the clock was set back: dates that were set before may be far away."""
        self._stirred = None
        self._again_at = {}

    def tick(self, now: float, told: Told) -> bool:
        """Does what is due, and returns whether anything was. `told` is called with what was journalled for
        runs. Raises Fenced, and BackendError if the ledger does not answer; then the next tick continues."""
        due = dict.fromkeys(self._ledger.schedules.due(now))
        stirred = self._all() if self._stirred is None else sorted(self._stirred)
        names = (*due, *(each for each in stirred if each not in due))
        taken = [name for name in names if self._again_at.get(name, now) <= now]
        for name in taken:
            self._take(name, now, told)
        if self._stirred is None:
            self._stirred = set()
        return bool(taken)

    def stays(self) -> str:
        """Why a controller with nothing else to do stays; empty if no schedule will fire."""
        while (found := self._ledger.schedules.next_at(besides=self._unreadable)) is not None:
            schedule = self._readable(found[0])
            if schedule is not None:
                return f"stays: {_next_text(schedule, found[1])}"
            if found[0] not in self._unreadable:  # removed meanwhile
                break
        return ""

    def _all(self) -> list[str]:
        """At the start: also schedules whose runs have ended while no controller ran."""
        self._unreadable = self._ledger.schedules.unreadable()
        for reason in self._unreadable.values():
            self._say(f"{reason}; it does not fire")
        return [each.name for each in self._ledger.schedules.all()]

    def _take(self, name: str, now: float, told: Told) -> None:
        try:
            schedule = self._readable(name)
            if schedule is not None:
                steps = carry_out(self._ledger, self._folders, schedule, now, fence=self._fence)
                self._tell(schedule, steps, now, told)
        except LedgerConflict as error:
            self._conflicts[name] += 1
            if self._conflicts[name] >= CONFLICTS_MAX:
                self._failed(name, now, error)
            self._stir_again(name)  # a person was faster: the next tick looks again
            return
        except (Fenced, BackendError) as error:
            if not isinstance(error, Rejected):
                raise
            self._failed(name, now, error)
            return
        except Exception as error:  # noqa: BLE001 the barrier: told, and tried again later
            self._failed(name, now, error)
            return
        self._again_at.pop(name, None)
        self._conflicts.pop(name, None)
        if self._stirred is not None:
            self._stirred.discard(name)

    def _stir_again(self, name: str) -> None:
        if self._stirred is not None:
            self._stirred.add(name)

    def _failed(self, name: str, now: float, error: Exception) -> None:
        doing = f"firing the schedule {name}"
        self._unforeseen(doing, error)
        self._say(f"{sentence(doing, error)}; trying again in a minute")
        self._again_at[name] = now + AGAIN_SECONDS
        self._stir_again(name)

    def _readable(self, name: str) -> Schedule | None:
        try:
            found = self._ledger.schedules.one(name)
            self._unreadable.pop(name, None)
            return found
        except BackendError as error:
            if name not in self._unreadable and "cannot be read" in str(error):
                self._unreadable[name] = str(error)
                self._say(f"{error}; it does not fire")
            if name in self._unreadable:
                return None
            raise

    def _tell(self, before: Schedule, steps: Steps, now: float, told: Told) -> None:
        for event in steps.submissions:
            told(submit(event), event)
        for before_it, events in steps.changes:
            record = before_it
            for each in events:
                record = apply(record, each)
                told(record, each)
        for fire in (*steps.fires, *steps.settled):
            self._say(f"schedule {before.name}: {fire_text(fire, before.recurrence.timezone)}")
        after = steps.schedule
        if (steps.fires or self._stirred is None) and after.active and steps.next_at is not None:
            self._say(_next_text(after, steps.next_at))
        if after.ended and after.ended != before.ended:
            self._say(f"schedule {after.name} fires no more: {after.ended}")
        if after.active and steps.next_at is not None and steps.next_at - now == NO_ZONE_SECONDS:
            self._say(f"schedule {after.name} has no next fire: {no_next(after)}")


def carry_out(
    ledger: Ledger,
    folders: Folders,
    schedule: Schedule,
    now: float,
    *,
    asked: Planned | None = None,
    fence: int | None = None,
) -> Steps:
    """Decides on a schedule and writes the result. `asked`: it is to fire now. Raises LedgerConflict if
    somebody changed the schedule or its runs meanwhile; then nothing has changed."""
    found = cron.agenda(schedule, now)
    if found.due:
        fired = ledger.schedules.fired(schedule.name, [each.planned for each in found.due])
        found = replace(found, fired=fired)
    to_come = (*(each.planned for each in found.due if each.planned not in found.fired), *schedule.waiting)
    existing = ledger.schedules.existing([run_name(schedule, each) for each in to_come])
    last = (schedule.run,) if schedule.run else ()
    names = dict.fromkeys((*last, *ledger.schedules.runs_of(schedule.name), *sorted(existing)))
    records = [each for each in ledger.records(names) if each.schedule == schedule.name]
    steps = decide(schedule, found, records, now, asked, existing)
    if steps.next_at is None and steps.schedule.active:
        steps = replace(steps, next_at=now + NO_ZONE_SECONDS)
    for event in steps.submissions:  # first, because a folder shows that a run lives in this home
        make_folder(folders.run(event.run))
    if steps.schedule == schedule and not (steps.fires or steps.settled or steps.changes):
        ledger.schedules.look_at(schedule, steps.next_at, fence=fence)
    else:
        ledger.schedules.take(schedule, steps, fence=fence)
    return steps


def no_next(schedule: Schedule) -> str:
    """Why an active schedule has no next fire."""
    zone = schedule.recurrence.timezone
    if not cron.knows(zone):
        return f"this machine does not know the time zone {zone!r}; update its tzdata"
    return f"{schedule.recurrence.cron!r} names no date any more"


def fire_text(fire: Fire, timezone: str) -> str:
    """A fire in words: `the fire planned for Thu 2026-11-26 01:00 CET submitted nightly-1a2b3c4d`."""
    what = {
        FireOutcome.SUBMITTED: f"submitted {fire.run}",
        FireOutcome.WOKEN: f"woke {fire.run}",
        FireOutcome.SKIPPED: "was skipped",
        FireOutcome.WAITING: "waits",
        FireOutcome.MISSED: "was missed",
    }[fire.outcome]
    because = f": {fire.reason}" if fire.reason else ""
    return f"the fire planned for {cron.local_text(fire.planned, timezone)} {what}{because}"


def _next_text(schedule: Schedule, at: float) -> str:
    return f"schedule {schedule.name} fires next at {cron.local_text(at, schedule.recurrence.timezone)}"
