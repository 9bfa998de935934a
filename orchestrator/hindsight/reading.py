"""Reads journals into a recording: run by run, each history once and in order.

Pure. The journalled cases of the router are the only record of offers and quotas. They hold what was left
after our own sessions, so what these used is added again. Must never know where a journal comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from orchestrator.core import wire
from orchestrator.core.charges import Charge, charges, window_began_at
from orchestrator.core.checkpoint import Accepted
from orchestrator.core.claims import claim_of
from orchestrator.core.event import (
    Adopted,
    Assigned,
    Cancelled,
    CheckpointAccepted,
    Completed,
    Confirmed,
    Cooldown,
    Ended,
    Event,
    GaveUp,
    Held,
    Released,
    Requeued,
    Slept,
    StopRequested,
    Submitted,
    TurnedAway,
    Woken,
)
from orchestrator.core.lifetimes import Lifetime
from orchestrator.core.offer import Offer, Quota
from orchestrator.core.order import Order, Outcome
from orchestrator.core.replay import Entry
from orchestrator.core.route import Case
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.session import Session
from orchestrator.core.speed import Measurement, samples_for
from orchestrator.hindsight.recording import Place, Reading, RecordedRun, Recording, Refused, Visit

ORDERLY = frozenset({Outcome.COMPLETED, Outcome.STOPPED})
REFUSED_SECONDS = 3600.0  # a refusal without a date is not believed for longer
ASKED = "held on request"  # the reason of a hold that the user wished
_CLOSING = (Requeued, Completed, GaveUp, Cancelled, Held)


@dataclass
class _Stay:
    """What a journal says of one session."""

    assigned: Assigned
    ended: Ended | None = None
    closed_at: float | None = None
    stop_asked: bool = False
    step: int = 0
    cleared_at: float | None = None
    charge: Charge | None = None

    @property
    def place(self) -> Place:
        return self.assigned.order.platform, self.assigned.order.accelerator


@dataclass
class _Story:
    """What a journal says of one run."""

    record: RunRecord
    events: list[Event] = field(default_factory=list)
    stays: list[_Stay] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)
    adopted_at: float = 0.0
    completed_at: float | None = None
    paused_at: float | None = None


class Recorder:
    """Collects the journals of several runs between `since` and `until`."""

    def __init__(self, since: float, until: float) -> None:
        self._since = since
        self._until = until
        self._runs: list[RecordedRun] = []
        self._stays: list[_Stay] = []
        self._cases: list[tuple[float, Case]] = []
        self._refusals: list[tuple[Place, float, float | None]] = []
        self._measurements: dict[str, tuple[Measurement, ...]] = {}
        self._unread: dict[str, str] = {}
        self._idle: list[str] = []

    def add(self, run: str, history: Iterable[Entry], store: str = "") -> None:
        """Reads one run's journal. A damaged one is left out, with the reason."""
        try:
            story = self._read(history, store)
        except Exception as error:  # noqa: BLE001 a foreign or damaged event may break the fold anywhere
            self._unread[run] = f"{type(error).__name__}: {error}"
            return
        if story is None:
            return
        found = {each.session: each for each in charges(story.events, self._until)}
        for stay in story.stays:
            stay.charge = found.get(stay.assigned.order.session)
        self._stays += [stay for stay in story.stays if stay.charge is not None]
        recorded = self._recorded(story)
        if recorded is None:
            self._idle.append(run)
        else:
            self._runs.append(recorded)

    def places(self) -> tuple[Place, ...]:
        """Every place that was on offer."""
        found = {(offer.platform, offer.accelerator) for _, case in self._cases for offer in case.offers}
        return tuple(sorted(found))

    def recording(self, lifetimes: Mapping[Place, Sequence[Lifetime]]) -> Recording:
        """Everything that was read. `lifetimes` of each place, of any time."""
        self._since = max(self._since, min((run.begins_at for run in self._runs), default=0.0))
        cases = sorted(self._cases, key=lambda each: (each[0], -_left(each[1].offers)))
        readings = [self._reading(at, case) for at, case in _first_of_each_moment(cases)]
        last = cases[-1][1] if cases else Case()
        return Recording(
            self._since, self._until,
            tuple(sorted(self._runs, key=lambda each: (each.submitted_at, each.run))),
            tuple(readings),
            tuple(self._refused()),
            dict(self._measurements),
            {place: tuple(each for each in several if each.at < self._since)
             for place, several in lifetimes.items()},
            last.rules,
            {(platform, store): why for platform, store, why in last.unreachable},
            last.utc_offset_seconds,
            sum(case.rules != before.rules for (_, before), (_, case) in pairwise(cases)),
            self._unread,
            tuple(self._idle),
        )  # fmt: skip

    # --- One journal ------------------------------------------------------------------------------------

    def _read(self, history: Iterable[Entry], store: str) -> _Story | None:
        story: _Story | None = None
        for entry in history:
            event = entry.event
            if entry.trouble:
                raise ValueError(entry.trouble)
            if event.at > self._until:
                break
            if story is None:
                if not isinstance(event, Submitted):
                    raise ValueError("the first event is not the submission")
                story = _Story(submit(replace(event, store=event.store or store)), [event])
                continue
            self._note_case(entry, story.record)
            story.events.append(event)
            self._note(story, event)
            story.record = apply(story.record, event)
        return story

    def _note_case(self, entry: Entry, record: RunRecord) -> None:
        raw = entry.inputs.get("case") if isinstance(entry.inputs, dict) else None
        if not isinstance(raw, dict):
            return
        at, job = entry.event.at, record.job.name
        known = at >= self._since and job in self._measurements
        small = {**raw, "openings": []} | ({"measurements": []} if known else {})
        case = _case(small)  # what is not needed is not decoded
        if case is None:
            return
        if not known:
            self._measurements[job] = case.measurements
        self._cases.append((at, replace(case, measurements=())))

    def _note(self, story: _Story, event: Event) -> None:
        stay = story.stays[-1] if story.stays else None
        match event:
            case Adopted(accepted=accepted):
                story.adopted_at = event.at
                story.steps += [(event.at, _step(each)) for each in accepted]
            case Assigned():
                story.stays.append(_Stay(event))
            case StopRequested() if stay is not None:
                stay.stop_asked = True
            case CheckpointAccepted(checkpoint=checkpoint):
                story.steps.append((event.at, _step(checkpoint)))
                if stay is not None:
                    stay.step = max(stay.step, _step(checkpoint))
            case Ended() if stay is not None:
                stay.ended = event
            case TurnedAway(cooldown=cooldown) if stay is not None:
                self._note_refusal(stay, event.at, cooldown)
            case Confirmed(session=session):
                for each in story.stays:
                    if each.assigned.order.session == session:
                        each.cleared_at = event.at
            case Completed():
                story.completed_at = event.at
            case Released():
                story.releases.append(event.at)
            case _:
                pass
        if isinstance(event, _CLOSING) and stay is not None and stay.closed_at is None:
            stay.closed_at = event.at
            if stay.ended is not None and stay.ended.outcome in (Outcome.NO_CAPACITY, Outcome.REFUSED):
                self._note_refusal(stay, event.at, getattr(event, "cooldown", None))
        _note_pause(story, event)

    def _note_refusal(self, stay: _Stay, at: float, cooldown: Cooldown | None) -> None:
        self._refusals.append((stay.place, at, None if cooldown is None else cooldown.until))

    def _recorded(self, story: _Story) -> RecordedRun | None:
        """The run's work in the recorded time; None if it did none."""
        record = story.record
        begins_at = max(self._since, record.submitted_at, story.adopted_at)
        before = max((step for at, step in story.steps if at <= begins_at), default=0)
        goal = max((step for _, step in story.steps), default=0)
        over = story.completed_at is not None and story.completed_at < self._since
        if goal <= before or over:
            return None
        done = story.completed_at is not None
        reached = min(at for at, step in story.steps if step == goal)
        pauses = [*story.pauses, *([(story.paused_at, self._until)] if story.paused_at is not None else [])]
        return RecordedRun(
            record.run, record.job, record.submitted_at, record.store, begins_at, before, goal,
            story.completed_at if story.completed_at is not None else reached, done,
            tuple(visit for stay in story.stays if (visit := self._visit(stay, record)) is not None),
            tuple(pause for pause in pauses if pause[1] > self._since),
            tuple(at for at in story.releases if at > self._since),
            record.deadline,
            self._under_way(story, before),
        )  # fmt: skip

    def _under_way(self, story: _Story, step: int) -> tuple[Order, Offer] | None:
        """The rest of the session that ran at the beginning of the recorded time, if one did."""
        for stay in story.stays:
            charge, order = stay.charge, stay.assigned.order
            if charge is not None and charge.began_at < self._since < charge.until:
                ran, budget = self._since - charge.began_at, order.budget_seconds
                left = None if budget is None else max(0.0, budget - ran)
                order = replace(order, resume_step=step, budget_seconds=left)
                return order, Offer(order.platform, order.accelerator, stay.assigned.traits, own=order.own)
        return None

    def _visit(self, stay: _Stay, record: RunRecord) -> Visit | None:
        """The session, or the part of it in the recorded time; None if it is over before."""
        charge = stay.charge
        if charge is None or charge.until <= self._since:
            return None
        part, order = charge.since(self._since), stay.assigned.order
        whole, trained = charge.kept_at - charge.trained_at, part.kept_at - part.trained_at
        samples = samples_for(record.job.work, order.resume_step, max(stay.step, order.resume_step))
        outcome = stay.ended.outcome if stay.ended is not None else Outcome.STOPPED
        left = outcome is Outcome.STOPPED and stay.ended is not None and not stay.stop_asked
        spare = max(0.0, order.budget_seconds - charge.seconds) if left and order.budget_seconds else 0.0
        return Visit(
            stay.place,
            max(self._since, stay.assigned.at),
            part.began_at,
            part.until,
            max(part.until, stay.closed_at if stay.closed_at is not None else part.until),
            part.trained_at - part.began_at,
            trained,
            samples * (trained / whole if whole > 0 else 0.0),
            outcome,
            spare,
            early=outcome not in ORDERLY,
            own=order.own,
        )

    # --- What was on offer ------------------------------------------------------------------------------

    def _reading(self, at: float, case: Case) -> Reading:
        silent = {each.platform: each.reason for each in case.silent}
        return Reading(at, tuple(self._with_ours(offer, case.offers, at) for offer in case.offers), silent)

    def _with_ours(self, offer: Offer, offers: Sequence[Offer], at: float) -> Offer:
        """The offer with the quota that would be left if no session of ours had used any in its window."""
        quota = offer.quota
        offer = replace(offer, lifetimes=None)
        if quota is None:
            return offer
        pool = {each.accelerator: each.quota for each in offers if _shares(each, offer)}
        since = max(self._since, window_began_at(quota) or 0.0)
        ours = sum(
            shared.taken(_used(stay, at, since))
            for stay in self._stays
            if stay.place[0] == offer.platform and (shared := pool.get(stay.place[1])) is not None
        )
        return replace(offer, quota=replace(quota, left_seconds=quota.left_seconds + quota.lasts(ours)))

    def _refused(self) -> Iterator[Refused]:
        """A place refuses until a session starts there, or until the run was to ask again."""
        started: dict[Place, list[float]] = {}
        for stay in self._stays:
            started.setdefault(stay.place, []).append(stay.assigned.at)
        for place, at, until in sorted(self._refusals, key=lambda each: each[1]):
            again = min((start for start in started.get(place, []) if start > at), default=at + 1e18)
            end = min(again, at + REFUSED_SECONDS if until is None else until)
            if end > max(at, self._since):
                yield Refused(place, at, end)


