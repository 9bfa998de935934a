"""What a schedule does now: schedule × what is due × its runs × now → fires, new runs and events.

Pure, and knows no time zone: `orchestrator.cron` says what is planned. Each planned instant is handled once:
the ledger keeps it as the fire's key, and writes a fire and what it does to a run in one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from orchestrator.core.checkpoint import newest
from orchestrator.core.event import Event, Slept, Slice, Submitted, Wished, Woken
from orchestrator.core.job import CatchUp, Job, Mode, Overlap, Recurrence
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.slices import sleeping
from orchestrator.core.wording import count_text, date

LATE_SECONDS = 60.0  # a fire that comes later than this was missed
CATCH_UP_MAX = 1000  # missed fires that `catch_up: all` makes up for; older ones are missed
WAITING_MAX = 100  # fires that `overlap: queue` keeps
CLOCK_SET_BACK_SECONDS = 60.0
NEXT_TOLERANCE_SECONDS = 1.0
RANDOM_CHARACTERS = 8
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Schedule:
    """A registered schedule. It is named after its job, which is frozen as a run's is.

    `last`: the newest planned instant that was handled. `run`: the run that it submitted last. `edition`
    counts the edits of the job; `given` is the edition that `run` has. `waiting`: planned instants whose runs
    are submitted once the earlier one is over. `ended`: why it fires no more. `version` counts the changes of
    this record. Times in unix seconds.
    """

    name: str
    job: Job
    store: str
    created_at: float
    last: float
    version: int = 1
    edited_at: float | None = None
    edition: int = 0
    given: int = 0
    paused_at: float | None = None
    run: str = ""
    waiting: tuple[float, ...] = ()
    ended: str = ""

    @property
    def recurrence(self) -> Recurrence:
        assert self.job.schedule is not None
        return self.job.schedule

    @property
    def active(self) -> bool:
        """Whether it will fire again by itself."""
        return self.paused_at is None and not self.ended

    def counts_from(self, now: float) -> float:
        """After which instant the next fire is looked for. If the clock was set back, from now: what was
        fired before has its key, and cannot fire again."""
        return now if self.last > now + CLOCK_SET_BACK_SECONDS else self.last


class FireOutcome(StrEnum):
    SUBMITTED = "submitted"  # a new run
    WOKEN = "woken"  # the run has its next slice
    SKIPPED = "skipped"  # the earlier run was under way, or waits for a person
    WAITING = "waiting"  # until the earlier run is over
    MISSED = "missed"  # no controller ran


@dataclass(frozen=True)
class Fire:
    """What became of a planned instant. `at` is when that was decided. Missed ones that follow each other
    are one fire, whose key is the newest; `count` is how many, or at least so many if `reason` says more."""

    planned: float
    at: float
    outcome: FireOutcome
    run: str = ""
    reason: str = ""
    count: int = 1


@dataclass(frozen=True)
class Planned:
    """A fire to come, in unix seconds. `at`: when it takes place. `closes`: when its window does."""

    planned: float
    at: float
    closes: float | None = None


@dataclass(frozen=True)
class Agenda:
    """What the calendar says now. `due`: the newest due fires, oldest first; before them were `older` more,
    the first at `oldest`. `uncounted`: there were even more. `following`: the next one. `closes`: when the
    window that is open now does; `opens`: when it opens next. `fired`: the due ones that were handled before
    the clock was set back."""

    due: tuple[Planned, ...] = ()
    older: int = 0
    oldest: float | None = None
    following: Planned | None = None
    closes: float | None = None
    opens: float | None = None
    fired: frozenset[float] = frozenset()
    uncounted: bool = False


Changes = tuple[tuple[RunRecord, tuple[Event, ...]], ...]  # events of runs that exist


@dataclass(frozen=True)
class Steps:
    """What to write, all or nothing. `schedule` is as it is afterwards, and looked at again at `next_at`.
    `settled` are fires that waited."""

    schedule: Schedule
    next_at: float | None
    fires: tuple[Fire, ...] = ()
    settled: tuple[Fire, ...] = ()
    submissions: tuple[Submitted, ...] = ()
    changes: Changes = ()


@dataclass
class _Draft:
    """The schedule and its runs as they change while one decision is made."""

    schedule: Schedule
    agenda: Agenda
    runs: dict[str, RunRecord]
    now: float
    existing: frozenset[str] = frozenset()
    fires: list[Fire] = field(default_factory=list)
    settled: list[Fire] = field(default_factory=list)
    submissions: list[Submitted] = field(default_factory=list)
    events: dict[str, list[Event]] = field(default_factory=dict)

    @property
    def run(self) -> RunRecord | None:
        """The run that it submitted last, if the ledger has it."""
        return self.runs.get(self.schedule.run)

    @property
    def continues(self) -> bool:
        return self.schedule.recurrence.mode is Mode.CONTINUE

    def change(self, **changes: object) -> None:
        self.schedule = replace(self.schedule, **changes)  # type: ignore[arg-type]

    def emit(self, record: RunRecord, event: Event) -> None:
        self.events.setdefault(record.run, []).append(event)
        self.runs[record.run] = apply(record, event)


def decide(
    schedule: Schedule,
    agenda: Agenda,
    runs: Iterable[RunRecord],
    now: float,
    asked: Planned | None = None,
    existing: frozenset[str] = frozenset(),
) -> Steps:
    """What the schedule does now. `runs` are those of its runs that are under way, and the one that it
    submitted last. `asked`: a person wants it to fire now, whatever is planned. `existing`: runs of fires to
    come that the ledger has, because they were adopted after it came out of a backup."""
    before = {record.run: record for record in runs}
    draft = _Draft(schedule, agenda, dict(before), now, existing)
    draft.change(last=schedule.counts_from(now))
    _end(draft)
    if asked is not None:
        _fire(draft, asked)
        _end(draft)
    if draft.schedule.active:
        _take_due(draft)
        _end(draft)
    if draft.schedule.active:
        _take_waiting(draft)
        _open(draft)
    _tell_sleepers(draft)
    changes = tuple((before[run], tuple(events)) for run, events in draft.events.items() if run in before)
    return Steps(
        draft.schedule, _next_at(draft), tuple(draft.fires), tuple(draft.settled), tuple(draft.submissions),
        changes,
    )  # fmt: skip


def _end(draft: _Draft) -> None:
    """One growing run that is over ends its schedule; one that is under way again revives it."""
    run = draft.run
    if not draft.continues or run is None:
        ended = ""
    elif run.phase is Phase.DONE:
        ended = "" if has_more(draft.schedule, run) else f"finished: {run.run} is done"
    elif run.phase.final:
        ended = f"its run {run.run} {'failed' if run.phase is Phase.FAILED else 'was cancelled'}"
    else:
        ended = ""
    draft.schedule = replace(draft.schedule, ended=ended) if ended else revived(draft.schedule, draft.now)


def revived(schedule: Schedule, now: float) -> Schedule:
    """The schedule, which fires again if it had ended. What was planned meanwhile is not made up for."""
    return replace(schedule, ended="", last=max(schedule.last, now)) if schedule.ended else schedule


def has_more(schedule: Schedule, run: RunRecord) -> bool:
    """Whether the schedule's job has more steps than its finished run has trained."""
    best = newest(run.accepted)
    return schedule.job.work.total > (run.job.work.total if best is None else best.ref.step)


