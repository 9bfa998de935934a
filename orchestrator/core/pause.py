"""Whether a pause is still on: now × when it was set × until when → yes or no.

Pure. Dates are of a wall clock that may jump. A pause that was set later than now was set by a clock that was
wrong, and is over: so no run waits for ten days because the clock was ten days ahead for a minute.
"""

from __future__ import annotations

SKEW_SECONDS = 60.0  # a clock that is set back by less is believed; a pause may last so much longer


def pausing(now: float, since: float, until: float | None) -> bool:
    """Whether the pause set at `since` lasts (`until` None: for ever). All in unix seconds."""
    if until is None:
        return True
    return since - SKEW_SECONDS <= now < until
