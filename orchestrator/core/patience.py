"""How long to keep trying to collect an ended session's outbox: session × now → whether to try again.

Pure. If the work exists only in the outbox, we try longer. Must never know what the platform answered.
"""

from __future__ import annotations

import math

from orchestrator.core.offer import Uplink
from orchestrator.core.pause import SKEW_SECONDS
from orchestrator.core.session import Session
from orchestrator.core.watch import READINGS_MIN

COLLECT_PATIENCE_SECONDS = 1800.0
ONLY_COPY_PATIENCE_SECONDS = 3600.0
COLLECT_PATIENCE_SECONDS_MAX = 3 * 86400.0
COLLECT_ATTEMPTS = 10
COLLECT_AGAIN_SECONDS = 300.0  # the longest pause between two attempts
LATE_PATIENCE_SECONDS = 900.0  # for the blobs of a shipped checkpoint: far longer than a listing is late
LATE_ATTEMPTS = 6


def doubtful(session: Session) -> bool:
    """Whether to doubt the answer that a session left nothing.

    If the session was seen to end and its work exists only in its outbox, one wrong answer would lose all of
    it. If its agent was seen, there is an outbox, whatever the platform answers. If the session was given
    up, there is nothing to lose. With an uplink, a few answers are enough: what was shipped is not lost, and
    a store is late by a minute at most.
    """
    if session.traits.uplink is Uplink.STORE:
        return session.incarnation is not None and session.failures + 1 < LATE_ATTEMPTS
    seen = session.launched_at is not None and session.end_confirmed and session.stop is None
    if not seen or session.traits.durable_mid_run:
        return False
    return session.incarnation is not None or session.failures + 1 < READINGS_MIN


def only_there(session: Session) -> bool:
    """Whether a session's last work exists only in its outbox, so that giving that up would lose it."""
    if session.launched_at is None:
        return False
    shipped = session.traits.uplink is Uplink.STORE  # its outbox is in the home store, which may come back
    kept = session.end_confirmed or session.incarnation is not None
    return shipped or (kept and not session.traits.durable_mid_run)


def goes_on_without(session: Session) -> bool:
    """Whether to take what a session shipped, without what its machine may still have: its heart stopped, and
    its platform has not answered several times since. Where a platform shows an outbox only after the end, it
    may have more than minutes."""
    traits = session.traits
    ships = traits.uplink is Uplink.STORE and traits.readable_mid_run
    return ships and not session.end_confirmed and session.failures >= READINGS_MIN


def out_of_patience(session: Session, now: float) -> bool:
    """Whether to give up an outbox that cannot be collected. Both the time and the number of attempts count,
    because the clock may have jumped. `now` in unix seconds."""
    ended_at = session.ended_at if session.ended_at is not None else now
    waited, worth = now - ended_at, 0.0
    if waited < -SKEW_SECONDS:  # the clock was wrong at its end, so only the attempts count
        waited = math.inf
    if session.traits.uplink is Uplink.STORE:  # without its home store the run could not continue anyway
        worth = math.inf
    elif not session.traits.durable_mid_run:  # all its work is at stake: wait as long as it ran
        worth = max(ONLY_COPY_PATIENCE_SECONDS, ended_at - (session.launched_at or ended_at))
    patience = min(COLLECT_PATIENCE_SECONDS_MAX, max(COLLECT_PATIENCE_SECONDS, worth))
    attempts = max(COLLECT_ATTEMPTS, patience / COLLECT_AGAIN_SECONDS)
    return waited > patience and session.failures >= attempts


def waits_for_late(session: Session, now: float) -> bool:
    """Whether to wait for a shipped checkpoint that is not complete in the store. Only its last parts can be
    late, so this ends sooner than the wait for a store that does not answer."""
    ended_at = session.ended_at if session.ended_at is not None else now
    waited = now - ended_at
    early = -SKEW_SECONDS <= waited <= LATE_PATIENCE_SECONDS
    return early or session.failures < LATE_ATTEMPTS
