"""What fires to come ask of the calendar: a scene → an item for each run or slice that a schedule begins.

Pure. Guesses how long each takes from the fastest offer alone: a slice begins where the one before is
expected to end, and the overlap of a schedule is as if nobody else waited; only what is skipped is judged
again once everything is laid out. Must never know what people are told of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.core.itinerary import Way
from orchestrator.core.job import Job, Mode, Overlap
from orchestrator.core.layout import Item, Standing, at_step, done_steps, fitting, from_then
from orchestrator.core.route import ways
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Coming, Scene
from orchestrator.core.speed import step_after

REPLACES = "the next fire replaces it"


def scheduled(scene: Scene, present: Sequence[Item]) -> Iterable[Item]:
    """A run for each fire, or a slice of the run that a schedule continues. `present`: the runs that run or
    wait now."""
    following = _following(scene.coming)
    lines = {name: _Line(scene, name, present) for name in {fire.schedule for fire in scene.coming}}
    for fire in scene.coming:
        item = lines[fire.schedule].item(fire)
        if item is not None:
            yield _cut(item, following.get((fire.schedule, fire.planned)))


def skipped(items: Iterable[Item], ends: Mapping[str, float]) -> frozenset[str]:
    """The fires that begin no run, because an earlier one of their schedule is still under way then: by what
    was laid out, in `ends`. Of each schedule only those until the end of its first run that is in the way,
    because without them the later ones come to lie earlier."""
    found: set[str] = set()
    schedules: dict[str, list[Item]] = {}
    for item in items:
        given = item.record.job.schedule
        if given is not None and given.mode is Mode.FRESH and given.overlap is Overlap.SKIP:
            schedules.setdefault(item.record.schedule, []).append(item)
    for line in schedules.values():
        busy, gone = -math.inf, set[str]()
        for item in sorted(line, key=lambda each: (_fires_at(each), each.record.run)):
            if _fires_at(item) < busy:
                gone.add(item.record.run)
            elif gone:
                break
            else:
                busy = max(busy, ends.get(item.record.run, math.inf))
        found |= gone
    return frozenset(found)


def _fires_at(item: Item) -> float:
    """When the fire is planned; a run that is under way now was before all of them."""
    return item.record.submitted_at if item.standing is Standing.SCHEDULED else -math.inf


def done_at(scene: Scene, present: Sequence[Item], slower: float) -> Mapping[str, float]:
    """When the growing run of each schedule is expected to be done, if every training is `slower` by so many
    standard deviations. Without the runs for which the fires of the scene do not suffice."""
    names = {fire.schedule for fire in scene.coming}
    lines = {name: _Line(scene, name, present, slower) for name in names}
    for fire in scene.coming:
        lines[fire.schedule].item(fire)
    return {name: line.done_at for name, line in lines.items() if line.done_at is not None}


def replaced(scene: Scene, item: Item) -> Item:
    """A run of now, which ends when its schedule replaces it."""
    first = next((each.planned for each in scene.coming if each.schedule == item.record.schedule), None)
    return _cut(item, first)


def _cut(item: Item, following: float | None) -> Item:
    """The item until the next fire of its schedule, if that replaces it."""
    if following is None or not _is_replaced(item.record.job):
        return item
    if item.until is not None and item.until <= following:
        return item
    return replace(item, until=following, why=REPLACES)


def _is_replaced(job: Job) -> bool:
    given = job.schedule
    return given is not None and given.mode is Mode.FRESH and given.overlap is Overlap.REPLACE


def _following(coming: Iterable[Coming]) -> Mapping[tuple[str, float], float]:
    """When the schedule's next fire is planned, by schedule and fire."""
    last: dict[str, float] = {}
    found = {}
    for fire in coming:
        if fire.schedule in last:
            found[fire.schedule, last[fire.schedule]] = fire.planned
        last[fire.schedule] = fire.planned
    return found


