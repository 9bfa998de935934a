"""The best sequence of sessions of one run over several offers: ways × openings × now → Itinerary.

An itinerary may mix offers ("T4x2 until the quota ends, then the RTX 3050") and may begin with a wait. It is found
among a few plain rules: at any time, train on the fastest offer of a set that is open, and go to a faster one when
that opens. The sets are the k fastest offers, for each k, and each offer alone. Must never know other runs: what
those take is in the openings.
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
from orchestrator.core.speed import Rate, seconds_for, step_after, step_seconds

GAIN = 0.02  # by so much the time until the finish must be shorter for a slower offer to be used, too
LEGS_MAX = 24  # planned one by one; the rest is assumed to go on at the same pace
MOVE_SECONDS_MIN = 7200.0  # a session is not ended earlier than this for a faster offer
WINDOWS_MAX = 12  # how far ahead a quota is looked for
DONE, LIMIT, QUOTA = "done", "session limit", "quota used up"
PROMISED, FASTER = "a more urgent run needs the slot", "a faster offer opens"
MAKES_ROOM = frozenset({PROMISED, FASTER})  # why a session ends that could go on
SOON_SECONDS = 1.0  # what opens within so much is open


@dataclass(frozen=True, slots=True)
class Way:
    """How one run would go on one offer, whenever it opens. Seconds, except `rate`.

    `need`: the training that is left, with the expected loss. `overhead`: set-up and save of a session, `longest`
    its budget. `worth`: the training that makes a session worth its set-up. `not_before`: unix time until which
    this run may not go there, for a reason other than slots and quota.
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

    @property
    def place(self) -> tuple[str, str]:
        return self.offer.platform, self.offer.accelerator


@dataclass(frozen=True)
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
        offer, fit, expected, training + loss, loss, overhead + terms.wait, terms.budget, worth, not_before
    )


def fastest(ways: Sequence[Way]) -> Way | None:
    """The way with the least training left."""
    return min(ways, key=lambda each: each.need, default=None)


# --- The search -----------------------------------------------------------------------------------------