# --- What is due ----------------------------------------------------------------------------------------


def _take_due(draft: _Draft) -> None:
    due = [each for each in draft.agenda.due if each.planned > draft.schedule.last]
    if not due:
        return
    unfired = [each for each in due if each.planned not in draft.agenda.fired]
    fired, missed = _chosen(draft, [each for each in unfired if not _recognised(draft, each)])
    instants = [each.planned for each in missed]
    if draft.agenda.oldest is not None:
        instants.insert(0, draft.agenda.oldest)
    if instants:
        draft.fires.append(_missed(draft, instants[0], instants[-1], len(missed) + draft.agenda.older))
    for each in fired:
        if draft.schedule.ended:
            break
        if each is not fired[-1] and _replaces(draft):
            _skip(draft, each, "a later fire was due at the same time, and replaces it")
            continue
        _fire(draft, each)
        _end(draft)
    draft.change(last=max(each.planned for each in due))


def _recognised(draft: _Draft, each: Planned) -> bool:
    """Whether the run of this fire is in the ledger already. Then the fire took place."""
    name = run_name(draft.schedule, each.planned)
    if name not in draft.existing:
        return False
    reason = "the ledger has its run already"
    draft.fires.append(Fire(each.planned, draft.now, FireOutcome.SUBMITTED, name, reason))
    if draft.run is None or draft.run.phase.final:
        draft.change(run=name, given=draft.schedule.edition)
        _end(draft)
    return True