def _case(raw: Mapping[str, Any]) -> Case | None:
    """The case; None if this version cannot read it. Then the readings before and after it count."""
    try:
        found: Case = wire.decode(Case, raw)
    except ValueError:
        return None
    return found


def _first_of_each_moment(cases: Sequence[tuple[float, Case]]) -> Iterator[tuple[float, Case]]:
    """What was left before the first session of each tick was assigned."""
    before: float | None = None
    for at, case in cases:
        if at != before:
            yield at, case
        before = at


def _left(offers: Iterable[Offer]) -> float:
    return sum(each.quota.left_seconds for each in offers if each.quota is not None)


def _shares(each: Offer, offer: Offer) -> bool:
    mine: Quota | None = offer.quota
    return (
        each.platform == offer.platform and each.quota is not None and each.quota.pool == (mine and mine.pool)
    )


def _used(stay: _Stay, at: float, since: float) -> float:
    """What a session has used of a window at a time, or may still use, in seconds."""
    charge = stay.charge
    if charge is None or stay.assigned.at >= at:
        return 0.0
    elapsed = max(0.0, min(at, charge.until) - max(charge.began_at, since))
    if stay.closed_at is not None and stay.closed_at <= at:
        return elapsed + _stray(stay, charge.began_at, at)
    began = charge.began_at if charge.began_at <= at else None
    session = Session(stay.assigned.order, stay.assigned.traits, stay.assigned.at, began_at=began)
    return elapsed + claim_of(session, {stay.place[0]: at}).seconds


def _stray(stay: _Stay, began_at: float, at: float) -> float:
    """What a session that was given up as lost may still use: it counts until it is cleaned up."""
    traits = stay.assigned.traits
    if stay.ended is None or stay.ended.confirmed or traits.session_seconds is None:
        return 0.0
    if stay.cleared_at is not None and stay.cleared_at <= at:
        return 0.0
    return max(0.0, began_at + traits.session_seconds + traits.slack_seconds - at)


def _step(accepted: Accepted) -> int:
    return accepted.ref.step


def _note_pause(story: _Story, event: Event) -> None:
    if isinstance(event, Slept) or (isinstance(event, Held) and event.reason == ASKED):
        story.paused_at = event.at if story.paused_at is None else story.paused_at
    elif isinstance(event, Released | Cancelled | Woken) and story.paused_at is not None:
        story.pauses.append((story.paused_at, event.at))
        story.paused_at = None
