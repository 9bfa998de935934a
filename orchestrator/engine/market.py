"""The current offers: the platforms' last answers, minus what our own sessions use.

In memory only. Asks no platform itself (the engine runs surveys in workers) and chooses nothing
(`core.route` does).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.calendar import Opening, Stay
from orchestrator.core.claims import Claim, claim_of, claims, less, used
from orchestrator.core.job import Rule
from orchestrator.core.offer import (
    Offer,
    Rejection,
    Route,
    UntilKind,
    until_human,
    until_time,
)
from orchestrator.core.plausible import unusable
from orchestrator.core.queueing import expected_stay
from orchestrator.core.route import Case, judge
from orchestrator.core.run import RunRecord
from orchestrator.core.session import ClosedSession, Session
from orchestrator.core.speed import Measurement
from orchestrator.engine.losses import Losses
from orchestrator.engine.refusals import Refusals
from orchestrator.errors import AccessDenied, BackendError, OrchestratorError, Preparing
from orchestrator.platforms.platform import Platform
from orchestrator.unforeseen import Unforeseen, raise_again, sentence

SURVEY_SECONDS = 60.0
START_SECONDS = 10.0  # while a person may be about to start a machine
OUTAGE_SECONDS = 60.0
FIRST_ANSWER_SECONDS = 15.0  # wait this long for a platform's first answer before runs go elsewhere


@dataclass(frozen=True)
class Surveyed:
    """A platform's answer to survey: its offers, or why there are none. `denied` and `preparing`: a person
    must act, or wait for an installation here; `trouble` says so."""

    platform: str
    offers: tuple[Offer, ...] = ()
    trouble: str | None = None
    denied: bool = False
    preparing: bool = False


def survey(name: str, platform: Platform, unforeseen: Unforeseen = raise_again) -> Surveyed:
    """Asks a platform for its offers. Blocks. Every error becomes an answer, even an unexpected one."""
    try:
        offers = platform.survey()
        wrong = next(filter(None, map(unusable, offers)), "")
        if wrong:
            return Surveyed(name, trouble=f"its survey cannot be used: {wrong}")
        return Surveyed(name, offers)
    except AccessDenied as error:
        return Surveyed(name, trouble=str(error), denied=True)
    except (BackendError, OrchestratorError, OSError) as error:
        return Surveyed(name, trouble=str(error), preparing=isinstance(error, Preparing))
    except Exception as error:  # noqa: BLE001 the barrier: reported, and its offers are closed
        doing = f"survey of {name}"
        unforeseen(doing, error)
        return Surveyed(name, trouble=sentence(doing, error))


def _waits_for_start(offer: Offer) -> bool:
    return offer.unavailable is not None and offer.unavailable.until.kind is UntilKind.START


def _stays(records: Iterable[RunRecord], now: float) -> Iterable[Stay]:
    for record in records:
        if record.session is not None and record.holds_slot:
            yield expected_stay(record.session, record.job.work.total, now)
        for stray in record.strays:
            if not stray.ended:
                yield Stay(stray.platform, stray.accelerator, stray.since, stray.until or now)


class Market:
    """Offers, outages and our own use. Call `begin` before routing and `reserve` after each assignment.

    `now` is the time of the last `begin`, in unix seconds, and `stays` the sessions that ran then. `losses`
    adds to each offer how long our sessions there lived, once it is told; `refusals` closes those that took
    nobody. `unreachable`: (platform, store) → why sessions there cannot use this home store.
    """

    def __init__(
        self,
        platforms: Sequence[str],
        rules: tuple[Rule, ...] = (),
        utc_offset_seconds: float = 0.0,
        unreachable: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._platforms = tuple(platforms)
        self._rules = rules
        self._utc_offset = utc_offset_seconds
        self._unreachable = tuple((*where, why) for where, why in (unreachable or {}).items())
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._outages: dict[str, Surveyed] = {}
        self._asked_at: dict[str, float] = {}  # monotonic
        self._asking: dict[str, float] = {}  # surveys under way, by the wall clock
        self._as_of: dict[str, float] = {}  # when the last answered survey was asked for
        self._claims: tuple[Claim, ...] = ()
        self._closed: dict[str, ClosedSession] = {}
        self._usage: dict[tuple[str, str], int] = {}
        self.stays: tuple[Stay, ...] = ()
        self.losses = Losses()
        self.refusals = Refusals()
        self.now = 0.0
        self._current: tuple[Offer, ...] = ()

    # --- Surveys ----------------------------------------------------------------------------------------

    def surveys_due(self, now: float, monotonic: float) -> list[str]:
        """Platforms to ask now. Marks each as asked, so that no platform is asked twice at a time."""
        due = [
            name
            for name in self._platforms
            if name not in self._asking
            and (name not in self._asked_at or monotonic - self._asked_at[name] >= self._pause(name))
        ]
        self._asked_at.update(dict.fromkeys(due, monotonic))
        self._asking.update(dict.fromkeys(due, now))
        return due

    def _pause(self, name: str) -> float:
        return START_SECONDS if any(map(_waits_for_start, self._offers.get(name, ()))) else SURVEY_SECONDS

    def take(self, surveyed: Surveyed, now: float) -> bool:
        """Remembers an answer; returns whether it changes what can be routed."""
        name = surveyed.platform
        before = (self._offers.get(name), name in self._outages)
        if surveyed.trouble is None:
            self._outages.pop(name, None)
            self._offers[name] = self.losses.given_to(surveyed.offers, now)  # anew, because they grow old
        else:
            self._outages[name] = surveyed
            self._offers.pop(name, None)
        self._as_of[name] = self._asking.pop(name, now)
        freed = any(each.platform == name for each in self._closed.values())
        return freed or before != (self._offers.get(name), name in self._outages)

    def close(self, name: str, trouble: str) -> None:
        """Removes a platform's offers until its next survey, because its code fails. This is not an answer
        to a survey: one that is under way still counts from when it was asked."""
        self._outages[name] = Surveyed(name, trouble=trouble)
        self._offers.pop(name, None)

    @property
    def complete(self) -> bool:
        """Whether every platform has answered, if only with an error."""
        return all(name in self._as_of for name in self._platforms)

    # --- Our own use ------------------------------------------------------------------------------------

    def begin(self, records: Iterable[RunRecord], now: float) -> None:
        """Recounts what the sessions of these runs use, including sessions that have just ended."""
        self.now = now
        if self.losses.changed:
            self._offers = {name: self.losses.given_to(offers, now) for name, offers in self._offers.items()}
            self.losses.changed = False
        self._closed = {each.session: each for each in self._closed.values() if self._is_new(each)}
        records = tuple(records)
        self._claims = claims(records, self._closed.values(), self._as_of, now)
        self.stays = tuple(_stays(records, now))
        self._count()

    def remember(self, closed: Iterable[ClosedSession]) -> None:
        """Adds ended sessions. What they used counts as used until a survey that began after their end."""
        for each in closed:
            if self._is_new(each) and each.session not in self._closed:
                self._closed[each.session] = each
                self._asked_at.pop(each.platform, None)  # ask anew at once

    def _is_new(self, closed: ClosedSession) -> bool:
        return min(closed.gone_at, self.now) >= self._as_of.get(closed.platform, -math.inf)

    def reserve(self, session: Session) -> None:
        """Subtracts a session assigned in this tick from what is left for the next run."""
        self._claims = (*self._claims, claim_of(session, self._as_of))
        self._count()

    def _count(self) -> None:
        offers = tuple(offer for offers in self._offers.values() for offer in offers)
        self._usage = used(offers, self._claims)
        left = less(offers, self._claims, self.now)
        self._current = tuple(self.refusals.closed(offer, self.now) for offer in left)

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
        return self.has_room() or any(map(_waits_for_start, self._current))

    @property
    def full(self) -> bool:
        """Whether our own sessions use every slot. Then runs can only wait for a slot. If a person could
        start a machine, each run is still routed once, so that they are told."""
        if any(map(_waits_for_start, self._current)):
            return False
        return bool(self._current) and not self._outages and self.complete and not self.has_room()

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
        silent = tuple(self._troubles())
        return Case(
            self._current, self._rules, measurements, usage, self._utc_offset,
            silent=silent, unreachable=self._unreachable, openings=openings, others=others,
        )  # fmt: skip

    def judged(self, record: RunRecord, case: Case) -> Route | None:
        """Like `route`, for a given case."""
        if self.expectant:
            return None
        found = judge(record, case, self.now)
        return None if found.chosen is None and not self.complete else found

    @property
    def expectant(self) -> bool:
        """Whether a platform may be about to give its first answer. The platform that answers first is not
        necessarily the best place for a long run."""
        never_heard = [asked for name, asked in self._asking.items() if name not in self._as_of]
        return any(0.0 <= self.now - asked < FIRST_ANSWER_SECONDS for asked in never_heard)

    def _troubles(self) -> Iterable[Rejection]:
        for name, surveyed in self._outages.items():
            trouble = surveyed.trouble or "no answer"
            until = until_time(self.now + OUTAGE_SECONDS)
            if surveyed.denied:
                until = until_human(f"orchestrator doctor {name}")
            yield Rejection(name, "any", trouble, until)