def _replaces(draft: _Draft) -> bool:
    """Whether each fire cancels the run of the one before. Of several at once, only the last then begins a
    run: a thousand after a downtime would be submitted to be cancelled."""
    return not draft.continues and draft.schedule.recurrence.overlap is Overlap.REPLACE


def _chosen(draft: _Draft, due: list[Planned]) -> tuple[list[Planned], list[Planned]]:
    """Which of the due fires take place, and which are missed. All missed ones come before the others."""
    now = draft.now
    windowed = draft.schedule.recurrence.window is not None
    catch_up = draft.schedule.recurrence.catch_up
    late = [each for each in due if not _is_on_time(each, now)]
    punctual = due[len(late) :]
    if draft.continues:  # several slices at once are one
        if punctual:
            return punctual[-1:], due[:-1]
        if windowed or catch_up is CatchUp.NONE:  # nothing starts outside its window
            return [], late
        return late[-1:], late[:-1]
    match catch_up:
        case CatchUp.NONE:
            return punctual, late
        case CatchUp.ONE:
            kept = 0 if punctual or not late else 1
            return [*late[len(late) - kept :], *punctual], late[: len(late) - kept]
        case CatchUp.ALL:
            return due, []


def _is_on_time(each: Planned, now: float) -> bool:
    return now - each.at <= LATE_SECONDS or (each.closes is not None and now < each.closes)


def _missed(draft: _Draft, first: float, last: float, count: int) -> Fire:
    since = f" from {date(first)} on" if count > 1 else ""
    at_least = "more than " if draft.agenda.uncounted else ""
    reason = f"{at_least}{count_text(count, 'fire')}{since}: no controller ran, or a later one was due"
    return Fire(last, draft.now, FireOutcome.MISSED, reason=reason, count=count)


def _fire(draft: _Draft, each: Planned) -> None:
    if draft.continues:
        _continue(draft, each)
    else:
        _begin_afresh(draft, each)


def _skip(draft: _Draft, each: Planned, reason: str) -> None:
    draft.fires.append(Fire(each.planned, draft.now, FireOutcome.SKIPPED, draft.schedule.run, reason))


# --- One growing run ------------------------------------------------------------------------------------


def _continue(draft: _Draft, each: Planned) -> None:
    """The next slice of the one run. If it is still awake, it stays so until the new slice is over."""
    run = draft.run
    if run is None or (run.phase.final and run.phase is not Phase.DONE):
        _submit(draft, each, _slice(draft, each))
        return
    if run.standing is Phase.HELD:
        _skip(draft, each, f"{run.run} is held: {run.standing_reason.partition(chr(10))[0]}")
        return
    if run.wish is not None:
        _skip(draft, each, f"{run.run} is asked to {run.wish.value}")
        return
    if run.phase is Phase.DONE and not has_more(draft.schedule, run):
        _skip(draft, each, f"{run.run} is done")
        return
    edited = draft.schedule.given != draft.schedule.edition and run.session is None
    job = draft.schedule.job if edited or run.phase is Phase.DONE else None
    reason = "" if run.asleep or run.phase.final else "it was still awake, and goes on"
    draft.emit(run, Woken(draft.now, _slice(draft, each), job))
    draft.fires.append(Fire(each.planned, draft.now, FireOutcome.WOKEN, run.run, reason))
    if job is not None:
        draft.change(given=draft.schedule.edition)


def _slice(draft: _Draft, each: Planned) -> Slice:
    following = draft.agenda.following
    return Slice(each.planned, each.closes, None if following is None else following.at)


# --- A new run each time --------------------------------------------------------------------------------


def _begin_afresh(draft: _Draft, each: Planned) -> None:
    run = draft.run
    if run is None or run.phase.final:
        _submit(draft, each, _opening(draft, each.planned))
        return
    match draft.schedule.recurrence.overlap:
        case Overlap.SKIP:
            _skip(draft, each, f"{run.run} is still {run.standing.value}")
        case Overlap.QUEUE if len(draft.schedule.waiting) < WAITING_MAX:
            draft.change(waiting=(*draft.schedule.waiting, each.planned))
            reason = f"until {run.run} is over"
            draft.fires.append(Fire(each.planned, draft.now, FireOutcome.WAITING, "", reason))
        case Overlap.QUEUE:
            _skip(draft, each, f"{WAITING_MAX} fires wait already")
        case Overlap.REPLACE:
            if run.wish is not Wish.CANCEL:
                draft.emit(run, Wished(draft.now, Wish.CANCEL))
            _submit(draft, each, _opening(draft, each.planned), f"in place of {run.run}")


