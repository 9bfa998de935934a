"""Whether a session has ended, and how, by what was seen of it: session × watch × now → Ended or nothing.

The agent's own marker counts before anything the platform says; silence only after several readings, and
not of a session that nothing but its end brings home. One whose heart is heard through the store is not lost
while it beats, whatever its platform sees.
Must never know what becomes of the run: that is `orchestrator.core.closing`.
"""

from __future__ import annotations

from orchestrator.core.event import Ended
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Outcome
from orchestrator.core.session import Observation, Session, Sighting
from orchestrator.core.watch import Watch
from orchestrator.core.wording import span

SILENT_POLLS = 5  # a heartbeat must have stood still over so many polls, and over `silence_seconds`
UNHEARD_SECONDS_MIN = 600.0  # without any reading of a session that must be over


def ending(session: Session, watch: Watch, now: float) -> Ended | None:
    """How the session ended, if it has. The watch holds at least one reading."""
    observation, traits = watch.observation, session.traits
    assert observation is not None
    result, left_at = observation.result, _left_at(session, observation)
    if result is not None and result.incarnation == session.incarnation:
        return Ended(now, result.outcome, result.message, confirmed=observation.sighting is Sighting.ENDED,
                     tail=result.tail, step=result.step, left_at=left_at)  # fmt: skip
    if observation.sighting is Sighting.ENDED:
        outcome = observation.ending or Outcome.LOST
        if outcome is Outcome.COMPLETED:
            outcome = Outcome.CRASHED  # a platform's "complete" without our marker
        detail = observation.detail or "it ended without a result"
        return Ended(now, outcome, detail, confirmed=True, left_at=left_at)
    patience = max(traits.silence_seconds, SILENT_POLLS * traits.poll_seconds)
    is_shipped = traits.uplink is Uplink.STORE
    is_heard = observation.status is not None and not watch.silent_for(patience)
    if watch.absent_for(traits.visibility_seconds) and not (is_shipped and is_heard):
        if session.began_at is None and session.incarnation is None and session.stop is None:
            return Ended(now, Outcome.NO_CAPACITY, "the launch never became visible", confirmed=False)
        return Ended(now, Outcome.LOST, "it no longer exists on the platform", confirmed=False)
    wall = traits.session_seconds
    if wall is not None and watch.running_seconds > wall + traits.slack_seconds:
        return Ended(now, Outcome.LOST, "still running past its session limit", confirmed=False)
    if watch.pending_seconds > traits.pending_seconds_max:
        waited = f"it has not started in {span(watch.pending_seconds)}"
        return Ended(now, Outcome.NO_CAPACITY, waited, confirmed=False)
    if wall is not None and not traits.durable_mid_run:
        return None  # giving it up would lose all it did: a platform that says "running" is believed so long
    if is_shipped and observation.status is None and watch.running_seconds > traits.setup_seconds + patience:
        unheard_of = f"nothing was heard of it in {span(watch.running_seconds)}: it does not reach the store"
        return Ended(now, Outcome.LOST, unheard_of, confirmed=False)
    if observation.status is not None and watch.silent_for(patience):
        why = f": {observation.detail}" if observation.detail else ""
        return Ended(now, Outcome.LOST, f"its heartbeat has stopped{why}", confirmed=False)
    return None


def unheard(session: Session, watch: Watch, now: float, monotonic: float) -> Ended | None:
    """A session beyond its limit whose platform gives no answer (an outage, refused credentials) is over,
    whatever became of it. Takes both: the limit by the clock, and silence while this controller was up."""
    silent = monotonic - watch.at
    over_at = None if session.wall_at is None else session.wall_at + session.traits.slack_seconds
    if over_at is None or now <= over_at or silent < max(UNHEARD_SECONDS_MIN, session.traits.slack_seconds):
        return None
    why = f"its session limit is over, and {session.order.platform} has given no answer for {span(silent)}"
    return Ended(now, Outcome.LOST, why, confirmed=False)


def _left_at(session: Session, observation: Observation) -> float | None:
    """When the session's agent last wrote its status, by its own clock."""
    status = observation.status
    return status.written_at if status is not None and status.incarnation == session.incarnation else None
