"""For how long our own sessions lived on each offer, as far as the ledger knows: offers → offers with it.

In memory only; the ledger is asked once for each offer. Decides nothing: `orchestrator.core.estimate` says
what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.core.lifetimes import LIFETIMES_MAX, Lifetime, summed
from orchestrator.core.offer import Offer

Place = tuple[str, str]  # platform and accelerator


class Losses:
    """The lifetimes of each place. `changed`: since offers were last given theirs."""

    def __init__(self) -> None:
        self._lifetimes: dict[Place, tuple[Lifetime, ...]] = {}
        self._wanted: set[Place] = set()
        self.changed = False

    @property
    def wanted(self) -> tuple[Place, ...]:
        """The places on offer whose lifetimes it was not told yet."""
        return tuple(sorted(self._wanted))

    def learn(self, place: Place, lifetimes: Iterable[Lifetime]) -> None:
        """Takes all lifetimes of a place, oldest first."""
        self._lifetimes[place] = tuple(lifetimes)[-LIFETIMES_MAX:]
        self._wanted.discard(place)
        self.changed = True

    def add(self, place: Place, lived: Lifetime) -> None:
        """Adds that of a session that has just ended."""
        if place in self._lifetimes:  # else the ledger tells it with the others
            self.learn(place, (*self._lifetimes[place], lived))

    def given_to(self, offers: Sequence[Offer], now: float) -> tuple[Offer, ...]:
        """The offers with the lifetimes there."""
        places = [(offer.platform, offer.accelerator) for offer in offers]
        self._wanted.update(place for place in places if place not in self._lifetimes)
        return tuple(
            replace(offer, lifetimes=summed(self._lifetimes.get(place, ()), now))
            for offer, place in zip(offers, places, strict=True)
        )
