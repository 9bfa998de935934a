"""Which offers took nobody a moment ago: refusals for want of capacity × offers → offers, some of them
closed.

In memory only. Such a refusal concerns every run, not only the one that met it.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.event import Cooldown
from orchestrator.core.offer import Offer, Unavailable, until_time
from orchestrator.core.pause import pausing
from orchestrator.core.wording import span

REFUSED_SECONDS_MAX = 900.0  # for which one run's refusal keeps the others away


class Refusals:
    """The last refusal of each offer."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[Cooldown, float]] = {}  # and until when it counts

    def add(self, refused: Cooldown) -> None:
        """A platform had no room for a run there, which pauses. The others pause, too: twice as long each
        time that they are refused in a row, at most REFUSED_SECONDS_MAX."""
        place, since = (refused.platform, refused.accelerator), refused.since
        if refused.until is None:
            return
        pause = refused.until - since
        if place in self._last:
            before, until = self._last[place]
            if pausing(since, before.since, until):
                return
            if since - until < until - before.since:
                pause = max(pause, 2.0 * (until - before.since))
        self._last[place] = refused, since + min(pause, REFUSED_SECONDS_MAX)

    def closed(self, offer: Offer, now: float) -> Offer:
        """The offer, closed if it refused a session a moment ago."""
        place = offer.platform, offer.accelerator
        if place not in self._last or offer.unavailable is not None:
            return offer
        refused, until = self._last[place]
        if not pausing(now, refused.since, until):
            return offer
        reason = f"it refused a session {span(max(0.0, now - refused.since))} ago: {refused.reason}"
        return replace(offer, unavailable=Unavailable(reason, until_time(until)))
