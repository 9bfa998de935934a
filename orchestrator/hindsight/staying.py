"""What becomes of a session that is played: by what the run's own sessions did, or else those of others.

Pure. The n-th session of a run at a place goes as its n-th recorded one there. Further ones go as the run's
own did on average, else as those of any run there, else as estimated; and the recorded losses of the place
are dealt out to them in their order. Must never know how a place is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.core.estimate import save_seconds
from orchestrator.core.job import Work
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order, Outcome
from orchestrator.core.own_accelerators import row_of
from orchestrator.core.profiles import profile_of
from orchestrator.core.speed import Evidence, Measurement, Rate, rate, relative_cost, samples_for, step_after
from orchestrator.hindsight.recording import Place, RecordedRun, Recording, Visit


@dataclass(frozen=True)
class Stay:
    """One played session. It reaches `step`; `reached_at` is when that was safe. `rate`: samples per second
    at the job's reference cost. `recorded`: its speed was recorded, on this accelerator."""

    place: Place
    assigned_at: float
    began_at: float
    ended_at: float
    closed_at: float
    step: int
    reached_at: float
    trained: float
    rate: float
    outcome: Outcome
    recorded: bool

    @property
    def ran(self) -> float:
        return self.ended_at - self.began_at


@dataclass(frozen=True)
class _Habit:
    """How sessions of one kind go, in seconds."""

    waited: float
    set_up: float
    tail: float
    after: float
    spare: float = 0.0


@dataclass
class _Counted:
    """How many sessions were played: of each run at each place, and of those that drew a place's fate."""

    own: dict[tuple[str, Place], int] = field(default_factory=dict)
    drawn: dict[Place, int] = field(default_factory=dict)


class Experience:
    """The recorded sessions, to play others by. Make a new one for each play: it counts them."""

    def __init__(self, recording: Recording) -> None:
        self._own: dict[tuple[str, Place], list[Visit]] = {}
        self._there: dict[Place, list[Visit]] = {}
        self._speeds: dict[tuple[str, str], list[Visit]] = {}
        self._evidence: dict[str, list[Measurement]] = {}
        for run in recording.runs:
            known = recording.measurements.get(run.job.name, ())
            self._evidence.setdefault(run.job.name, list(known))
            for visit in run.visits:
                self._own.setdefault((run.run, visit.place), []).append(visit)
                self._there.setdefault(visit.place, []).append(visit)
                self._speeds.setdefault((run.job.name, visit.place[1]), []).append(visit)
                self._evidence[run.job.name] += _measured(run, visit)
        for visits in self._there.values():
            visits.sort(key=lambda visit: visit.began_at)
        self._counted = _Counted()

    def stay(self, run: RecordedRun, order: Order, offer: Offer, now: float) -> Stay:
        """What becomes of the session with this order, assigned now."""
        place = order.platform, order.accelerator
        number = self._counted.own.get((run.run, place), 0)
        self._counted.own[run.run, place] = number + 1
        own = self._own.get((run.run, place), [])
        mine = own[number] if number < len(own) else None
        habit = _habit([mine] if mine is not None else own or self._there.get(place, []))
        habit = habit or _Habit(
            offer.wait_seconds, offer.traits.setup_seconds, save_seconds(run.job, offer), 0.0
        )
        speed, recorded = self._speed(run, order, mine, own)
        fate = mine if mine is not None else self._fate(place)
        return _played(run, order, habit, fate, speed, recorded, now)

    def _fate(self, place: Place) -> Visit | None:
        """The next recorded session of the place in turn: its loss, or nothing if it was not lost."""
        there = self._there.get(place, [])
        if not there:
            return None
        number = self._counted.drawn.get(place, 0)
        self._counted.drawn[place] = number + 1
        visit = there[number % len(there)]
        return visit if visit.outcome is Outcome.LOST else None

    def _speed(
        self, run: RecordedRun, order: Order, mine: Visit | None, own: Sequence[Visit]
    ) -> tuple[float, bool]:
        """Samples per second at the reference cost, and whether that was recorded on this accelerator."""
        if mine is not None and mine.rate is not None:
            return mine.rate, True
        for visits in (own, self._speeds.get((run.job.name, order.accelerator), [])):
            samples, seconds = sum(v.samples for v in visits), sum(v.trained for v in visits if v.samples > 0)
            if samples > 0 and seconds > 0:
                return samples / seconds, True
        profile, row = profile_of(run.job, order), row_of(order)
        assert profile is not None, "the router chose it"
        assert row is not None, "the router chose it"
        evidence = self._evidence[run.job.name]
        expected = rate(run.job.work, profile, row, evidence, micro_batch=order.micro_batch)
        return expected.samples_per_second, False