def _opening(draft: _Draft, planned: float) -> Slice | None:
    """The slice of a run that may run whenever the window is open; None without a window."""
    if draft.schedule.recurrence.window is None:
        return None
    closes = draft.agenda.closes
    return Slice(planned, draft.now if closes is None else closes, draft.agenda.opens)


def _take_waiting(draft: _Draft) -> None:
    """The first fire that waits, once the earlier run is over."""
    waiting = draft.schedule.waiting
    run = draft.run
    if not waiting or (run is not None and not run.phase.final):
        return
    first = waiting[0]
    draft.change(waiting=waiting[1:])
    name = _submitted(draft, first, _opening(draft, first))
    draft.settled.append(Fire(first, draft.now, FireOutcome.SUBMITTED, name))


def _open(draft: _Draft) -> None:
    """Wakes the runs that may always run while the window is open: all but the one that is continued."""
    recurrence = draft.schedule.recurrence
    for record in list(draft.runs.values()):
        if not record.asleep or record.slice is None or record.slice.gone or _is_continued(draft, record):
            continue
        if recurrence.window is None:
            draft.emit(record, Woken(draft.now, None))
        elif draft.agenda.closes is not None and (record.slice.until or 0.0) < draft.agenda.closes:
            draft.emit(record, Woken(draft.now, _opening(draft, record.slice.planned)))


def _is_continued(draft: _Draft, record: RunRecord) -> bool:
    return draft.continues and record.run == draft.schedule.run


# --- New runs, sleepers, and when to look again ---------------------------------------------------------


def _submit(draft: _Draft, each: Planned, given: Slice | None, reason: str = "") -> None:
    name = _submitted(draft, each.planned, given)
    draft.fires.append(Fire(each.planned, draft.now, FireOutcome.SUBMITTED, name, reason))


def _submitted(draft: _Draft, planned: float, given: Slice | None) -> str:
    schedule = draft.schedule
    name = run_name(schedule, planned)
    if name not in draft.existing:
        event = Submitted(
            name, schedule.job, draft.now, schedule.store, schedule=schedule.name,
            origin=instant_text(planned), slice=given,
        )  # fmt: skip
        draft.submissions.append(event)
        draft.runs[name] = submit(event)
    draft.change(run=name, given=schedule.edition)
    return name


def run_name(schedule: Schedule, planned: float) -> str:
    """The name of the run of a fire: always the same one, so that a fire cannot have two."""
    digest = hashlib.sha256(f"{schedule.name}\0{schedule.created_at:.6f}\0{planned:.6f}".encode()).digest()
    number, letters = int.from_bytes(digest), ""
    for _ in range(RANDOM_CHARACTERS):
        number, rest = divmod(number, len(_ALPHABET))
        letters += _ALPHABET[rest]
    return f"{schedule.name}-{letters}"


def instant_text(at: float) -> str:
    """A planned instant in a run's `origin`: `2026-03-29T01:00:00Z`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _tell_sleepers(draft: _Draft) -> None:
    """Runs that sleep learn when their next slice is, if that has changed."""
    for record in list(draft.runs.values()):
        if not record.asleep or record.phase is not Phase.QUEUED or record.fault:
            continue
        if record.slice is None or record.slice.gone:
            continue
        until = None
        if draft.schedule.active:
            following = draft.agenda.following
            until = following.at if _is_continued(draft, record) and following else draft.agenda.opens
        reason = sleeping(record, until, _why_no_more(draft.schedule))
        moved = (record.until is None) is not (until is None) or (
            until is not None and abs((record.until or 0.0) - until) > NEXT_TOLERANCE_SECONDS
        )
        if moved or (until is None and reason != record.reason):
            draft.emit(record, Slept(draft.now, reason, until, told=True))


def _why_no_more(schedule: Schedule) -> str:
    return "is paused" if schedule.paused_at is not None else schedule.ended


def _next_at(draft: _Draft) -> float | None:
    if not draft.schedule.active:
        return None
    following = draft.agenda.following
    times = [] if following is None else [following.at]
    under_way = any(
        not record.phase.final and not _is_continued(draft, record) for record in draft.runs.values()
    )
    if under_way and draft.agenda.opens is not None:
        times.append(draft.agenda.opens)
    return min(times, default=None)
