"""The best sequence of sessions of one run over several offers: ways × openings × now → Itinerary.

An itinerary may mix offers ("T4x2 until the quota is used up, then the RTX 3050") and may begin with a wait.
It is found among a few plain rules: train on the fastest open offer of a set, and move when a faster one of
the set opens. The sets are the k fastest offers, for each k, and each offer alone. Must never know other
runs: what those take is in the openings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.calendar import GAP_SECONDS_MIN, Opening, Pool
from orchestrator.core.estimate import (
    WINDOW_SECONDS,
    loss_seconds,
    next_refresh,
    quota_allowed,
    quota_left,
)
from orchestrator.core.fit import Fit
from orchestrator.core.job import Job
from orchestrator.core.offer import Hop, Itinerary, Offer
from orchestrator.core.rules import UNRANKED
from orchestrator.core.speed import Rate, seconds_for, step_after, step_seconds

PREFERRED_WITHIN = 1.25  # preferred offers win if they finish within so many times the earliest finish
GAIN = 0.05  # by so much the time until the finish must be shorter for a slower offer to be used as well
LEGS_MAX = 24  # planned one by one; the rest is assumed to go on at the same pace
MOVE_SECONDS_MIN = 7200.0  # a session is not ended earlier than this for a faster offer
MOVE_FACTOR = 4.0  # nor before so many times its set-up and save
WINDOWS_MAX = 12  # how many windows ahead a quota is looked for
SOON_SECONDS = 1.0  # what opens within so much is open
DONE, LIMIT, QUOTA = "done", "session limit", "quota used up"
PROMISED, FASTER = "a more urgent run needs the slot", "a faster offer opens"
MAKES_ROOM = frozenset({PROMISED, FASTER})  # why a session ends that could go on

Openings = Mapping[tuple[str, str], Opening]
Used = dict[tuple[Pool, int], float]  # by this run's own sessions, of a pool in a window


@dataclass(frozen=True, slots=True)
class Way:
    """How one run would go on one offer, whenever it opens. Seconds, except `rate`.

    `need`: the training that is left, with the expected `loss`. `overhead`: set-up and save of a session;
    `longest`: its budget; `wait`: in the platform's queue before it. `worth`: the training that makes a
    session worth its set-up. `not_before`: unix time until which this run may not go there, for another
    reason than slots and quota. `rank`: as in `orchestrator.core.rules`, whose rules prefer the offer.
    """

    offer: Offer
    fit: Fit
    rate: Rate
    need: float
    loss: float
    overhead: float
    longest: float
    worth: float
    not_before: float = 0.0
    wait: float = 0.0
    rank: int = UNRANKED

    @property
    def place(self) -> tuple[str, str]:
        return self.offer.platform, self.offer.accelerator


@dataclass(frozen=True, slots=True)
class Leg:
    """One session of an itinerary; `way` says how. `share`: of the run's remaining work, done in it."""

    way: Way
    start: float
    end: float
    share: float
    why_it_ends: str


def way(job: Job, offer: Offer, fit: Fit, expected: Rate, done_steps: int, not_before: float = 0.0) -> Way:
    """How the rest of the job would go on an offer that it fits."""
    training = seconds_for(job.work, done_steps, job.work.total, expected)
    terms = fit.terms
    loss = loss_seconds(job, offer, terms, training)
    overhead = terms.setup + terms.save
    worth = max(step_seconds(job.work, done_steps, expected), overhead)
    return Way(
        offer, fit, expected, training + loss, loss, overhead, terms.budget, worth, not_before, terms.wait
    )


def fastest(ways: Sequence[Way]) -> Way | None:
    """The way with the least training left."""
    return min(ways, key=lambda each: each.need, default=None)


# --- One road -------------------------------------------------------------------------------------------


