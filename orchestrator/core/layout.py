"""One calendar for all runs: who runs now, who waits and who comes back from a session → a place for each.

In the router's order. Pure. Must never know what people are told of it: `orchestrator.core.outlook` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.core import slices
from orchestrator.core.calendar import Calendar, Stay
from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.forecast import Rest, View, costs, learned
from orchestrator.core.itinerary import SOON_SECONDS, Way, hops_of
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Offer
from orchestrator.core.queueing import (
    RESERVE_SECONDS,
    Place,
    Waiting,
    expected_stay,
    fired_at,
    in_order,
    place,
)
from orchestrator.core.route import ways
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Scene
from orchestrator.core.speed import Measurement

CLOSES = "its window closes"


class Standing(StrEnum):
    """Why a run is in the outlook."""

    RUNNING = "running"  # it has a session
    WAITING = "queued"
    ASKED = "asked"  # as if it were submitted now
    SCHEDULED = "scheduled"  # a fire to come


@dataclass(frozen=True)
class Item:
    """One run to lay out, from `starts` on and not beyond `until` (None: as long as it takes; else `why` says
    what ends it), in at most so many `sessions` (0: any). `view` and `turn` are what is known of its
    sessions."""

    record: RunRecord
    standing: Standing
    starts: float
    measurements: tuple[Measurement, ...]
    view: View | None = None
    turn: float | None = None
    until: float | None = None
    why: str = CLOSES
    sessions: int = 0


class Layout:
    """The places of all runs, if every training is `slower` by so many standard deviations.

    `places`: of the runs that wait, or will, by name. `rests`: what remains of the sessions that run now.
    `ends`: when each run is expected to be over, or its window closes; without those that go nowhere.
    """

    def __init__(self, scene: Scene, items: Sequence[Item], slower: float) -> None:
        self._scene = scene
        self._slower = slower
        self.rests = {item.record.run: item.view.rest(slower) for item in items if item.view is not None}
        self._stays = tuple(self._all_stays(items))
        queue = [waiting for item in items if (waiting := self._queued(item)) is not None]
        self.places = {each.waiting.record.run: each for each in self._placed(queue)}
        self.ends = dict(self._all_ends(items))

    def _calendar(self) -> Calendar:
        return Calendar(self._scene.case.offers, self._stays, self._scene.now)

    def _placed(self, queue: Sequence[Waiting]) -> Iterable[Place]:
        """First the runs that the router starts now: it does not know yet who will come back from a session.
        Then the others in its order, and last the fires for which it keeps no room yet."""
        now = self._scene.now
        later = [each for each in queue if self._is_later(each)]
        ordered = in_order((each for each in queue if not self._is_later(each)), now)
        calendar = self._calendar()
        seen = (place(each, calendar) for each in ordered if each.record.run not in self.rests)
        starting = [each for each in seen if each.start is not None and each.start <= now + SOON_SECONDS]
        yield from starting
        calendar = self._calendar()
        for each in starting:
            calendar.book(hops_of(each.legs))
        names = {each.waiting.record.run for each in starting}
        yield from (place(each, calendar) for each in ordered if each.record.run not in names)
        yield from (place(each, calendar) for each in sorted(later, key=lambda each: each.planned))

    def _is_later(self, each: Waiting) -> bool:
        """Whether it is a fire for which no place is kept yet, or ever."""
        unkept = each.record.schedule in self._scene.unkept
        return each.planned > 0.0 and (unkept or each.planned > self._scene.now + RESERVE_SECONDS)

    @property
    def starts(self) -> dict[str, float]:
        return {run: place.legs[0].start for run, place in self.places.items() if place.legs}

    def _all_stays(self, items: Sequence[Item]) -> Iterable[Stay]:
        for item in items:
            record, session = item.record, item.record.session
            if session is not None and record.holds_slot:
                stay = expected_stay(session, record.job.work.total, self._scene.now)
                rest = self.rests.get(record.run)
                yield stay if rest is None else replace(stay, end=max(self._scene.now, rest.over_at))
            for stray in record.strays:
                if not stray.ended:
                    until = stray.until or self._scene.now
                    yield Stay(stray.platform, stray.accelerator, stray.since, until)

    def _all_ends(self, items: Sequence[Item]) -> Iterable[tuple[str, float]]:
        for item in items:
            run, session = item.record.run, item.record.session
            place, rest = self.places.get(run), self.rests.get(run)
            if place is not None and place.legs:
                end = place.legs[-1].end
            elif rest is not None:
                end = rest.over_at
            elif session is not None:
                end = expected_stay(session, item.record.job.work.total, self._scene.now).end
            else:
                continue
            yield run, end if item.until is None else min(end, item.until)

    def _queued(self, item: Item) -> Waiting | None:
        """The run in the queue: now, or when its session is over; None if it is not expected to be there."""
        record, starts, now = item.record, item.starts, self._scene.now
        if record.session is not None:
            rest = self.rests.get(record.run)
            if rest is None or rest.samples <= 0 or slices.is_slice(record, record.session):
                return None  # it is done then, or sleeps
            record = _after(record, rest)
            starts = rest.over_at
        case = replace(self._scene.case, measurements=item.measurements)
        found = tuple(from_then(each, starts, self._slower) for each in ways(record, case, now))
        found = tuple(fitting(found, starts, item.until))
        if not found:
            return None
        if item.standing is Standing.SCHEDULED:
            return Waiting(record, found, planned=starts, sessions=item.sessions)
        fired = 0.0 if record.schedule in self._scene.unkept else fired_at(record) or 0.0
        return Waiting(record, found, record.deadline or 0.0, fired=fired, sessions=item.sessions)


def from_then(way: Way, starts: float, slower: float = 0.0) -> Way:
    """The way from `starts` on, if its training is slower by so many standard deviations."""
    need = way.need * math.exp(slower * way.rate.sigma)
    return replace(way, need=need, not_before=max(way.not_before, starts))


def as_known(record: RunRecord, offer: Offer, item: Item) -> Offer:
    """The offer with what a session of this run is known to cost there."""
    seen = item.view
    if seen is not None and (offer.platform, offer.accelerator) == (
        seen.offer.platform, seen.offer.accelerator,
    ):  # fmt: skip
        return learned(record.job, offer, seen.costs)
    return learned(record.job, offer, costs(record.job, offer, turn=item.turn))


def _after(record: RunRecord, rest: Rest) -> RunRecord:
    """The run when its session is over and has left a checkpoint."""
    return replace(record, phase=Phase.QUEUED, session=None, accepted=(*record.accepted, at_step(rest.step)))


def queued(record: RunRecord, found: Sequence[Way], now: float, fired: float = 0.0) -> Waiting:
    """A run that waits now, with what its slice leaves of these ways."""
    fit = tuple(fitting(found, now, slices.closes(record)))
    return Waiting(record, fit, record.deadline or 0.0, fired=fired, sessions=slices.sessions(record))


def fitting(found: Sequence[Way], starts: float, until: float | None) -> list[Way]:
    """The ways, if they must be over `until` then: each trains as long as there is time."""
    if until is None:
        return list(found)
    room = {each.place: until - starts - each.wait for each in found}
    return [
        replace(each, longest=min(each.longest, left), need=min(each.need, left - each.overhead))
        for each in found
        if (left := room[each.place]) > each.overhead
    ]


def at_step(step: int) -> Accepted:
    """A checkpoint that is expected at this step."""
    return Accepted(CheckpointRef(step, 0, ""), 0, {})


def done_steps(record: RunRecord) -> int:
    """The step of its newest checkpoint."""
    return max((each.ref.step for each in record.accepted), default=0)