def _measured(run: RecordedRun, visit: Visit) -> Iterable[Measurement]:
    profile = profile_of(run.job, visit)
    if visit.rate is None or profile is None:
        return ()
    raw, seconds = visit.rate / relative_cost(run.job.work, 0), max(1.0, visit.trained)
    return (
        Measurement(
            visit.accelerator,
            profile.precision,
            profile.micro_batch,
            raw,
            seconds,
            visit.ended_at,
            own=visit.own,
        ),
    )


def _habit(visits: Sequence[Visit]) -> _Habit | None:
    """The average of these sessions; None of none."""
    if not visits:
        return None
    orderly = [visit for visit in visits if not visit.early]
    return _Habit(
        _mean(visit.waited for visit in visits),
        _mean(visit.set_up for visit in visits),
        _mean(visit.tail for visit in orderly),
        _mean(visit.closed_at - visit.ended_at for visit in visits),
        _mean(visit.spare for visit in orderly if visit.outcome is Outcome.STOPPED),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _played(
    run: RecordedRun,
    order: Order,
    habit: _Habit,
    fate: Visit | None,
    speed: float,
    recorded: bool,
    now: float,
) -> Stay:
    work, start = run.job.work, order.resume_step
    began = now + habit.waited
    need = samples_for(work, start, run.goal_step) / speed
    longest = math.inf
    if order.budget_seconds is not None:
        longest = max(0.0, order.budget_seconds - habit.spare - habit.set_up - habit.tail)
    outcome = Outcome.COMPLETED if run.goal_step >= work.total else Outcome.STOPPED
    trained, tail, set_up = need, habit.tail, habit.set_up
    if need > longest:
        trained, outcome = longest, Outcome.STOPPED
    early = fate is not None and fate.early and fate.ran < set_up + trained + tail
    if fate is not None and early:
        trained = max(0.0, min(trained, fate.ran - set_up - fate.tail))
        tail, outcome = max(0.0, fate.ran - set_up - trained), fate.outcome
    step = run.goal_step if trained >= need else step_after(work, start, trained, _exactly(speed))
    if step < run.goal_step and outcome is Outcome.COMPLETED:
        outcome = Outcome.STOPPED
    reached, ended = began + set_up + trained, began + set_up + trained + tail
    return Stay(
        (order.platform, order.accelerator), now, began, ended, ended + habit.after, step, reached, trained,
        speed, outcome, recorded,
    )  # fmt: skip


def cut(stay: Stay, run: RecordedRun, order: Order, now: float) -> Stay:
    """The same session if it is asked to leave now."""
    if now >= stay.ended_at:
        return stay
    set_up = stay.reached_at - stay.trained - stay.began_at
    trained = max(0.0, min(stay.trained, now - stay.began_at - set_up))
    step = step_after(run.job.work, order.resume_step, trained, _exactly(stay.rate))
    after = stay.closed_at - stay.ended_at
    return replace(
        stay, began_at=min(stay.began_at, now), ended_at=now, closed_at=now + after, trained=trained,
        step=min(step, stay.step), reached_at=now, outcome=Outcome.STOPPED,
    )  # fmt: skip


def measurement(work: Work, order: Order, stay: Stay) -> Measurement | None:
    """What the router learns from the session; None if it trained too little."""
    if stay.trained <= 0 or stay.step <= order.resume_step:
        return None
    raw = stay.rate / relative_cost(work, order.resume_step)
    seconds = max(1.0, stay.trained)
    return Measurement(order.accelerator, order.precision, order.micro_batch, raw, seconds, stay.ended_at,
                       order.resume_step, order.own)  # fmt: skip


def _exactly(speed: float) -> Rate:
    return Rate(speed, speed, speed, 0.0, None, Evidence.MEASURED, "recorded")
