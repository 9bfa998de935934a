"""What the journals of a time say: which runs there were, how their sessions went, and what was on offer.

Values only. `orchestrator.hindsight.reading` makes them. Times are unix seconds, the rest is in seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.job import Job, Rule
from orchestrator.core.lifetimes import Lifetime
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order, Outcome
from orchestrator.core.own_accelerators import OwnAccelerator
from orchestrator.core.speed import Measurement

Place = tuple[str, str]  # platform and accelerator


@dataclass(frozen=True)
class Visit:
    """A session that ran. It was assigned, ran from `began_at` to `ended_at`, and was closed.

    `set_up` came before its first step. In `trained` it made `samples`, at the job's reference cost, which
    are in its newest accepted checkpoint. `spare` is what a session that left at its deadline had left of its
    budget. `early`: it ended before its budget and its work did: lost, crashed, out of memory.
    """

    place: Place
    assigned_at: float
    began_at: float
    ended_at: float
    closed_at: float
    set_up: float
    trained: float
    samples: float
    outcome: Outcome
    spare: float = 0.0
    early: bool = False
    own: OwnAccelerator | None = None

    @property
    def accelerator(self) -> str:
        return self.place[1]

    @property
    def ran(self) -> float:
        return self.ended_at - self.began_at

    @property
    def waited(self) -> float:
        """From its assignment until it ran."""
        return max(0.0, self.began_at - self.assigned_at)

    @property
    def tail(self) -> float:
        """From its newest checkpoint to its end: the last save, or work that was lost."""
        return max(0.0, self.ran - self.set_up - self.trained)

    @property
    def rate(self) -> float | None:
        """Samples per second of training; None if it brought nothing."""
        return self.samples / self.trained if self.samples > 0 and self.trained > 0 else None


@dataclass(frozen=True)
class RecordedRun:
    """A run with the work that it did in the recorded time: from `from_step` to `goal_step`, reached at
    `reached_at`. `done`: it was completed then. `pauses`: (from, to), held on request or asleep.
    `under_way`: the rest of a session that ran when the recorded time began."""

    run: str
    job: Job
    submitted_at: float
    store: str
    begins_at: float
    from_step: int
    goal_step: int
    reached_at: float
    done: bool
    visits: tuple[Visit, ...] = ()
    pauses: tuple[tuple[float, float], ...] = ()
    releases: tuple[float, ...] = ()
    deadline: float | None = None
    under_way: tuple[Order, Offer] | None = None


@dataclass(frozen=True)
class Reading:
    """What was on offer at one moment. The quotas have what would be left if we had used nothing of their
    window. `silent`: platforms that did not answer, and why."""

    at: float
    offers: tuple[Offer, ...]
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """A place that refused sessions from `since` until about `until`."""

    place: Place
    since: float
    until: float


@dataclass(frozen=True)
class Recording:
    """All of it, from `since` to `until`. `measurements` per job's name and `lifetimes` per place are what
    was known when it began. `rules`, `unreachable` and the offset are those of the last decision in it.
    `unread`: runs that are left out, and why."""

    since: float
    until: float
    runs: tuple[RecordedRun, ...]
    readings: tuple[Reading, ...]
    refusals: tuple[Refused, ...] = ()
    measurements: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    lifetimes: Mapping[Place, tuple[Lifetime, ...]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    unreachable: Mapping[tuple[str, str], str] = field(default_factory=dict)
    utc_offset_seconds: float = 0.0
    rules_changed: int = 0
    unread: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[str, ...] = ()

    @property
    def platforms(self) -> tuple[str, ...]:
        """Every platform that was on offer or did not answer."""
        found: dict[str, None] = {}
        for reading in self.readings:
            found |= dict.fromkeys(offer.platform for offer in reading.offers)
            found |= dict.fromkeys(reading.silent)
        return tuple(found)

    def reading(self, at: float) -> Reading | None:
        """The newest reading at this time; before the first one, that."""
        if not self.readings:
            return None
        number = bisect_right(self.readings, at, key=lambda each: each.at)
        return self.readings[max(0, number - 1)]
