"""Which waiting run comes first, and what it leaves for the next: waiting runs × calendar → a place for each.

First the runs whose deadline is near, then the one with the least work left, because that makes the mean wait
shortest. Runs grow old: a run with R seconds of work left goes before every run without a deadline that is
submitted more than R / AGEING after it, however small that is, so none starves. Pure. Must never know
platforms or stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.calendar import Calendar, Opening, Stay
from orchestrator.core.itinerary import Leg, Way, fastest, hops_of, legs
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Session

AGEING = 0.05  # of the time since its submission: by so much smaller a run counts
ENDANGERED_FACTOR = 2.0  # a deadline is near if so many times the work that is left does not fit before it
# So long before a schedule fires, its run's place is kept free: as long as sessions last that began before.
RESERVE_SECONDS = 12 * 3600.0
OVERDUE_SHARE = 0.1  # a session that is past its expected end is expected to take so much longer
OVERDUE_SECONDS_MIN = 60.0

Rank = tuple[int, float, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued run, and how it would go on each offer that it may use. `due`: its deadline, in unix seconds;
    0: none. `planned`: a schedule will submit or wake it only then, and its place is kept free. `fired`: a
    schedule did so then, and the place is its own. `sessions`: it takes at most so many now, and then sleeps;
    0: as many as it needs."""

    record: RunRecord
    ways: tuple[Way, ...]
    due: float = 0.0
    planned: float = 0.0
    fired: float = 0.0
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """A place to keep free for a run that a schedule will submit or wake, in unix seconds: from `planned` on,
    until its window closes (`until`; None: it has none)."""

    record: RunRecord
    planned: float
    until: float | None = None


@dataclass(frozen=True)
class Reserve:
    """What is kept for schedules. `kept`: a place for each fire to come, the next one first. `first`: the
    runs whose fire has come, and when, in unix seconds: what was kept is theirs."""

    kept: tuple[Kept, ...] = ()
    first: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """What the queue leaves for one run, and the sessions that it is expected to take of it."""

    waiting: Waiting
    openings: tuple[Opening, ...]
    legs: tuple[Leg, ...]

    @property
    def start(self) -> float | None:
        return self.legs[0].start if self.legs else None


def work_seconds(ways: Sequence[Way]) -> float:
    """The training that is left, on the offer where it is least; 0 if there is none."""
    best = fastest(ways)
    return 0.0 if best is None else best.need


def fired_at(record: RunRecord) -> float | None:
    """When a schedule gave the run the time that it has now; None: none did, or it sleeps. A run that no
    window limits has it until its first session."""
    if not record.schedule or record.asleep or record.phase.final:
        return None
    if record.slice is not None:
        return record.slice.planned
    return record.submitted_at if record.generation == 0 else None


def rank(record: RunRecord, work: float, now: float, due: float = 0.0, fired: float = 0.0) -> Rank:
    """The lower, the sooner it is the run's turn. Without a deadline it does not change."""
    if fired:
        return -1, fired, record.run
    if due and now + ENDANGERED_FACTOR * work > due:
        return 0, due, record.run
    return 1, work + AGEING * record.submitted_at, record.run


def in_order(queue: Iterable[Waiting], now: float) -> list[Waiting]:
    """The most urgent first. Runs of schedules that fire soon, or have fired, come before all, at their own
    time; of those that fire later, nothing is kept free yet."""

    def order(each: Waiting) -> Rank:
        fired = each.planned or each.fired
        return rank(each.record, work_seconds(each.ways), now, each.due, fired)

    return sorted((each for each in queue if each.planned <= now + RESERVE_SECONDS), key=order)


def place(waiting: Waiting, calendar: Calendar) -> Place:
    """What the calendar leaves for a run, which takes it."""
    openings = calendar.openings()
    ways = waiting.ways
    if waiting.planned:
        ways = tuple(replace(way, not_before=max(way.not_before, waiting.planned)) for way in ways)
    found = legs(ways, {(each.platform, each.accelerator): each for each in openings}, calendar.now)
    found = found[: waiting.sessions or None]
    calendar.book(hops_of(found))
    return Place(waiting, openings, found)


def lay_out(queue: Iterable[Waiting], calendar: Calendar) -> Iterator[Place]:
    """The runs in their order, each with what those before it leave. Lazy: ask for no more than can start."""
    for waiting in in_order(queue, calendar.now):
        yield place(waiting, calendar)


def expected_stay(session: Session, steps_total: int, now: float) -> Stay:
    """The slot that a session has, until it is expected to end: done or at its budget."""
    order, traits = session.order, session.traits
    began = session.runs_since or session.launched_at or session.assigned_at
    limits = [order.budget_seconds] if order.budget_seconds is not None else []
    if order.expected_steps_per_second:
        limits.append(
            traits.setup_seconds + (steps_total - order.resume_step) / order.expected_steps_per_second
        )
    end = began + min(limits) if limits else now
    latest = now + max(OVERDUE_SECONDS_MIN, OVERDUE_SHARE * (now - began))
    return Stay(order.platform, order.accelerator, began, end if end > now else latest)
