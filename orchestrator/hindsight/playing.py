"""Plays a recorded time under a setting: with the real market, router and `decide`, on recorded sessions.

A discrete simulation. When a run is submitted, a session ends or the offers change, the engine's
queue says who is decided next. Every platform answers at once and exactly. A run stops when it has done the
work that it did in the recording. Pure, but for the market and the queue, which only remember.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.closing import closing
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import (
    Assigned,
    CheckpointAccepted,
    Ended,
    Event,
    Launched,
    Prepared,
    Released,
    Started,
)
from orchestrator.core.lifecycle import Phase
from orchestrator.core.lifetimes import Lifetime
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.speed import Measurement
from orchestrator.engine.market import Market
from orchestrator.engine.queue import Queue, Turn
from orchestrator.hindsight.offering import Offering, Setting, Use
from orchestrator.hindsight.recording import Place, RecordedRun, Recording
from orchestrator.hindsight.staying import Experience, Stay, cut, measurement

AFTER_SECONDS_MIN = 30 * 86400.0  # how long a play goes on after the recorded time, at least
TICK_SECONDS = 1.0  # a run that was released is decided in the next tick: others go first
INCARNATION = "played"


@dataclass(frozen=True)
class Played:
    """What came of one run. `reached_at`: when its work was done (None: it was not, for this `reason`, and it
    is at `step`). `waited`: seconds in which it had no session and was not paused. `seconds`: in sessions, by
    place. `guessed`: on accelerators where its speed was never recorded."""

    run: str
    reached_at: float | None
    step: int
    waited: float
    sessions: int
    seconds: Mapping[Place, float]
    reason: str = ""
    guessed: tuple[str, ...] = ()


@dataclass
class _Story:
    """One run as it is played."""

    run: RecordedRun
    record: RunRecord
    stay: Stay | None = None
    step: int = 0
    idle_since: float = 0.0
    waited: float = 0.0
    due_at: float = 0.0
    next_tick: float = 0.0
    paused: bool = False
    stuck: str = ""
    reached_at: float | None = None
    sessions: int = 0
    seconds: dict[Place, float] = field(default_factory=dict)
    guessed: dict[str, None] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        free = self.stay is None and self.reached_at is None
        return free and not self.paused and not self.stuck and self.record.phase is Phase.QUEUED


def play(
    recording: Recording, setting: Setting, progress: Callable[[int], None] | None = None
) -> tuple[Played, ...]:
    """Each run's fate under this setting, in the order of the recording. `progress` is called with how many
    runs are over."""
    return _Play(recording, setting, progress or (lambda _: None)).played()


class _Play:
    def __init__(self, recording: Recording, setting: Setting, progress: Callable[[int], None]) -> None:
        self._recording = recording
        self._offering = Offering(recording, setting)
        self._experience = Experience(recording)
        self._progress = progress
        self._market = Market(
            self._offering.platforms, setting.rules, setting.utc_offset_seconds, dict(setting.unreachable)
        )
        self._queue = Queue(self._market, self._measurements, lambda _run, _doing: nullcontext())
        self._end = recording.until + max(AFTER_SECONDS_MIN, recording.until - recording.since)
        self._stories = {run.run: _begun(run) for run in recording.runs}
        self._arrived: dict[str, _Story] = {}
        self._measured: dict[str, tuple[Measurement, ...]] = dict(recording.measurements)
        self._used: list[Use] = []
        self._events: list[tuple[float, int, str, str]] = []
        self._count = self._over = 0

    def played(self) -> tuple[Played, ...]:
        for run in self._recording.runs:
            self._push(run.begins_at, "arrives", run.run)
        for at in self._offering.changes(self._end):
            self._push(at, "changes", "")
        while self._events and self._over < len(self._stories):
            now = self._events[0][0]
            if now > self._end:
                break
            stirred = False
            while self._events and self._events[0][0] <= now:
                _, _, what, who = heapq.heappop(self._events)
                stirred |= self._happens(what, who, now)
            self._decide_queue(now, stirred)
        return tuple(self._told(self._stories[run.run]) for run in self._recording.runs)

    def _push(self, at: float, what: str, run: str) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what, run))

    def _happens(self, what: str, run: str, now: float) -> bool:
        """Returns whether waiting runs may now find another place."""
        story = self._stories.get(run)
        if story is None:
            return what == "changes"
        match what:
            case "arrives":
                self._arrived[run] = story
                self._continues(story, now)
                for since, until in story.run.pauses:
                    self._push(max(now, since), "pauses", run)
                    self._push(max(now, until), "resumes", run)
            case "pauses":
                self._pauses(story, now)
            case "resumes":
                story.paused, story.idle_since = False, now
                self._next_tick(story, now)
            case "is released":
                story.record = apply(story.record, Released(now))
                story.idle_since = now
                self._next_tick(story, now)
            case "ends" if story.stay is not None and story.stay.closed_at <= now:
                self._ends(story, story.stay, now)
                return True
            case _:
                pass
        return False

    def _measurements(self, job: str) -> tuple[Measurement, ...]:
        return self._measured.get(job, ())

    # --- Deciding ---------------------------------------------------------------------------------------

    def _decide_queue(self, now: float, stirred: bool) -> None:
        waiting = {run: each for run, each in self._arrived.items() if each.waits and now >= each.next_tick}
        due = {run: each.record for run, each in waiting.items() if each.due_at <= now}
        if not waiting or not (due or stirred or self._queue.stirred):
            return
        for surveyed in self._offering.surveys(now, self._used):
            self._market.take(surveyed, now)
        for place in self._market.losses.wanted:
            self._market.losses.learn(place, self._recording.lifetimes.get(place, ()))
        self._market.begin((each.record for each in self._arrived.values() if each.stay is not None), now)
        if stirred:
            self._queue.stir(waiting)
        if self._market.full or not (due or self._queue.stirred):
            return
        for turn in self._queue.turns(due, {run: each.record for run, each in waiting.items()}, now):
            self._decide(waiting[turn.record.run], turn, now)
        if self._queue.stirred:
            self._push(now + TICK_SECONDS, "is due", next(iter(waiting)))

    def _decide(self, story: _Story, turn: Turn, now: float) -> None:
        case = self._market.case(self._measurements(story.run.job.name), turn.openings, turn.others)
        route = self._market.judged(story.record, case)
        decision = decide(story.record, Inputs(now, now, route=route, case=case))
        story.record = decision.record
        session = story.record.session
        if session is not None:
            assert route is not None
            assert route.chosen is not None
            self._market.reserve(session)
            stay = self._experience.stay(story.run, session.order, route.chosen.offer, now)
            self._starts(story, stay, now)
        elif story.record.phase is Phase.HELD:
            self._waits_for_a_person(story, now)
        else:
            story.due_at = math.inf if decision.due_at is None else max(decision.due_at, now + 1.0)
            if story.due_at < self._end:
                self._push(story.due_at, "is due", story.run.run)

    def _waits_for_a_person(self, story: _Story, now: float) -> None:
        """It is released when it was in the recording; else nobody comes."""
        again = next((at for at in story.run.releases if at > now), None)
        if again is None:
            story.stuck = f"would have waited for a person: {story.record.standing_reason}"
            self._over += 1
        else:
            self._push(again, "is released", story.run.run)

    # --- Sessions ---------------------------------------------------------------------------------------

    def _starts(self, story: _Story, stay: Stay, now: float) -> None:
        story.waited += now - story.idle_since
        story.stay, story.sessions = stay, story.sessions + 1
        if not stay.recorded:
            story.guessed[stay.place[1]] = None
        events: tuple[Event, ...] = (Prepared(now), Launched(now), Started(stay.began_at, INCARNATION))
        story.record = _after(story.record, events)
        self._used.append(Use(stay.place, stay.began_at, stay.ended_at))
        self._push(stay.closed_at, "ends", story.run.run)

    def _continues(self, story: _Story, now: float) -> None:
        """A session that ran when the recorded time began goes on."""
        if story.run.under_way is not None:
            order, offer = story.run.under_way
            story.record = apply(story.record, Assigned(now, order, offer.traits, "it ran already"))
            self._starts(story, self._experience.stay(story.run, order, offer, now), now)

    def _pauses(self, story: _Story, now: float) -> None:
        story.paused = True
        session = story.record.session
        if story.stay is None or session is None:
            story.waited += now - story.idle_since if story.reached_at is None else 0.0
            return
        before = story.stay
        story.stay = cut(before, story.run, session.order, now)
        self._used.remove(Use(before.place, before.began_at, before.ended_at))
        self._used.append(Use(before.place, story.stay.began_at, story.stay.ended_at))
        self._push(story.stay.closed_at, "ends", story.run.run)

    def _ends(self, story: _Story, stay: Stay, now: float) -> None:
        session = story.record.session
        assert session is not None
        order = session.order
        story.stay, story.idle_since = None, now
        story.seconds[stay.place] = story.seconds.get(stay.place, 0.0) + stay.ran
        lived = Lifetime(stay.ended_at, stay.ran, stay.outcome is Outcome.LOST)
        self._market.losses.add(stay.place, lived)
        learned = measurement(story.run.job.work, order, stay)
        if learned is not None:
            name = story.run.job.name
            self._measured[name] = (*self._measured.get(name, ()), learned)
        events: list[Event] = []
        if stay.step > order.resume_step:
            ref = CheckpointRef(stay.step, order.generation, INCARNATION)
            events.append(CheckpointAccepted(now, Accepted(ref, 1)))
        message = f"played: {stay.outcome.value}"
        events.append(Ended(stay.ended_at, stay.outcome, message, confirmed=True, step=stay.step))
        record = _after(story.record, events)
        record = apply(record, closing(record, now))
        story.record = replace(record, accepted=record.accepted[-1:], strays=(), closed=())
        story.step = max(story.step, stay.step)
        story.due_at = now
        if story.step >= story.run.goal_step:
            story.reached_at = now if story.run.done else stay.reached_at
            self._over += 1
        elif story.record.phase is Phase.HELD:
            self._waits_for_a_person(story, now)
        elif story.record.phase.final:
            story.stuck = f"would have ended: {story.record.reason}"
            self._over += 1
        self._progress(self._over)

    def _next_tick(self, story: _Story, now: float) -> None:
        story.due_at = story.next_tick = now + TICK_SECONDS
        self._push(story.due_at, "is due", story.run.run)

    def _told(self, story: _Story) -> Played:
        reason = story.stuck
        if story.reached_at is None and not reason:
            reason = story.record.reason if story.stay is None else "still running"
        return Played(
            story.run.run, story.reached_at, story.step, story.waited, story.sessions, story.seconds,
            reason if story.reached_at is None else "", tuple(story.guessed),
        )  # fmt: skip


def _begun(run: RecordedRun) -> _Story:
    accepted = (Accepted(CheckpointRef(run.from_step, 0, INCARNATION), 1),) if run.from_step else ()
    record = RunRecord(
        run.run, run.job, run.submitted_at, store=run.store, accepted=accepted, deadline=run.deadline
    )
    return _Story(run, record, step=run.from_step, idle_since=run.begins_at)


def _after(record: RunRecord, events: Iterable[Event]) -> RunRecord:
    for event in events:
        record = apply(record, event)
    return record