class _Road:
    """A way with its opening, and what the search asks of it, as plain numbers."""

    __slots__ = (
        "allowed", "every", "first", "free_at", "left", "longest", "margin", "metered", "need", "opens_at",
        "overhead", "pool", "promised", "refresh", "until", "way", "worth",
    )  # fmt: skip

    def __init__(self, way: Way, opening: Opening, now: float, stretch: float) -> None:
        offer = way.offer
        self.way = way
        self.need = way.need * stretch
        self.overhead, self.longest, self.worth = way.overhead, way.longest, way.worth
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

    def begin(self, at: float, share: float, used: Mapping[tuple[Pool, int], float]) -> tuple[float, float]:
        """The earliest start from `at` on of a session worth it, and the seconds it may last; inf: never."""
        start, until = max(at, self.opens_at), self.until
        wanted = min(share * self.need, max(self.worth, 0.0))
        for _ in range(WINDOWS_MAX):
            if until - start < self.overhead + min(wanted, GAP_SECONDS_MIN):
                start, until = max(start, self.free_at), math.inf
            lasts = min(self.longest, until - start)
            if not self.metered:
                return start, lasts
            number = 0 if start < self.refresh else 1 + int((start - self.refresh) // self.every)
            left = (self.left if number == 0 else self.allowed) - self.margin
            if number < len(self.promised):
                left -= self.promised[number]
            quota = self.way.offer.quota
            assert quota is not None
            left -= quota.lasts(used.get((self.pool, number), 0.0))
            if left - self.overhead > 0.0 and left - self.overhead >= min(
                wanted, self.longest - self.overhead
            ):
                return start, min(lasts, left)
            start = self.refresh + number * self.every
        return math.inf, 0.0


def _roads(
    ways: Sequence[Way], openings: Mapping[tuple[str, str], Opening], now: float, sigma: float
) -> list[_Road]:
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


def _go(roads: Sequence[_Road], now: float) -> tuple[float, list[tuple[_Road, float, float, float, str]]]:
    """(finish, legs) by the rule, over these roads; a finish of inf if they lead nowhere."""
    at, share = now, 1.0
    used: dict[tuple[Pool, int], float] = {}
    legs: list[tuple[_Road, float, float, float, str]] = []
    while len(legs) < LEGS_MAX:
        chosen, lasts, start, faster = None, 0.0, math.inf, math.inf
        for road in roads:
            begins, may_last = road.begin(at, share, used)
            if begins < start - SOON_SECONDS:
                faster = min(faster, start)  # the next faster one opens only later
                chosen, start, lasts = road, begins, may_last
                if begins <= at + SOON_SECONDS:
                    break
        if chosen is None:
            return math.inf, []
        why = LIMIT
        if lasts < chosen.longest:
            why = QUOTA if chosen.metered else PROMISED
        if faster - start >= max(MOVE_SECONDS_MIN, 4 * chosen.overhead) and faster - start < lasts:
            lasts, why = faster - start, FASTER
        productive = min(share * chosen.need, lasts - chosen.overhead)
        end = start + chosen.overhead + productive
        done = productive / chosen.need if chosen.need else share
        if done >= share * (1 - 1e-9):
            legs.append((chosen, start, end, share, DONE))
            return end, legs
        legs.append((chosen, start, end, done, why))
        share -= done
        if chosen.metered:
            _use(chosen, start, end, used)
        at = end
    return now + (at - now) / (1.0 - share), legs


def _use(road: _Road, start: float, end: float, used: dict[tuple[Pool, int], float]) -> None:
    quota = road.way.offer.quota
    assert quota is not None
    while start < end:
        number = 0 if start < road.refresh else 1 + int((start - road.refresh) // road.every)
        stop = min(end, road.refresh + number * road.every)
        key = road.pool, number
        used[key] = used.get(key, 0.0) + quota.taken(stop - start)
        start = stop


def _best(
    roads: list[_Road], now: float
) -> tuple[float, list[tuple[_Road, float, float, float, str]], list[_Road]]:
    """The earliest finish of all sets of roads, its legs, and the set."""
    best: tuple[float, list[tuple[_Road, float, float, float, str]], list[_Road]] = (math.inf, [], [])
    for several in range(1, len(roads) + 1):
        chosen = roads[:several]
        finish, legs = _go(chosen, now)
        if finish < best[0] - GAIN * (best[0] - now) or (legs and best[0] == math.inf):
            best = finish, legs, chosen
    for road in roads[1:]:
        finish, legs = _go([road], now)
        if finish < best[0] - SOON_SECONDS:
            best = finish, legs, [road]
    return best


def hops_of(legs: Sequence[Leg]) -> tuple[Hop, ...]:
    """The legs as hops without steps, for a calendar."""
    return tuple(Hop(*leg.way.place, leg.start, leg.end, 0, 0, 0.0, leg.why_it_ends) for leg in legs)


# --- The answer -----------------------------------------------------------------------------------------


def legs(ways: Sequence[Way], openings: Mapping[tuple[str, str], Opening], now: float) -> tuple[Leg, ...]:
    """The sessions of the earliest finish; empty if none of the ways ever opens. Cheap: without steps and error."""
    _, found, _ = _best(_roads(ways, openings, now, 0.0), now)
    return tuple(Leg(road.way, start, end, share, why) for road, start, end, share, why in found)


def itinerary(
    job: Job,
    ways: Sequence[Way],
    openings: Mapping[tuple[str, str], Opening],
    *,
    now: float,
    done_steps: int = 0,
) -> Itinerary | None:
    """The run's best sequence of sessions on these ways, starting at `now` or later; None if none of them opens.

    At most LEGS_MAX hops: a longer run's finish is extrapolated.
    """
    finish, found, chosen = _best(_roads(ways, openings, now, 0.0), now)
    if not found:
        return None
    kept = [road.way for road in chosen]
    ends = [_go(_roads(kept, openings, now, sigma), now)[0] for sigma in (-1.0, 1.0)]
    hops = _hops(job, found, done_steps)
    return Itinerary(
        hops,
        finish,
        min(ends[0], finish),
        max(ends[1], finish),
        sum(hop.quota_seconds for hop in hops),
        sum(hop.quota_units for hop in hops),
    )


def _hops(
    job: Job, legs: Sequence[tuple[_Road, float, float, float, str]], done_steps: int
) -> tuple[Hop, ...]:
    hops, step = [], done_steps
    for road, start, end, share, why in legs:
        offer, trained = road.way.offer, share * (road.way.need - road.way.loss)
        reached = job.work.total if why == DONE else step_after(job.work, step, trained, road.way.rate)
        used = end - start if offer.quota is not None else 0.0
        units = offer.quota.units(used) if offer.quota is not None else 0.0
        hops.append(Hop(offer.platform, offer.accelerator, start, end, step, reached, used, why, units))
        step = reached
    return tuple(hops)
