"""What becomes of every run: a scene → the expected sessions of each run, as the router would decide them.

Running sessions first, then the queue as the router orders it; each run takes its place in one calendar, and
the next one sees what is left. Everything is a guess with a range. Pure. Decides nothing: the router decides
anew whenever something changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core import itinerary as itineraries
from orchestrator.core import slices
from orchestrator.core.calendar import Opening
from orchestrator.core.fires import done_at, replaced, scheduled, skipped
from orchestrator.core.forecast import RANGE_Z, Rest, costs, forecast, measurement, view
from orchestrator.core.foreseen import Forecast
from orchestrator.core.itinerary import DONE, SOON_SECONDS, Way
from orchestrator.core.job import Mode
from orchestrator.core.layout import Item, Layout, Standing, as_known, done_steps, fitting, from_then
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Hop, Itinerary
from orchestrator.core.queueing import Place
from orchestrator.core.route import judge, ways
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Scene, Watched
from orchestrator.core.speed import step_after

SLOT = "it waits for a free slot"
UNKNOWN = "its speed is unknown until its first session measures it"
SLEEPS = "it goes on when its schedule wakes it"
FURTHER = "it is not done within the fires that are laid out"
NEEDLESS = "its run needs no further slice"
NO_FIRE = "its schedule does not fire"
TOO_SMALL = "its window leaves too little for set-up, some training and a save"
SKIPPED = "an earlier run is under way at each of its fires"
AT_ONCE_SECONDS = 60.0  # a session that begins so soon after the last one did not wait


@dataclass(frozen=True)
class Alone:
    """When a run would end if it used this offer only, in the place that the queue leaves it there."""

    platform: str
    accelerator: str
    end: float
    low: float
    high: float


@dataclass(frozen=True)
class Expected:
    """What is expected of one run. `hops` are its sessions, the present one first; empty if none can be told,
    and `reason` says why. `planned`: when a schedule fires for it, in unix seconds. `alone`: how a run
    that was asked about, or that has a deadline, would end on each offer alone."""

    run: str
    job: str
    standing: Standing
    hops: tuple[Hop, ...] = ()
    forecast: Forecast | None = None
    deadline: float | None = None
    reason: str = ""
    alone: tuple[Alone, ...] = ()
    planned: float | None = None

    @property
    def quota_seconds(self) -> float:
        return sum(hop.quota_seconds for hop in self.hops)

    @property
    def quota_units(self) -> float:
        return sum(hop.quota_units for hop in self.hops)

    @property
    def meets_deadline(self) -> bool | None:
        """None if there is no deadline or no forecast."""
        if self.deadline is None or self.forecast is None:
            return None
        return self.forecast.end <= self.deadline


def foresee(scene: Scene) -> dict[str, Forecast]:
    """The forecast of every run of which enough is known, also of those that sleep."""
    found, sliced = _laid_out(scene)
    told = {each.run: each.forecast for each in found if each.forecast is not None}
    for record in scene.waiting:
        end = sliced[record.schedule].forecast if record.asleep and record.schedule in sliced else None
        if end is not None:
            told[record.run] = end
    return told


def outlook(scene: Scene) -> tuple[Expected, ...]:
    """What is expected of every run of the scene: those that run, then the others as they start. A run that
    sleeps is there as the slices that its schedule will give it; one that was asked about has them itself. If
    its schedule begins a new run each time, it is the run of the next fire that begins one."""
    return tuple(sorted(_laid_out(scene)[0], key=_turn))


def _laid_out(scene: Scene) -> tuple[list[Expected], Mapping[str, Slices]]:
    present = [replaced(scene, each) for each in (*_running(scene), *_waiting(scene))]
    items = [*present, *scheduled(scene, present)]
    middle = Layout(scene, items, 0.0)
    while gone := skipped(items, middle.ends):
        items = [each for each in items if each.record.run not in gone]
        middle = Layout(scene, items, 0.0)
    early, late = (Layout(scene, items, z).starts for z in (-RANGE_Z, RANGE_Z))
    found = [_expected(scene, item, middle, early, late) for item in items]
    sliced = _slices(scene, present, found)
    asked = [each for each in scene.asked if each.schedule]
    if not sliced and not asked:
        return found, sliced
    schedules = {item.record.run: item.record.schedule for item in present if item.record.slice is not None}
    found = [_grown(each, sliced.get(schedules.get(each.run, ""))) for each in found]
    for record in asked:
        names = {each.name for each in scene.coming if each.schedule == record.schedule}
        fires = sorted((each for each in found if each.run in names), key=_planned)
        if _grows(record):
            found = [each for each in found if each not in fires]
            why_none = NEEDLESS if names else NO_FIRE
            found.append(_asked_in_slices(record, sliced.get(record.schedule), why_none))
        else:
            found = [each for each in found if each not in fires[:1]]
            found.append(_asked_at_fire(record, fires[:1], SKIPPED if names else NO_FIRE))
    return found, sliced


def _planned(run: Expected) -> float:
    return run.planned or 0.0


def _turn(run: Expected) -> tuple[bool, float, str]:
    start = run.hops[0].start if run.hops else math.inf
    return run.standing is not Standing.RUNNING, start, run.run


# --- Who is laid out --------------------------------------------------------------------------------------


def _running(scene: Scene) -> Iterable[Item]:
    offers = {(offer.platform, offer.accelerator): offer for offer in scene.case.offers}
    for record in scene.running:
        session = record.session
        if session is None:
            continue
        watched = scene.watched.get(record.run) or Watched(record.run)
        if watched.session != session.name:
            watched = Watched(record.run, turn=watched.turn)
        known = scene.measurements.get(record.job.name, ())
        seen = view(
            record, offers.get((session.order.platform, session.order.accelerator)), known, scene.now,
            pace=watched.pace, status=watched.status, turn=watched.turn,
        )  # fmt: skip
        if watched.pace is not None:
            known = (*known, measurement(record.job.work, session.order, watched.pace))
        yield Item(record, Standing.RUNNING, scene.now, known, seen, watched.turn, slices.closes(record),
                   sessions=slices.sessions(record))  # fmt: skip


def _waiting(scene: Scene) -> Iterable[Item]:
    for record, standing in (
        *((each, Standing.WAITING) for each in scene.waiting),
        *((each, Standing.ASKED) for each in scene.asked),
    ):
        if record.fault or record.wish is not None or record.phase is not Phase.QUEUED or record.asleep:
            continue
        if standing is Standing.ASKED and record.schedule:  # its fires are laid out
            continue
        starts = scene.now if record.until is None or record.deferred else max(scene.now, record.until)
        known = scene.measurements.get(record.job.name, ())
        yield Item(
            record, standing, starts, known, until=slices.closes(record), sessions=slices.sessions(record)
        )


# --- Growing runs: each slice is laid out as a run of its own --------------------------------------------


@dataclass(frozen=True)
class Slices:
    """What the fires to come are expected to make of a growing run. `forecast`: its end; None if they do not
    suffice, or if too little is known: `reason` says so."""

    hops: tuple[Hop, ...] = ()
    forecast: Forecast | None = None
    reason: str = ""


def _grows(record: RunRecord) -> bool:
    """Whether a schedule continues the run."""
    given = record.job.schedule
    return bool(record.schedule) and given is not None and given.mode is Mode.CONTINUE


def _slices(scene: Scene, present: Sequence[Item], found: Iterable[Expected]) -> dict[str, Slices]:
    """The slices to come of each growing run, by its schedule."""
    schedules = {
        each.name: each.schedule
        for each in scene.coming
        if each.job.schedule is not None and each.job.schedule.mode is Mode.CONTINUE
    }
    sliced: dict[str, Slices] = {}
    for each in found:
        schedule = schedules.get(each.run)
        if schedule is None:
            continue
        before = sliced.get(schedule, Slices())
        if before.forecast is None:
            sliced[schedule] = Slices((*before.hops, *each.hops), each.forecast, each.reason)
    if not any(each.forecast for each in sliced.values()):
        return sliced
    early, late = (done_at(scene, present, z) for z in (-RANGE_Z, RANGE_Z))
    return {name: _ranged(each, early.get(name), late.get(name)) for name, each in sliced.items()}


def _ranged(sliced: Slices, early: float | None, late: float | None) -> Slices:
    """With a range that counts slices more or fewer. `early`, `late`: the end if all training is faster, or
    slower; None: the fires do not suffice then."""
    told = sliced.forecast
    if told is None:
        return sliced
    low = told.low if early is None else max(told.at, min(told.low, early))
    high = None if late is None or told.high is None else max(told.high, late)
    return replace(sliced, forecast=replace(told, low=low, high=high, sessions=len(sliced.hops)))


def _grown(run: Expected, sliced: Slices | None) -> Expected:
    """A run whose slice ends before it is done ends with a later slice."""
    if run.forecast is not None or sliced is None or sliced.forecast is None or not run.hops:
        return run
    told = sliced.forecast
    return replace(run, forecast=replace(told, sessions=told.sessions + len(run.hops)))


def _asked_in_slices(record: RunRecord, sliced: Slices | None, why_none: str) -> Expected:
    found = Expected(record.run, record.job.name, Standing.ASKED, deadline=record.deadline)
    if sliced is None:
        return replace(found, reason=why_none)
    reason = FURTHER if sliced.hops and sliced.reason != UNKNOWN else sliced.reason
    return replace(found, hops=sliced.hops, forecast=sliced.forecast,
                   reason="" if sliced.forecast is not None else reason)  # fmt: skip


def _asked_at_fire(record: RunRecord, first: Sequence[Expected], why_none: str) -> Expected:
    """The run of the first fire that begins one."""
    found = Expected(record.run, record.job.name, Standing.ASKED, deadline=record.deadline, reason=why_none)
    if not first:
        return found
    return replace(first[0], run=record.run, standing=Standing.ASKED, deadline=record.deadline)


# --- The answer -------------------------------------------------------------------------------------------


def _expected(
    scene: Scene, item: Item, middle: Layout, early: Mapping[str, float], late: Mapping[str, float]
) -> Expected:
    run, record, now = item.record.run, item.record, scene.now
    planned_at = record.submitted_at if item.standing is Standing.SCHEDULED else None
    found = Expected(run, record.job.name, item.standing, deadline=record.deadline, planned=planned_at)
    rest = middle.rests.get(run)
    where = middle.places.get(run)
    present = () if rest is None else (_present(item, rest),)
    if rest is not None and rest.samples <= 0:
        return replace(found, hops=present, forecast=forecast(item.view))
    if where is None or not where.legs:
        return replace(found, hops=present, reason=_why_no_place(scene, item))
    openings = {(each.platform, each.accelerator): each for each in where.openings}
    planned = _itinerary(scene, item, where, openings)
    if planned is None:
        return replace(found, hops=present, reason=_why_unknown(item, now))
    if not _known(where):
        return replace(found, hops=present, reason=_why_undated(item, where, now))
    hops = (*present, *planned.hops[: item.sessions or None])
    if item.sessions and hops[-1].why_it_ends != DONE:
        return replace(found, hops=hops, reason=SLEEPS)
    if item.until is not None and planned.finish >= item.until - AT_ONCE_SECONDS:
        return replace(
            found, hops=_closed(item, item.until, where, hops), reason=f"{item.why} before it is done"
        )
    if item.standing is Standing.ASKED or record.deadline is not None:
        found = replace(found, alone=tuple(_alone(where, openings, now)))
    if rest is not None and _goes_on(item, rest, planned.hops):
        return replace(found, hops=hops, forecast=forecast(item.view))
    turn = costs(record.job, scene.case.offers[0], turn=item.turn).turn if scene.case.offers else 0.0
    start, end = planned.hops[0].start, planned.finish + turn
    low = math.hypot(RANGE_Z * (planned.finish - planned.finish_low), start - early.get(run, start))
    high = math.hypot(RANGE_Z * (planned.finish_high - planned.finish), late.get(run, math.inf) - start)
    latest = end + high if math.isfinite(high) else None
    told = Forecast(now, end, max(now, end - low), latest, len(hops))
    return replace(found, hops=hops, forecast=told)


def _closed(item: Item, until: float, place: Place, hops: tuple[Hop, ...]) -> tuple[Hop, ...]:
    """The sessions of a run that something ends before it is done. Those after LEGS_MAX are not told."""
    hops = tuple(hop for hop in hops if hop.start < until - SOON_SECONDS) or hops[:1]
    if hops[-1].end < until - AT_ONCE_SECONDS and hops[-1].why_it_ends != DONE:
        return hops
    last, way = replace(hops[-1], end=min(hops[-1].end, until)), place.legs[-1].way
    step = step_after(
        item.record.job.work, last.from_step, last.end - last.start - way.wait - way.overhead, way.rate
    )
    return (*hops[:-1], replace(last, to_step=step, why_it_ends=item.why))


def _itinerary(
    scene: Scene, item: Item, place: Place, openings: Mapping[tuple[str, str], Opening]
) -> Itinerary | None:
    """The run's sessions where the router places them, with what sessions are known to cost. The router
    counts less of that: the two may differ in how the run goes on, but not in where its next session is."""
    record, done = place.waiting.record, done_steps(place.waiting.record)
    rough = itineraries.itinerary(record.job, place.waiting.ways, openings, now=scene.now, done_steps=done)
    if (
        rough is not None
        and rough.start <= scene.now + SOON_SECONDS
        and item.standing is not Standing.RUNNING
    ):
        allowed = _allowed(scene, item, place, rough)
        if len(allowed) < len(place.waiting.ways):
            rough = itineraries.itinerary(record.job, allowed, openings, now=scene.now, done_steps=done)
    if rough is None:
        return None
    used = {(hop.platform, hop.accelerator) for hop in rough.hops}
    offers = tuple(as_known(record, offer, item) for offer in scene.case.offers)
    starts = {each.place: each.not_before for each in place.waiting.ways}
    exact = [
        from_then(each, starts[each.place])
        for each in ways(
            record, replace(scene.case, measurements=item.measurements, offers=offers), scene.now
        )
        if each.place in used
    ]
    exact = fitting(exact, item.starts, item.until)
    found = itineraries.itinerary(record.job, exact, openings, now=scene.now, done_steps=done)
    same = found is not None and _first(found) == _first(rough)
    return found if same else rough


def _allowed(scene: Scene, item: Item, place: Place, rough: Itinerary) -> Sequence[Way]:
    """The ways that the router does not reject: it looks closer than the layout at what is to start now."""
    case = replace(scene.case, measurements=item.measurements, openings=place.openings, others=1)
    chosen = judge(place.waiting.record, case, scene.now).chosen
    if chosen is None:
        return [each for each in place.waiting.ways if each.place != _first(rough)]
    where = chosen.offer.platform, chosen.offer.accelerator
    if where == _first(rough):
        return place.waiting.ways
    return [each for each in place.waiting.ways if each.place == where]


def _first(planned: Itinerary) -> tuple[str, str]:
    return planned.hops[0].platform, planned.hops[0].accelerator


def _present(item: Item, rest: Rest) -> Hop:
    """The session that the run has."""
    seen = item.view
    assert seen is not None
    session, order = seen.session, seen.session.order
    begins = session.runs_since or session.launched_at or session.assigned_at
    quota = seen.offer.quota
    used = 0.0 if quota is None else rest.over_at - begins
    why = "done" if rest.samples <= 0 else "session limit"
    units = 0.0 if quota is None else quota.units(used)
    return Hop(order.platform, order.accelerator, begins, rest.over_at, order.resume_step, rest.step, used,
               why, units)  # fmt: skip


def _goes_on(item: Item, rest: Rest, hops: Sequence[Hop]) -> bool:
    """Whether the run stays on its offer and never waits there: then its own forecast is more exact."""
    if item.view is None:
        return False
    here = item.view.offer.platform, item.view.offer.accelerator
    begins_at = (rest.over_at, *(hop.end for hop in hops))
    return all(
        (hop.platform, hop.accelerator) == here and hop.start - at <= AT_ONCE_SECONDS
        for at, hop in zip(begins_at, hops, strict=False)
    )


def _alone(place: Place, openings: Mapping[tuple[str, str], Opening], now: float) -> Iterable[Alone]:
    """On each offer of known speed, the earliest end first."""
    record, found = place.waiting.record, []
    for way in place.waiting.ways:
        ends = itineraries.itinerary(record.job, [way], openings, now=now, done_steps=done_steps(record))
        if ends is not None and way.rate.known:
            low, high = RANGE_Z * (ends.finish - ends.finish_low), RANGE_Z * (ends.finish_high - ends.finish)
            found.append(Alone(*way.place, ends.finish, max(now, ends.finish - low), ends.finish + high))
    return sorted(found, key=lambda each: each.end)


def _known(place: Place) -> bool:
    """Whether the speed of its first session is more than a guess."""
    return place.legs[0].way.rate.known


def _why_undated(item: Item, place: Place, now: float) -> str:
    """Why a run of unknown speed has no dates, and what it waits for first."""
    starts_later = place.legs[0].start > max(now, item.starts) + SOON_SECONDS
    waits = item.record.waiting_reason(now) or (SLOT if starts_later else "")
    return f"{waits}; {UNKNOWN}" if waits else UNKNOWN


def _why_no_place(scene: Scene, item: Item) -> str:
    """Why no session is expected for a run, which may be its window."""
    record = item.record
    if item.until is None or item.standing is Standing.RUNNING:
        return _why_unknown(item, scene.now)
    case = replace(scene.case, measurements=item.measurements)
    known = [from_then(each, item.starts) for each in ways(record, case, scene.now)]
    too_small = known and not fitting(known, item.starts, item.until)
    return (record.waiting_reason(scene.now) or TOO_SMALL) if too_small else _why_unknown(item, scene.now)


def _why_unknown(item: Item, now: float) -> str:
    """Why nothing more can be told of the run."""
    if item.standing is not Standing.RUNNING:
        return item.record.waiting_reason(now) or "no offer is expected to open for it"
    return item.record.fault or (UNKNOWN if item.view is None else SLEEPS)
