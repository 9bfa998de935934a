"""The offers as they stand now: what the platforms said last, less what our own sessions use of it.

Volatile; asks nothing itself (the engine runs surveys in workers) and chooses nothing (`core.route` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.job import Rule
from orchestrator.core.offer import (
    Offer,
    Rejection,
    Route,
    until_human,
    until_time,
)
from orchestrator.core.route import route
from orchestrator.core.run import RunRecord, Session
from orchestrator.core.speed import Measurement
from orchestrator.errors import AccessDenied, BackendError, OrchestratorError
from orchestrator.platforms.platform import Platform

SURVEY_SECONDS = 60.0
OUTAGE_SECONDS = 60.0


@dataclass(frozen=True)
class Surveyed:
    """A platform's answer to survey: its offers, or why there is none."""

    platform: str
    offers: tuple[Offer, ...] = ()
    trouble: str | None = None
    denied: bool = False


def survey(name: str, platform: Platform) -> Surveyed:
    """Asks a platform for its offers; blocks; a backend's error becomes an answer."""
    try:
        return Surveyed(name, platform.survey())
    except AccessDenied as error:
        return Surveyed(name, trouble=str(error), denied=True)
    except (BackendError, OrchestratorError, OSError) as error:
        return Surveyed(name, trouble=str(error))


class Market:
    """Offers, outages and our own use of them. `begin` before routing, `reserve` after each assignment."""

    def __init__(
        self, platforms: Sequence[str], rules: tuple[Rule, ...] = (), utc_offset_seconds: float = 0.0
    ) -> None:
        self._platforms = tuple(platforms)
        self._rules = rules
        self._utc_offset = utc_offset_seconds
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._outages: dict[str, Surveyed] = {}
        self._surveyed_at: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._usage: dict[tuple[str, str], int] = {}
        self._now = 0.0
        self._current: tuple[Offer, ...] = ()

    # --- Surveys ----------------------------------------------------------------------------------------

    def surveys_due(self, monotonic: float) -> list[str]:
        """Platforms to ask now; each is taken as asked."""
        due = [
            name
            for name in self._platforms
            if name not in self._asked_at or monotonic - self._asked_at[name] >= SURVEY_SECONDS
        ]
        self._asked_at.update(dict.fromkeys(due, monotonic))
        return due

    def take(self, surveyed: Surveyed, now: float) -> bool:
        """Remembers an answer; returns whether it changes what can be routed."""
        name = surveyed.platform
        before = (self._offers.get(name), name in self._outages)
        if surveyed.trouble is None:
            self._outages.pop(name, None)
            self._offers[name] = surveyed.offers
        else:
            self._outages[name] = surveyed
            self._offers.pop(name, None)
        self._surveyed_at[name] = now
        return before != (self._offers.get(name), name in self._outages)

    @property
    def complete(self) -> bool:
        """Whether every platform has answered, if only with an error."""
        return all(name in self._surveyed_at for name in self._platforms)

    # --- Our own use ------------------------------------------------------------------------------------

    def begin(self, records: Iterable[RunRecord], now: float) -> None:
        """Counts anew what the given runs' sessions and strays take."""
        self._now = now
        self._usage = {}
        sessions = []
        for record in records:
            if record.session is not None:
                sessions.append(record.session)
                self._count(record.session.order.platform, record.session.order.accelerator)
            for stray in record.strays:
                if not stray.ended:
                    self._count(stray.platform, stray.accelerator)
        self._current = tuple(
            self._less_reserved(offer, sessions) for offers in self._offers.values() for offer in offers
        )

    def reserve(self, session: Session) -> None:
        """Takes a session assigned in this tick off what is left for the next."""
        self._count(session.order.platform, session.order.accelerator)
        self._current = tuple(self._less_reserved(offer, [session]) for offer in self._current)

    def _count(self, platform: str, accelerator: str) -> None:
        key = (platform, accelerator)
        self._usage[key] = self._usage.get(key, 0) + 1

    def _less_reserved(self, offer: Offer, sessions: list[Session]) -> Offer:
        """The offer with our sessions' budgets off its quota: what they may still use since the survey."""
        if offer.quota is None:
            return offer
        pools = {(o.platform, o.accelerator): o.quota.pool for o in self._offers[offer.platform] if o.quota}
        reserved = 0.0
        for session in sessions:
            key = (session.order.platform, session.order.accelerator)
            if pools.get(key) == offer.quota.pool:
                reserved += self._may_still_use(session)
        left = max(0.0, offer.quota.left_seconds - reserved)
        return replace(offer, quota=replace(offer.quota, left_seconds=left))

    def _may_still_use(self, session: Session) -> float:
        order = session.order
        whole = (order.budget_seconds or 0.0) + session.traits.wall_margin_seconds
        if session.started_at is None:
            return whole
        surveyed_at = self._surveyed_at.get(order.platform, session.started_at)
        return max(0.0, whole - max(0.0, surveyed_at - session.started_at))

    # --- Routing ----------------------------------------------------------------------------------------

    def offers(self) -> tuple[Offer, ...]:
        """The offers now, our own reservations taken off."""
        return self._current

    def has_room(self) -> bool:
        """Whether any offer might take one more session."""
        return any(self._free(offer) for offer in self._current)

    @property
    def full(self) -> bool:
        """Whether our own sessions take every slot there is: then a slot is all there is to wait for."""
        return bool(self._current) and not self._outages and self.complete and not self.has_room()

    def _free(self, offer: Offer) -> bool:
        used = self._usage.get((offer.platform, offer.accelerator), 0)
        return offer.unavailable is None and used < offer.slots

    def route(
        self, record: RunRecord, measurements: tuple[Measurement, ...], *, thorough: bool = False
    ) -> Route | None:
        """The router's answer for a run; None until every platform has answered once and none takes it.

        `thorough`, for people: what is wrong for good is told before what is wrong now.
        """
        accepted = max((c.ref.step for c in record.accepted), default=0)
        found = route(
            record.job,
            self._current,
            now=self._now,
            rules=self._rules,
            measurements=measurements,
            usage=self._usage,
            cooldowns=record.cooldowns,
            micro_batch_caps=dict(record.micro_batch_caps),
            done_steps=accepted,
            utc_offset_seconds=self._utc_offset,
            allow_over_horizon=accepted > 0,
            thorough=thorough,
        )
        if found.chosen is None and not self.complete:
            return None
        return replace(found, rejections=(*found.rejections, *self._troubles()))

    def _troubles(self) -> Iterable[Rejection]:
        for name, surveyed in self._outages.items():
            trouble = surveyed.trouble or "no answer"
            until = until_time(self._now + OUTAGE_SECONDS)
            if surveyed.denied:
                until = until_human(f"orchestrator doctor {name}")
            yield Rejection(name, "any", trouble, until)
