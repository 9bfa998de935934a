"""The current offers: the platforms' last answers, minus what our own sessions use.

In memory only. Asks no platform itself (the engine runs surveys in workers) and chooses nothing
(`core.route` does). When each is asked, and what it answered, is kept in `engine.surveying`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.core.calendar import Calendar, Opening, Stay
from orchestrator.core.claims import Claim, claim_of, claims, less, used
from orchestrator.core.job import Rule
from orchestrator.core.offer import (
    Offer,
    Route,
)
from orchestrator.core.queueing import expected_stay
from orchestrator.core.route import Case, judge
from orchestrator.core.run import RunRecord
from orchestrator.core.session import ClosedSession, Session
from orchestrator.core.speed import Measurement
from orchestrator.engine.losses import Losses
from orchestrator.engine.refusals import Refusals
from orchestrator.engine.surveying import Surveyed, Surveys, waits_for_start


def _stays(records: Iterable[RunRecord], now: float) -> Iterable[Stay]:
    for record in records:
        if record.session is not None and record.holds_slot:
            yield expected_stay(record.session, record.job.work.total, now)
        for stray in record.strays:
            if not stray.ended:
                yield Stay(stray.platform, stray.accelerator, stray.since, stray.until or now)


class Market:
    """Offers, outages and our own use. Call `begin` before routing and `reserve` after each assignment.

    `now` is the time of the last `begin`, in unix seconds. `losses` adds to each offer how long our sessions
    there lived, once it is told; `refusals` closes those that took nobody. `unreachable`: (platform, store) →
    why sessions there cannot use this home store.
    """

    def __init__(
        self,
        platforms: Sequence[str],
        rules: tuple[Rule, ...] = (),
        utc_offset_seconds: float = 0.0,
        unreachable: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._rules = rules
        self._utc_offset = utc_offset_seconds
        self._unreachable = tuple((*where, why) for where, why in (unreachable or {}).items())
        self._uncounted: Iterable[RunRecord] | None = ()
        self._records: tuple[RunRecord, ...] = ()
        self._claims: tuple[Claim, ...] = ()
        self._closed: dict[str, ClosedSession] = {}
        self._used: dict[tuple[str, str], int] = {}
        self.surveys = Surveys(platforms)
        self.losses = Losses()
        self.refusals = Refusals()
        self.now = 0.0
        self._left: tuple[Offer, ...] = ()

    # --- Answers ----------------------------------------------------------------------------------------

    def take(self, surveyed: Surveyed, now: float) -> bool:
        """Remembers an answer; returns whether it changes what can be routed."""
        if surveyed.trouble is None:  # losses are added anew each time, because they grow old
            surveyed = replace(surveyed, offers=self.losses.given_to(surveyed.offers, now))
        freed = any(each.platform == surveyed.platform for each in self._closed.values())
        return self.surveys.take(surveyed, now) or freed

    # --- Our own use ------------------------------------------------------------------------------------

    def begin(self, records: Iterable[RunRecord], now: float) -> None:
        """Recounts what the sessions of these runs use, including sessions that have just ended. Does so when
        it is first asked: in most ticks nobody asks, and there may be thousands of sessions."""
        self.now = now
        if self.losses.changed:
            self.surveys.revise(lambda offers: self.losses.given_to(offers, now))
            self.losses.changed = False
        self._closed = {each.session: each for each in self._closed.values() if self._is_new(each)}
        self._uncounted = records

    def remember(self, closed: Iterable[ClosedSession]) -> None:
        """Adds ended sessions. What they used counts as used until a survey that began after their end."""
        for each in closed:
            if self._is_new(each) and each.session not in self._closed:
                self._closed[each.session] = each
                self.surveys.hasten(each.platform)

    def _is_new(self, closed: ClosedSession) -> bool:
        return min(closed.gone_at, self.now) >= self.surveys.as_of.get(closed.platform, -math.inf)

    def reserve(self, session: Session) -> None:
        """Subtracts a session assigned in this tick from what is left for the next run."""
        self._count()
        self._claims = (*self._claims, claim_of(session, self.surveys.as_of))
        self._subtract()

    def _count(self) -> None:
        if self._uncounted is None:
            return
        self._records, self._uncounted = tuple(self._uncounted), None
        self._claims = claims(self._records, self._closed.values(), self.surveys.as_of, self.now)
        self._subtract()

    def _subtract(self) -> None:
        offers = self.surveys.offers
        self._used = used(offers, self._claims)
        left = less(offers, self._claims, self.now)
        self._left = tuple(self.refusals.closed(offer, self.now) for offer in left)

    @property
    def _usage(self) -> dict[tuple[str, str], int]:
        self._count()
        return self._used

    @property
    def _current(self) -> tuple[Offer, ...]:
        self._count()
        return self._left

    def calendar(self) -> Calendar:
        """When the offers have room, as far as our own sessions are concerned."""
        offers = self._current  # counts the records first
        return Calendar(offers, tuple(_stays(self._records, self.now)), self.now)

    # --- Routing ----------------------------------------------------------------------------------------

    def offers(self) -> tuple[Offer, ...]:
        """The current offers, minus our own reservations."""
        return self._current

    def has_room(self) -> bool:
        """Whether any offer may have room for one more session."""
        return any(self._free(offer) for offer in self._current)

    def is_worth_asking(self) -> bool:
        """Whether waiting runs should be routed once the offers have changed: one may start, or a person is
        to be told what to start."""
        return self.has_room() or any(map(waits_for_start, self._current))

    @property
    def full(self) -> bool:
        """Whether our own sessions use every slot. Then runs can only wait for a slot. If a person could
        start a machine, each run is still routed once, so that they are told."""
        if any(map(waits_for_start, self._current)):
            return False
        return (
            bool(self._current) and not self.surveys.failing and self.surveys.complete and not self.has_room()
        )

    def _free(self, offer: Offer) -> bool:
        return offer.unavailable is None and self._usage[offer.platform, offer.accelerator] < offer.slots

    def route(
        self, record: RunRecord, measurements: tuple[Measurement, ...], *, thorough: bool = False
    ) -> Route | None:
        """The router's answer for a run. None while a platform may be about to give its first answer. Also
        None if no offer fits and not all platforms have answered yet.

        `thorough`, for people: reports permanent reasons before temporary ones.
        """
        return self.judged(record, replace(self.case(measurements), thorough=thorough))

    def case(
        self, measurements: tuple[Measurement, ...], openings: tuple[Opening, ...] = (), others: int = 0
    ) -> Case:
        """The router's input for a run with these measurements, and its place in the queue."""
        usage = tuple((*where, count) for where, count in self._usage.items())
        silent = tuple(self.surveys.troubles(self.now))
        return Case(
            self._current, self._rules, measurements, usage, self._utc_offset,
            silent=silent, unreachable=self._unreachable, openings=openings, others=others,
        )  # fmt: skip

    def judged(self, record: RunRecord, case: Case) -> Route | None:
        """Like `route`, for a given case."""
        if self.expectant:
            return None
        found = judge(record, case, self.now)
        return None if found.chosen is None and not self.surveys.complete else found

    @property
    def expectant(self) -> bool:
        """Whether to wait for a platform's first answer: see `Surveys.expectant`."""
        return self.surveys.expectant(self.now)