class _Line:
    """What one schedule is expected to have begun: how long it is busy, and where its growing run is.
    `done_at`: when that one is done; None: not within what was begun so far."""

    def __init__(self, scene: Scene, schedule: str, present: Sequence[Item], slower: float = 0.0) -> None:
        self._scene = scene
        self._slower = slower
        self.done_at: float | None = None
        self._grows = next(
            (each for each in (*scene.running, *scene.waiting) if each.schedule == schedule), None
        )
        self._step = 0 if self._grows is None else done_steps(self._grows)
        self._busy = -math.inf
        for item in present:
            if item.record.schedule == schedule:
                self._begin(item)

    def _begin(self, item: Item) -> None:
        """Takes account of a run or a slice."""
        at, step = item.starts, done_steps(item.record)
        rest = None if item.view is None else item.view.rest(self._slower)
        if rest is not None:
            at, step = rest.over_at, rest.step
        if rest is not None and item.sessions:
            found: tuple[int, float] | None = step, 0.0
        else:
            found = self._takes(replace(item, record=_from(item.record, step), starts=at))
        reached, seconds = (item.record.job.work.total, math.inf) if found is None else found
        self._step = max(self._step, reached)
        if found is not None and reached >= item.record.job.work.total and self.done_at is None:
            self.done_at = at + seconds
        ends = at + seconds if item.until is None else item.until
        self._busy = max(self._busy, ends)

    def item(self, fire: Coming) -> Item | None:
        """What the fire begins; None if nothing."""
        given = fire.job.schedule
        record = RunRecord(fire.name, fire.job, fire.planned, schedule=fire.schedule, store=fire.store)
        starts = max(self._scene.now, fire.planned)
        known = self._scene.measurements.get(fire.job.name, ())
        item = Item(record, Standing.SCHEDULED, starts, known, until=fire.until)
        if given is not None and given.mode is Mode.CONTINUE:
            return self._slice(item)
        if given is None or given.overlap is Overlap.REPLACE or fire.until is not None:
            return item
        if given.overlap is Overlap.SKIP and self._busy > starts and math.isfinite(self._busy):
            return None
        if math.isfinite(self._busy):
            item = replace(item, starts=max(starts, self._busy))
        self._begin(item)
        return item

    def _slice(self, item: Item) -> Item | None:
        """The growing run's next slice: none while it is awake, because a fire then begins no further one."""
        if self._step >= item.record.job.work.total:
            return None
        if self._busy > item.starts and math.isfinite(self._busy):
            return None
        caps = () if self._grows is None else self._grows.micro_batch_caps
        record = replace(_from(item.record, self._step), micro_batch_caps=caps)
        item = replace(item, record=record, sessions=1 if item.until is None else 0)
        self._begin(item)
        return item

    def _takes(self, item: Item) -> tuple[int, float] | None:
        """The step that is reached, and in how many seconds; None if that is unknown."""
        case = replace(self._scene.case, measurements=item.measurements)
        known = (from_then(each, item.starts, self._slower) for each in ways(item.record, case, item.starts))
        possible = tuple(known)
        found = fitting(possible, item.starts, item.until)
        best = min(found, key=lambda each: _lasts(each, each.need), default=None)
        if best is None and possible:
            return done_steps(item.record), math.inf  # its window has no room for a session
        if best is None or not best.rate.known:
            return None
        trains = min(best.need, best.longest - best.overhead) if item.sessions else best.need
        useful = trains * (1.0 - best.loss / best.need) if best.need > 0 else 0.0
        useful *= math.exp(-self._slower * best.rate.sigma)
        step = step_after(item.record.job.work, done_steps(item.record), useful, best.rate)
        return step, _lasts(best, trains)


def _lasts(way: Way, trains: float) -> float:
    """So much training with the set-ups and saves of its sessions, in seconds."""
    room = way.longest - way.overhead
    return trains + way.overhead * (math.ceil(trains / room) if 0 < room < math.inf else 1)


def _from(record: RunRecord, step: int) -> RunRecord:
    return replace(record, accepted=(at_step(step),)) if step else record
