"""The phases of a run and the one table of transitions between them.

The table is the whole lifecycle: an event without a row for the run's phase is a bug, and raises.
docs/lifecycle.md is generated from it. Knows only phases, events and wishes; no records, sessions or reasons.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    QUEUED = "queued"  # no session; waits for an offer
    PREPARING = "preparing"  # a session is assigned; its materials are being staged
    LAUNCHING = "launching"  # the launch is intended and may have happened; no agent seen yet
    RUNNING = "running"  # the agent's first incarnation was seen
    STOPPING = "stopping"  # a stop is intended; the end is not confirmed
    COLLECTING = "collecting"  # the session is over; its outbox is collected one last time
    HELD = "held"  # waits for a person
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED})


class Wish(StrEnum):
    """What a user asked for and the controller has not done yet."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"


class Awaited(StrEnum):
    """What a run that waits for a person is still watched for: it continues when this is there."""

    END = "end"  # of a session that runs past its limit, according to its platform
    OUTPUT = "output"  # of a session that runs no more


class Kind(StrEnum):
    """What can happen to a run; `orchestrator.core.event` has one dataclass for each."""

    SUBMITTED = "submitted"
    DEFERRED = "deferred"
    ASSIGNED = "assigned"
    PREPARED = "prepared"
    LAUNCHED = "launched"
    BEGAN = "began"
    STARTED = "started"
    ACTION_FAILED = "action_failed"
    WITHDRAWN = "withdrawn"
    TURNED_AWAY = "turned_away"
    STOP_REQUESTED = "stop_requested"
    ENDED = "ended"
    ACCEPTED = "accepted"
    OUTPUTS_KEPT = "outputs_kept"
    CORRUPT = "corrupt"
    RETIRED = "retired"
    NOTED = "noted"
    CONFIRMED = "confirmed"
    WISHED = "wished"
    REQUEUED = "requeued"
    COMPLETED = "completed"
    GAVE_UP = "gave_up"
    CANCELLED = "cancelled"
    HELD = "held"
    RELEASED = "released"
    FAULTED = "faulted"
    REGAINED = "regained"
    ADOPTED = "adopted"
    MOVED = "moved"
    WOKEN = "woken"
    SLEPT = "slept"
    UNSCHEDULED = "unscheduled"
    AMENDED = "amended"


P, K = Phase, Kind

# Adopted: the first event of a run that comes from another ledger, or the run is taken back from one.
TABLE: dict[Phase, dict[Kind, Phase]] = {
    P.QUEUED: {
        K.SUBMITTED: P.QUEUED,
        K.DEFERRED: P.QUEUED,
        K.ASSIGNED: P.PREPARING,
        K.ADOPTED: P.HELD,
        K.HELD: P.HELD,
        K.CANCELLED: P.CANCELLED,
        K.WOKEN: P.QUEUED,
        K.SLEPT: P.QUEUED,
    },
    P.PREPARING: {
        K.PREPARED: P.LAUNCHING,
        K.ACTION_FAILED: P.PREPARING,
        K.WITHDRAWN: P.QUEUED,
        K.CORRUPT: P.PREPARING,
        K.ADOPTED: P.PREPARING,
        K.WOKEN: P.PREPARING,
    },
    P.LAUNCHING: {
        K.LAUNCHED: P.LAUNCHING,
        K.BEGAN: P.LAUNCHING,
        K.STARTED: P.RUNNING,
        K.TURNED_AWAY: P.QUEUED,
        K.STOP_REQUESTED: P.STOPPING,
        K.ENDED: P.COLLECTING,
        K.ADOPTED: P.LAUNCHING,
        K.WOKEN: P.LAUNCHING,
    },
    P.RUNNING: {
        K.ACCEPTED: P.RUNNING,
        K.OUTPUTS_KEPT: P.RUNNING,
        K.STOP_REQUESTED: P.STOPPING,
        K.ENDED: P.COLLECTING,
        K.ADOPTED: P.RUNNING,
        K.WOKEN: P.RUNNING,
    },
    P.STOPPING: {
        K.BEGAN: P.STOPPING,
        K.STARTED: P.STOPPING,
        K.ACCEPTED: P.STOPPING,
        K.OUTPUTS_KEPT: P.STOPPING,
        K.ENDED: P.COLLECTING,
        K.ADOPTED: P.STOPPING,
        K.WOKEN: P.STOPPING,
    },
    P.COLLECTING: {
        K.STARTED: P.COLLECTING,
        K.ACCEPTED: P.COLLECTING,
        K.OUTPUTS_KEPT: P.COLLECTING,
        K.ACTION_FAILED: P.COLLECTING,
        K.REQUEUED: P.QUEUED,
        K.COMPLETED: P.DONE,
        K.GAVE_UP: P.FAILED,
        K.CANCELLED: P.CANCELLED,
        K.HELD: P.HELD,
        K.ADOPTED: P.COLLECTING,
        K.WOKEN: P.COLLECTING,
    },
    P.HELD: {
        K.ADOPTED: P.HELD,
        K.RELEASED: P.QUEUED,
        K.CANCELLED: P.CANCELLED,
        K.COMPLETED: P.DONE,  # adopted: it was over in the ledger that it comes from
        K.GAVE_UP: P.FAILED,
        K.AMENDED: P.HELD,
    },
    P.DONE: {
        K.WOKEN: P.QUEUED,  # its schedule has more for it to do
    },
    P.FAILED: {
        K.RELEASED: P.QUEUED,
        K.AMENDED: P.FAILED,
    },
    P.CANCELLED: {},
}

# Bookkeeping that may happen in any phase and never changes it: a user's wish, a note, checkpoints that
# retention deleted, the end of a session that was given up as lost, a wait for a person and its end, another
# home store, the end of a run's schedule.
EVERYWHERE = (K.WISHED, K.NOTED, K.RETIRED, K.CONFIRMED, K.FAULTED, K.REGAINED, K.MOVED, K.UNSCHEDULED)
for _phase, _row in TABLE.items():
    _row.update(dict.fromkeys(EVERYWHERE, _phase))


class IllegalTransition(AssertionError):
    """A bug: an event happened in a phase that has no row for it."""


def successor(phase: Phase, kind: Kind) -> Phase:
    """The phase after the event. Raises IllegalTransition if the table has no row."""
    try:
        return TABLE[phase][kind]
    except KeyError:
        raise IllegalTransition(f"{kind.value!r} cannot happen to a run that is {phase.value!r}") from None
