"""When the offers have room: offers × what runs and will run on them → openings, one for each offer.

A calendar is filled while a queue is laid out: what a more urgent run will take is booked, and the next run
sees what is left. Plans are guesses, so nothing here guards a quota: the budgets of sessions do, and
`orchestrator.core.claims` counts them. Must never know jobs, rates or which offer is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.core.estimate import WINDOW_SECONDS, next_refresh
from orchestrator.core.offer import Hop, Offer, Quota

GAP_SECONDS_MIN = 1800.0  # a free time between two sessions that is shorter is not used
WINDOWS = 4  # quota windows that a calendar looks ahead, the present one included

Pool = tuple[str, str]  # platform, and the name under which its offers share slots or a quota


@dataclass(frozen=True, slots=True)
class Stay:
    """A session, and when its slot is expected to be free again, in unix seconds."""

    platform: str
    accelerator: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Opening:
    """When a session of one run could start on an offer, in unix seconds, as far as the slots are concerned.

    A slot is free at `opens_at`, but from `until` on somebody more urgent will need it (None: nobody). From
    `free_at` on, one is free without end. `promised`: the seconds of the offer's quota that more urgent runs
    will take in this window, the next one, and so on.
    """

    platform: str
    accelerator: str
    opens_at: float
    until: float | None = None
    free_at: float | None = None
    promised: tuple[float, ...] = ()


def slot_pool(offer: Offer) -> Pool:
    return offer.platform, offer.slot_pool or offer.accelerator


def window_at(quota: Quota, now: float, at: float) -> int:
    """The number of the quota's window at a time; the one at `now` is 0."""
    refresh = next_refresh(quota, now)
    return 0 if at < refresh else 1 + int((at - refresh) // (quota.window_seconds or WINDOW_SECONDS))


class Calendar:
    """The slots and quotas of some offers from `now` on. `stays` are the sessions that run.

    The offers' quotas are those that are left after our claims.
    """

    def __init__(self, offers: Sequence[Offer], stays: Iterable[Stay], now: float) -> None:
        self.now = now
        self.offers = tuple(offers)
        self._offer = {(offer.platform, offer.accelerator): offer for offer in offers}
        self._slots: dict[Pool, list[list[tuple[float, float]]]] = {}
        for offer in offers:
            have = self._slots.setdefault(slot_pool(offer), [])
            have.extend([] for _ in range(offer.slots - len(have)))
        self._promised: dict[Pool, list[float]] = {
            (offer.platform, offer.quota.pool): [0.0] * WINDOWS for offer in offers if offer.quota is not None
        }
        for stay in stays:
            self._take(stay.platform, stay.accelerator, min(stay.start, now), max(stay.end, now))

    def book(self, hops: Iterable[Hop]) -> None:
        """Takes a run's sessions: each from a slot that is free then, and from the quota."""
        for hop in hops:
            self._take(hop.platform, hop.accelerator, hop.start, hop.end)
            offer = self._offer.get((hop.platform, hop.accelerator))
            if offer is not None and offer.quota is not None:
                self._promise(offer, offer.quota, hop.start, hop.end)

    def openings(self) -> tuple[Opening, ...]:
        """One for each offer that has slots at all."""
        free = {pool: self._free(slots) for pool, slots in self._slots.items() if slots}
        return tuple(
            Opening(offer.platform, offer.accelerator, *free[slot_pool(offer)], self._promised_of(offer))
            for offer in self.offers
            if slot_pool(offer) in free
        )

    def _take(self, platform: str, accelerator: str, start: float, end: float) -> None:
        offer = self._offer.get((platform, accelerator))
        slots = self._slots.get(slot_pool(offer)) if offer is not None else None
        if not slots or end <= start:
            return
        # The slot that fits, and of these the one whose last session ends latest: the others stay whole.
        fits = [slot for slot in slots if all(end <= begin or stop <= start for begin, stop in slot)]
        taken = max(
            fits or slots, key=lambda slot: max((stop for _, stop in slot if stop <= start), default=0.0)
        )
        taken.append((start, end))
        taken.sort()

    def _promise(self, offer: Offer, quota: Quota, start: float, end: float) -> None:
        promised = self._promised[offer.platform, quota.pool]
        at = start
        while at < end:
            number = window_at(quota, self.now, at)
            if number >= WINDOWS:
                return
            window = quota.window_seconds or WINDOW_SECONDS
            stop = min(end, next_refresh(quota, self.now) + number * window)
            promised[number] += quota.taken(stop - at)
            at = stop

    def _promised_of(self, offer: Offer) -> tuple[float, ...]:
        quota = offer.quota
        if quota is None:
            return ()
        promised = self._promised[offer.platform, quota.pool]
        count = max((number for number, taken in enumerate(promised, 1) if taken), default=0)
        return tuple(quota.lasts(taken) for taken in promised[:count])

    def _free(self, slots: list[list[tuple[float, float]]]) -> tuple[float, float | None, float | None]:
        """The first gap of any slot, the longest of those; if it ends, when a slot is free without end."""
        gaps = [self._gap(slot) for slot in slots]
        opens_at, until = min(gaps, key=lambda gap: (gap[0], -gap[1]))
        if until == math.inf:
            return opens_at, None, None
        return opens_at, until, min(max(self.now, slot[-1][1] if slot else 0.0) for slot in slots)

    def _gap(self, slot: list[tuple[float, float]]) -> tuple[float, float]:
        at = self.now
        for begin, stop in slot:
            if begin - at >= GAP_SECONDS_MIN:
                return at, begin
            at = max(at, stop)
        return at, math.inf
