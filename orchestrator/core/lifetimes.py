"""How long our own sessions lived, and which of them their platforms took away: a session's end → Lifetime.

What a session did itself is no loss: it finished, crashed, left at its deadline, or was asked to stop. Pure.
Must never know what follows from it: `orchestrator.core.estimate` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core.event import Ended
from orchestrator.core.offer import Lifetimes
from orchestrator.core.order import Outcome
from orchestrator.core.session import Session

LIFETIMES_MAX = 64  # the newest of an offer; older ones say little about today
RECENT_SECONDS = 60 * 86400.0
LIMIT_SHARE = 0.98  # who lived for so much of the session limit was not taken away before it


@dataclass(frozen=True)
class Lifetime:
    """For how long one session ran until `at`, in (unix) seconds, and whether its platform took it away."""

    at: float
    seconds: float
    lost: bool


def lifetime(session: Session, ended: Ended, *, reported: bool, forgone: bool = False) -> Lifetime | None:
    """The lifetime of a session that has ended in this way; None if it never ran.

    `reported`: its agent left a result, so the session ended by itself. `forgone`: the user gave it up.
    """
    began = session.runs_since
    if began is None:
        return None
    over = ended.at
    if ended.left_at is not None and began <= ended.left_at < over:  # a loss is noticed late
        over = ended.left_at
    seconds, wall = max(0.0, over - began), session.traits.session_seconds
    whole = wall is not None and seconds >= LIMIT_SHARE * wall
    asked = session.stop is not None or forgone
    lost = ended.outcome is Outcome.LOST and not reported and not asked and not whole
    return Lifetime(ended.at, seconds if wall is None else min(seconds, wall), lost)


def summed(lifetimes: Iterable[Lifetime], now: float) -> Lifetimes | None:
    """What they say together; None if none of them is recent."""
    recent = [each for each in lifetimes if each.at > now - RECENT_SECONDS]
    if not recent:
        return None
    return Lifetimes(len(recent), sum(each.lost for each in recent), sum(each.seconds for each in recent))
