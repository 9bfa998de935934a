"""How long what a closed session left is asked for: session × now → whether to ask again.

Pure. What only its outbox brings home is worth more patience than what lay safe before. Must never know what
was answered.
"""

from __future__ import annotations

import math

from orchestrator.core.pause import SKEW_SECONDS
from orchestrator.core.session import Session
from orchestrator.core.watch import READINGS_MIN

COLLECT_PATIENCE_SECONDS = 1800.0
COLLECT_PATIENCE_SECONDS_MAX = 3 * 86400.0
COLLECT_ATTEMPTS = 10


def doubtful(session: Session) -> bool:
    """Whether "nothing was left" is to be heard again: of a session that was seen to end, and that nothing
    but its outbox brings home, one odd answer would lose all it did; of one that was given up, nothing."""
    seen = session.launched_at is not None and session.end_confirmed and session.stop is None
    return seen and not session.traits.durable_mid_run and session.failures + 1 < READINGS_MIN


def only_there(session: Session) -> bool:
    """Whether what a session did lies nowhere but where it ran: nothing of it came home before its end."""
    return session.launched_at is not None and session.end_confirmed and not session.traits.durable_mid_run


def out_of_patience(session: Session, now: float) -> bool:
    """Whether an outbox that does not come is given up: by the count of attempts as well as the clock, which
    may have jumped. `now` in unix seconds."""
    ended_at = session.ended_at if session.ended_at is not None else now
    waited, worth = now - ended_at, 0.0
    if waited < -SKEW_SECONDS:  # it ended by a clock that was wrong: then attempts alone tell
        waited = math.inf
    if not session.traits.durable_mid_run:  # all that it did: as long again is what it is worth to wait for
        worth = ended_at - (session.launched_at or ended_at)
    patience = min(COLLECT_PATIENCE_SECONDS_MAX, max(COLLECT_PATIENCE_SECONDS, worth))
    attempts = COLLECT_ATTEMPTS * patience / COLLECT_PATIENCE_SECONDS
    return waited > patience and session.failures >= attempts
