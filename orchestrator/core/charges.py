"""How much accelerator time a run's sessions took, and for what: events → charges, quota × charges → balance.

In a session, set-up, redone, useful and lost time follow each other, so a charge is five points in time.
Pure; must never ask a platform. The platform's own figure comes in as an offer's quota, and wins if the two
differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

from orchestrator.core.checkpoint import Accepted
from orchestrator.core.event import (
    Assigned,
    Began,
    CheckpointAccepted,
    CheckpointCorrupt,
    Ended,
    Event,
    Launched,
    Started,
    TurnedAway,
    Withdrawn,
)
from orchestrator.core.offer import Quota, Traits
from orchestrator.core.order import Order, Outcome

NEVER_RAN = frozenset({
    Outcome.NO_CAPACITY, Outcome.QUOTA_EXHAUSTED, Outcome.REFUSED, Outcome.REJECTED, Outcome.DENIED,
})  # fmt: skip


@dataclass(frozen=True)
class Spent:
    """Seconds of session time by use.

    `set_up`: before the first step. `redone`: steps that were already in an accepted checkpoint of an earlier
    session. `useful`: steps that are in an accepted checkpoint for the first time. `lost`: after the last
    accepted checkpoint. `open`: the same in a running session, until its next checkpoint decides. Steps that
    one session lost and the next one repeats count as lost in the first and useful in the second.
    """

    set_up: float = 0.0
    redone: float = 0.0
    useful: float = 0.0
    lost: float = 0.0
    open: float = 0.0

    @property
    def seconds(self) -> float:
        return self.set_up + self.redone + self.useful + self.lost + self.open

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Spent)))


@dataclass(frozen=True)
class Charge:
    """The time of one session, from when it was first seen to run until its end (`until`; now, if it runs).

    Unix seconds that never decrease: set-up until `trained_at`, redone until `advanced_at`, useful until
    `kept_at`. Waiting in a queue is not charged. If a session ended before it was seen to run, the time since
    its launch counts. Times inside a session are by the agent's clock, limited to the range of our own.
    """

    session: str
    platform: str
    accelerator: str
    began_at: float
    trained_at: float
    advanced_at: float
    kept_at: float
    until: float
    running: bool

    @property
    def seconds(self) -> float:
        return self.until - self.began_at

    @property
    def spent(self) -> Spent:
        rest = self.until - self.kept_at
        return Spent(
            set_up=self.trained_at - self.began_at,
            redone=self.advanced_at - self.trained_at,
            useful=self.kept_at - self.advanced_at,
            lost=0.0 if self.running else rest,
            open=rest if self.running else 0.0,
        )

    def since(self, at: float) -> Charge:
        """The part of the charge after `at`."""
        return replace(
            self,
            began_at=max(at, self.began_at),
            trained_at=max(at, self.trained_at),
            advanced_at=max(at, self.advanced_at),
            kept_at=max(at, self.kept_at),
            until=max(at, self.until),
        )


def total(charges: Iterable[Charge]) -> Spent:
    """The sum of all charges."""
    return sum((charge.spent for charge in charges), Spent())


# --- From a run's events --------------------------------------------------------------------------------


@dataclass
class _SessionHistory:
    """What the events say about one session."""

    order: Order
    traits: Traits
    launched_at: float | None = None
    began_at: float | None = None
    started_at: float | None = None
    ended: Ended | None = None
    accepted: list[tuple[float, Accepted]] = field(default_factory=list)

    @property
    def runs_since(self) -> float | None:
        return self.began_at if self.began_at is not None else self.started_at


def charges(events: Iterable[Event], now: float) -> tuple[Charge, ...]:
    """One charge for each session of a run that was launched and may have run, in order, whether its offer
    has a quota or not."""
    sessions: list[_SessionHistory] = []
    for event in events:
        match event:
            case Assigned(order=order, traits=traits):
                sessions.append(_SessionHistory(order, traits))
            case Withdrawn() | TurnedAway():
                sessions.pop()
            case CheckpointCorrupt(order=order):
                sessions[-1].order = order
            case Launched(at=at):
                sessions[-1].launched_at = at
            case Began(at=at):
                sessions[-1].began_at = at
            case Started(
                at=at
            ):  # if only the outbox showed it, this comes after the end, and its time means nothing
                sessions[-1].started_at = at if sessions[-1].ended is None else sessions[-1].launched_at
            case CheckpointAccepted(at=at, checkpoint=checkpoint):
                sessions[-1].accepted.append((at, checkpoint))
            case Ended():
                sessions[-1].ended = event
            case _:
                continue
    found, reached = [], 0
    for session in sessions:
        charge = _charge(session, reached, now)
        found += [charge] if charge is not None else []
        reached = max([reached, *(checkpoint.ref.step for _, checkpoint in session.accepted)])
    return tuple(found)


def _charge(session: _SessionHistory, reached: int, now: float) -> Charge | None:
    order, ended = session.order, session.ended
    began = next((at for at in (session.runs_since, session.launched_at) if at is not None), None)
    if began is None or (session.runs_since is None and ended is None):
        return None
    if session.runs_since is None and ended is not None and ended.outcome in NEVER_RAN:
        return None
    started = max(began, session.started_at) if session.started_at is not None else None
    until = max(began, _over_at(session, now))
    points = _points(session, began, until)
    trained = _trained_at(points, order.resume_step, until if started is None else min(started, until))
    line = [(trained, order.resume_step), *points]
    kept = line[-1][0]
    advanced = min(kept, _reached_at(line, reached))
    where = (order.session, order.platform, order.accelerator)
    return Charge(*where, began, trained, advanced, kept, until, running=ended is None)


def _over_at(session: _SessionHistory, now: float) -> float:
    """When the session ended: the time that the agent reported, because a controller that slept learns of it
    late; at most the platform's limit."""
    ended, traits = session.ended, session.traits
    over = now if ended is None else ended.at
    if ended is not None and ended.left_at is not None:
        over = min(over, max(ended.left_at, session.started_at or 0.0))
    since = session.launched_at if session.runs_since is None else session.runs_since
    if traits.session_seconds is not None and since is not None:
        over = min(over, since + traits.session_seconds + traits.slack_seconds)
    return over


