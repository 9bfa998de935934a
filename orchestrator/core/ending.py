"""Whether and how a session has ended, judged by its readings: session × watch × now → Ended or None.

The agent's result counts more than anything the platform reports. Silence counts only after several readings,
and never for a session whose work comes home only at its end. A session whose heartbeat arrives through the
store is not lost, whatever its platform reports. Must never know what happens to the run next: that is
`orchestrator.core.closing`.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.durable import is_durable
from orchestrator.core.event import Ended
from orchestrator.core.lifecycle import Awaited
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import Outcome
from orchestrator.core.session import Observation, Session, Sighting
from orchestrator.core.watch import Watch
from orchestrator.core.wording import span

SILENT_POLLS = 5  # a heartbeat counts as stopped after so many polls and after `silence_seconds`
UNHEARD_SECONDS_MIN = 600.0  # without any reading, when the session must be over


def ending(session: Session, watch: Watch, now: float, *, forgone: bool = False) -> Ended | None:
    """How the session ended, if it has. The watch holds at least one reading. `forgone`: the user gave up
    what it left."""
    found = _ending(session, watch, now, forgone=forgone)
    status = None if watch.observation is None else watch.observation.status
    if found is None or status is None or status.gpu_use is None:
        return found
    return replace(found, gpu_use=status.gpu_use)


def _ending(session: Session, watch: Watch, now: float, *, forgone: bool) -> Ended | None:
    observation, traits = watch.observation, session.traits
    assert observation is not None
    result, left_at = observation.result, _left_at(session, observation)
    if result is not None and result.incarnation == session.incarnation:
        return Ended(now, result.outcome, result.message, confirmed=observation.sighting is Sighting.ENDED,
                     tail=result.tail, step=result.step, left_at=left_at, reached=result.reached,
                     error=result.error, hopeless=result.hopeless)  # fmt: skip
    if observation.sighting is Sighting.ENDED:
        outcome = observation.ending or Outcome.LOST
        if outcome is Outcome.COMPLETED:
            outcome = Outcome.CRASHED  # the platform says "complete", but there is no result of ours
        detail = observation.detail or "the session ended without a result"
        return Ended(now, outcome, detail, confirmed=True, left_at=left_at)
    if forgone:
        return given_up(now, confirmed=observation.sighting is Sighting.SAVING)
    if observation.sighting is Sighting.SAVING:
        return _saves_too_long(traits, watch, now)
    patience = max(traits.silence_seconds, SILENT_POLLS * traits.poll_seconds)
    is_shipped = traits.uplink is Uplink.STORE
    is_heard = observation.status is not None and not watch.silent_for(patience)
    was_seen = session.began_at is not None or session.incarnation is not None
    unseen_seconds = max(traits.visibility_seconds, traits.absence_seconds if was_seen else 0.0)
    if watch.absent_for(unseen_seconds) and not (is_shipped and is_heard):
        if not was_seen and session.stop is None:
            return Ended(
                now, Outcome.NO_CAPACITY, "the session never appeared on its platform", confirmed=False
            )
        return Ended(now, Outcome.LOST, "the session is gone from its platform", confirmed=False)
    wall = traits.session_seconds
    durable = is_durable(traits, observation.status)
    if _beyond_limit(traits, watch) and durable:
        return Ended(now, Outcome.LOST, "still running past its session limit", confirmed=False)
    if watch.pending_seconds > traits.pending_seconds_max:
        waited = f"the session did not start within {span(watch.pending_seconds)}"
        return Ended(now, Outcome.NO_CAPACITY, waited, confirmed=False)
    if wall is not None and not durable:
        return None  # giving up would lose all its work, so we believe a platform that says "running"
    if is_shipped and observation.status is None and watch.running_seconds > traits.setup_seconds + patience:
        unheard_of = f"the session wrote nothing to the store in {span(watch.running_seconds)} of running"
        return Ended(now, Outcome.LOST, unheard_of, confirmed=False)
    if observation.status is not None and watch.silent_for(patience):
        why = f": {observation.detail}" if observation.detail else ""
        return Ended(now, Outcome.LOST, f"the heartbeat stopped{why}", confirmed=False)
    return None


def _saves_too_long(traits: Traits, watch: Watch, now: float) -> Ended | None:
    """What an ended session left is waited for, unless the home store has all but its last minutes."""
    assert watch.observation is not None
    durable = is_durable(traits, watch.observation.status)
    if not durable or watch.saving_seconds <= traits.saving_seconds_max:
        return None
    late = "the session has ended, and its platform does not show what it left beyond what it shipped"
    return Ended(now, Outcome.LOST, late, confirmed=False)


def given_up(now: float, *, confirmed: bool) -> Ended:
    """The end of a session whose output the user gave up. `confirmed`: it does not run any more."""
    return Ended(now, Outcome.LOST, "its output was given up, as requested", confirmed=confirmed)


def overdue(session: Session, watch: Watch) -> tuple[Awaited, str] | None:
    """What does not come by itself, although the platform promised it, and why a person should look. The work
    of such a session exists nowhere else."""
    observation, traits = watch.observation, session.traits
    if observation is None or is_durable(traits, observation.status):
        return None
    where = f": {observation.detail}" if observation.detail else ""
    if observation.sighting is Sighting.SAVING and watch.saving_seconds > traits.saving_seconds_max:
        return Awaited.OUTPUT, f"{session.name} has ended, but its output does not appear{where}"
    if observation.sighting is Sighting.RUNNING and _beyond_limit(traits, watch):
        return Awaited.END, f"{session.name} runs past its session limit, according to its platform{where}"
    return None


def _beyond_limit(traits: Traits, watch: Watch) -> bool:
    wall = traits.session_seconds
    return wall is not None and watch.running_seconds > wall + traits.slack_seconds


def past_limit(session: Session, now: float) -> bool:
    """Whether the session must be over, by the clock."""
    return session.wall_at is not None and now > session.wall_at + session.traits.slack_seconds


def unheard(session: Session, watch: Watch, now: float, monotonic: float) -> str:
    """Why a session must be over although its platform does not answer (an outage, refused credentials);
    empty if it may still run. The clock must be past the session limit, and the platform silent while this
    controller ran."""
    silent = monotonic - watch.at
    if not past_limit(session, now) or silent < max(UNHEARD_SECONDS_MIN, session.traits.slack_seconds):
        return ""
    return f"its session limit has passed, and {session.order.platform} has not answered for {span(silent)}"


def beyond_reach(session: Session, watch: Watch, monotonic: float, host: str) -> str:
    """Why a session is given up that is bound to the machine `host`, which this controller does not reach;
    empty if its uplink may still be heard."""
    traits, silent = session.traits, monotonic - watch.at
    patience = max(traits.silence_seconds, SILENT_POLLS * traits.poll_seconds) + traits.setup_seconds
    if silent < patience:
        return ""
    return (
        f"it is out of reach on {session.order.platform} of {host}, and nothing was heard for {span(silent)}"
    )


def _left_at(session: Session, observation: Observation) -> float | None:
    """When the session's agent last wrote its status, by its own clock."""
    status = observation.status
    return status.written_at if status is not None and status.incarnation == session.incarnation else None
