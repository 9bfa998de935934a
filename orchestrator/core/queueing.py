"""Which waiting run comes first, and what is left for the next: waiting runs × calendar → openings for each.

The run with the least remaining work comes first, because that makes the mean wait shortest. Runs grow old: a
run with R seconds of work left goes before every run that is submitted more than R / AGEING after it, however
small that is, so none starves. Pure. Must never know platforms or stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.core.calendar import Calendar, Opening, Stay
from orchestrator.core.itinerary import Leg, Way, fastest, hops_of, legs
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Session

AGEING = 0.1  # of the time since its submission, a run counts as so much smaller
OVERDUE_SHARE = 0.1  # a session that is past its expected end is expected to take so much longer
OVERDUE_SECONDS_MIN = 60.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued run, and how it would go on each offer that it may use."""

    record: RunRecord
    ways: tuple[Way, ...]
    due: float = 0.0  # when it must be done, in unix seconds; 0: no deadline

    @property
    def rank(self) -> tuple[int, float, str]:
        """The lower, the sooner it is its turn. Does not change while it waits."""
        best = fastest(self.ways)
        work = best.need if best is not None else 0.0
        return 1, work + AGEING * self.record.submitted_at, self.record.run


@dataclass(frozen=True, slots=True)
class Place:
    """What the queue leaves for one run, and the sessions that it is expected to take of it."""

    waiting: Waiting
    openings: tuple[Opening, ...]
    legs: tuple[Leg, ...]

    @property
    def start(self) -> float | None:
        return self.legs[0].start if self.legs else None


def lay_out(queue: Iterable[Waiting], calendar: Calendar) -> Iterator[Place]:
    """The runs in their order, each with what those before it leave. Lazy: ask only for as many as can start."""
    for waiting in sorted(queue, key=lambda each: each.rank):
        openings = calendar.openings()
        found = legs(waiting.ways, {(o.platform, o.accelerator): o for o in openings}, calendar.now)
        yield Place(waiting, openings, found)
        calendar.book(hops_of(found))


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