def _points(session: _SessionHistory, began: float, until: float) -> list[tuple[float, int]]:
    """(when, step) of the accepted checkpoints, both rising. If the agent's time is not known, because an
    older version journalled none, the time of acceptance."""
    points: list[tuple[float, int]] = []
    earliest, step = began, session.order.resume_step
    for accepted_at, checkpoint in sorted(session.accepted, key=lambda each: each[1].ref.step):
        if checkpoint.ref.step > step:
            step = checkpoint.ref.step
            earliest = min(until, max(earliest, checkpoint.created_at or accepted_at))
            points.append((earliest, step))
    return points


def _trained_at(points: Sequence[tuple[float, int]], resume_step: int, started: float) -> float:
    """When the first step began: estimated from the pace between the first two checkpoints, and not before
    the agent was seen. Everything before it is set-up."""
    if not points:
        return started
    first_at, first = points[0]
    started = min(started, first_at)
    if len(points) < 2:
        return started
    second_at, second = points[1]
    before = (second_at - first_at) / (second - first) * (first - resume_step)
    return max(started, first_at - before) if before > 0 else started


def _reached_at(line: Sequence[tuple[float, int]], step: int) -> float:
    """When training passed `step`, at an even pace between the points; inf if it never did."""
    if step <= line[0][1]:
        return line[0][0]
    for (from_at, from_step), (to_at, to_step) in pairwise(line):
        if step <= to_step:
            return from_at + (to_at - from_at) * (step - from_step) / (to_step - from_step)
    return math.inf


# --- Compared with the platform's figure ----------------------------------------------------------------


@dataclass(frozen=True)
class Balance:
    """A quota's window compared with our charges in it, in seconds, or in units if the platform counts those.

    `others` is what the platform counts in addition to ours: the user's own notebooks, or rounding. Below 0,
    it counts less, or has not counted yet. `used` and `others` are None if the platform does not say what is
    allowed. `since` is None if the beginning of the window is not known; then all charges count. `ours` is in
    seconds; `our_units` are the units of it at today's rates, 0 if the platform counts time.
    """

    since: float | None
    used: float | None
    ours: Spent
    others: float | None
    our_units: float = 0.0


def balance(quotas: Mapping[str, Quota], charges: Iterable[Charge]) -> Balance:
    """How much of the window's use is ours. `quotas` are those of all accelerators that share one, and
    `charges` the ones on these accelerators."""
    quota = next(iter(quotas.values()))
    since = window_began_at(quota)
    charged = [charge if since is None else charge.since(since) for charge in charges]
    ours = total(charged)
    taken = sum(quotas[charge.accelerator].taken(charge.seconds) for charge in charged)
    units = taken if quota.units_per_hour else 0.0
    if quota.allowed_seconds is None:
        return Balance(since, None, ours, None, units)
    used = quota.taken(quota.allowed_seconds - quota.left_seconds)
    return Balance(since, used, ours, used - taken, units)


def window_began_at(quota: Quota) -> float | None:
    """The beginning of the quota's current window, in unix seconds; None if it is not known."""
    if quota.refresh_at is None or quota.window_seconds is None:
        return None
    return quota.refresh_at - quota.window_seconds
