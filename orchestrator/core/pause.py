"""Whether a pause still lasts: now × when it was set × until when → yes or no.

Pure. Dates are by a wall clock that may jump. If a pause was set later than now, the clock was wrong then,
and the pause is over. So no run waits ten days because the clock was ten days ahead for a minute.
"""

from __future__ import annotations

SKEW_SECONDS = 60.0  # a clock that was set back by less is trusted; a pause may last this much longer


def pausing(now: float, since: float, until: float | None) -> bool:
    """Whether the pause set at `since` lasts (`until` None: for ever). All in unix seconds."""
    if until is None:
        return True
    return since - SKEW_SECONDS <= now < until
