"""What sessions cost in money, by the prices that the user configured. Decides nothing: routes never look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core.offer import Hop

Where = tuple[str, str]  # platform and accelerator; "" is every accelerator there


@dataclass(frozen=True)
class Prices:
    """In `currency`: an hour of a session, and a unit of a platform that counts units. A price of one
    accelerator counts instead of that of its platform. What has no price is free."""

    currency: str
    per_hour: tuple[tuple[Where, float], ...] = ()
    per_unit: tuple[tuple[Where, float], ...] = ()

    def cost(self, hops: Iterable[Hop]) -> float:
        """What these sessions cost together."""
        return sum(self._cost(hop) for hop in hops)

    def _cost(self, hop: Hop) -> float:
        hours = (hop.end - hop.start) / 3600.0
        return _at(hop, self.per_hour) * hours + _at(hop, self.per_unit) * hop.quota_units


def _at(hop: Hop, prices: tuple[tuple[Where, float], ...]) -> float:
    known = dict(prices)
    return known.get((hop.platform, hop.accelerator), known.get((hop.platform, ""), 0.0))