class _Road:
    """A way with its opening, and what the search asks of it, as plain numbers."""

    __slots__ = (
        "allowed", "every", "free_at", "left", "longest", "margin", "metered", "need", "opens_at",
        "overhead", "pool", "promised", "refresh", "until", "wait", "way", "worth",
    )  # fmt: skip

    def __init__(self, way: Way, opening: Opening, now: float, stretch: float) -> None:
        offer = way.offer
        self.way = way
        self.need = way.need * stretch
        self.overhead, self.longest, self.worth, self.wait = way.overhead, way.longest, way.worth, way.wait
        self.margin = offer.traits.wall_margin_seconds
        self.opens_at = max(now, opening.opens_at, way.not_before)
        self.until = math.inf if opening.until is None else opening.until
        self.free_at = max(self.opens_at, opening.opens_at if opening.free_at is None else opening.free_at)
        quota = offer.quota
        self.metered = quota is not None
        if quota is not None:
            self.pool: Pool = offer.platform, quota.pool
            self.left, self.allowed = quota_left(offer, quota, now), quota_allowed(offer, quota)
            self.refresh, self.every = next_refresh(quota, now), quota.window_seconds or WINDOW_SECONDS
            self.promised = opening.promised

    def begin(self, at: float, share: float, used: Used) -> tuple[float, float, str]:
        """The earliest start from `at` on of a session that is worth it (inf: there is none), the seconds it
        may last, and what limits it."""
        start, until = max(at, self.opens_at), self.until
        wanted = min(share * self.need, self.worth)
        for _ in range(WINDOWS_MAX):
            if until - start - self.wait < self.overhead + min(wanted, GAP_SECONDS_MIN):
                start, until = max(start, self.free_at), math.inf
            lasts, why = self.longest, LIMIT
            if until - start - self.wait < lasts:
                lasts, why = until - start - self.wait, PROMISED
            if not self.metered:
                return start, lasts, why
            number = self._window(start)
            left = self._left(number, used)
            if left > self.overhead and left >= self.overhead + min(wanted, self.longest - self.overhead):
                return (start, left, QUOTA) if left < lasts else (start, lasts, why)
            start = self.refresh + number * self.every
        return math.inf, 0.0, QUOTA

    def _window(self, at: float) -> int:
        return 0 if at < self.refresh else 1 + int((at - self.refresh) // self.every)

    def _left(self, number: int, used: Used) -> float:
        left = (self.left if number == 0 else self.allowed) - self.margin
        if number < len(self.promised):
            left -= self.promised[number]
        taken = used.get((self.pool, number))
        quota = self.way.offer.quota
        return left if taken is None or quota is None else left - quota.lasts(taken)

    def use(self, start: float, end: float, used: Used) -> None:
        """Takes a session's time from the quota of each window it touches."""
        quota = self.way.offer.quota
        while quota is not None and start < end:
            number = self._window(start)
            stop = min(end, self.refresh + number * self.every)
            key = self.pool, number
            used[key] = used.get(key, 0.0) + quota.taken(stop - start)
            start = stop


def _roads(ways: Sequence[Way], openings: Openings, now: float, sigma: float = 0.0) -> list[_Road]:
    """Fastest first. `sigma`: how many standard deviations slower than expected all of them are."""
    found = [
        _Road(way, openings[way.place], now, _stretch(way.rate, sigma))
        for way in ways
        if way.place in openings
    ]
    found.sort(key=lambda road: (road.need, road.overhead, road.way.place))
    return found


def _stretch(expected: Rate, sigma: float) -> float:
    if sigma == 0.0:
        return 1.0
    return expected.samples_per_second / (expected.low if sigma > 0 else expected.high)


# --- The search -----------------------------------------------------------------------------------------


def _go(roads: Sequence[_Road], now: float) -> tuple[float, list[Leg]]:
    """(finish, legs) by the rule, over these roads; a finish of inf if they lead nowhere."""
    at, share = now, 1.0
    used: Used = {}
    legs: list[Leg] = []
    while len(legs) < LEGS_MAX:
        road, start, lasts, why, faster_at = _next(roads, at, share, used)
        if road is None:
            return math.inf, []
        overhead = road.overhead
        until_faster = faster_at - start - road.wait
        if max(MOVE_SECONDS_MIN, MOVE_FACTOR * overhead) <= until_faster < lasts:
            lasts, why = until_faster, FASTER
        productive = min(share * road.need, lasts - overhead)
        end = start + road.wait + overhead + productive
        done = productive / road.need if road.need else share
        if done >= share * (1 - 1e-9):
            legs.append(Leg(road.way, start, end, share, DONE))
            return end, legs
        legs.append(Leg(road.way, start, end, done, why))
        share -= done
        if road.metered:
            road.use(start + road.wait, end, used)
        at = end
    begins = legs[0].start  # the wait before it comes only once
    return begins + (at - begins) / (1.0 - share), legs


def _next(
    roads: Sequence[_Road], at: float, share: float, used: Used
) -> tuple[_Road | None, float, float, str, float]:
    """The road that opens first, the fastest of those that open together: (road, start, seconds it may last,
    why no longer, when a faster one opens)."""
    chosen, start, lasts, why, faster_at = None, math.inf, 0.0, QUOTA, math.inf
    for road in roads:
        begins, may_last, limit = road.begin(at, share, used)
        if begins < start - SOON_SECONDS:
            faster_at = min(faster_at, start)
            chosen, start, lasts, why = road, begins, may_last, limit
            if begins <= at + SOON_SECONDS:
                break
    return chosen, start, lasts, why, faster_at


def _best(roads: Sequence[_Road], now: float) -> tuple[float, list[Leg], Sequence[_Road]]:
    """The earliest finish over all sets of roads, its legs, and the set."""
    finish, legs = _go(roads[:1], now)
    found: Sequence[_Road] = roads[:1]
    for several in range(2, len(roads) + 1):
        ends, mixed = _go(roads[:several], now)
        if ends < finish - (GAIN * (finish - now) if legs else 0.0):
            finish, legs, found = ends, mixed, roads[:several]
    for road in roads[1:]:
        ends, alone = _go([road], now)
        if ends < finish - SOON_SECONDS:
            finish, legs, found = ends, alone, [road]
    return finish, legs, found


def _chosen(ways: Sequence[Way], openings: Openings, now: float) -> tuple[float, list[Leg], Sequence[_Road]]:
    """As `_best`, over ways that need no person, and over preferred ones if that is not much later."""
    unattended = [each for each in ways if not each.offer.traits.human_start] or ways
    best = _best(_roads(unattended, openings, now), now)
    for rank in sorted({each.rank for each in unattended if each.rank != UNRANKED}):
        preferred = _best(_roads([each for each in unattended if each.rank == rank], openings, now), now)
        if preferred[1] and preferred[0] <= now + PREFERRED_WITHIN * (best[0] - now):
            return preferred
    return best


# --- The answer -----------------------------------------------------------------------------------------


def legs(ways: Sequence[Way], openings: Openings, now: float) -> tuple[Leg, ...]:
    """The sessions of the best itinerary; empty if no way ever opens. Cheap: without steps and range."""
    return tuple(_chosen(ways, openings, now)[1]) if ways else ()


def hops_of(legs: Sequence[Leg]) -> tuple[Hop, ...]:
    """The legs as hops without steps, for a calendar."""
    return tuple(Hop(*leg.way.place, leg.start, leg.end, 0, 0, 0.0, leg.why_it_ends) for leg in legs)


def itinerary(
    job: Job, ways: Sequence[Way], openings: Openings, *, now: float, done_steps: int = 0
) -> Itinerary | None:
    """The run's best sequence of sessions on these ways; None if none of them opens.

    At most LEGS_MAX hops: a longer run's finish is extrapolated.
    """
    finish, found, roads = _chosen(ways, openings, now)
    if not found:
        return None
    kept = [road.way for road in roads]
    low, high = (_go(_roads(kept, openings, now, sigma), now)[0] for sigma in (-1.0, 1.0))
    hops = _hops(job, found, done_steps)
    return Itinerary(
        hops,
        finish,
        min(low, finish),
        max(high if high < math.inf else finish, finish),
        sum(hop.quota_seconds for hop in hops),
        sum(hop.quota_units for hop in hops),
    )


def _hops(job: Job, legs: Sequence[Leg], done_steps: int) -> tuple[Hop, ...]:
    hops, step = [], done_steps
    for leg in legs:
        offer, trained = leg.way.offer, leg.share * (leg.way.need - leg.way.loss)
        reached = job.work.total
        if leg.why_it_ends != DONE:
            reached = step_after(job.work, step, trained, leg.way.rate)
        used = leg.end - leg.start - leg.way.wait if offer.quota is not None else 0.0
        units = offer.quota.units(used) if offer.quota is not None else 0.0
        hops.append(
            Hop(*leg.way.place, leg.start, leg.end, step, reached, used, leg.why_it_ends, units)
        )  # fmt: skip
        step = reached
    return tuple(hops)
