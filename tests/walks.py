"""Random runs through the lifecycle: at each step any event that the table allows, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.event import (
    ActionFailed,
    Adopted,
    Amended,
    Assigned,
    Began,
    Cancelled,
    CheckpointAccepted,
    CheckpointCorrupt,
    Completed,
    Confirmed,
    Cooldown,
    Deferred,
    Ended,
    Event,
    Faulted,
    GaveUp,
    Held,
    Launched,
    Moved,
    Noted,
    OutputsKept,
    Prepared,
    Regained,
    Released,
    Requeued,
    Retired,
    Slept,
    Slice,
    Started,
    StopRequested,
    Submitted,
    TurnedAway,
    Unscheduled,
    Wished,
    Withdrawn,
    Woken,
)
from orchestrator.core.lifecycle import TABLE, Awaited, Kind, Wish
from orchestrator.core.order import Order, Outcome
from orchestrator.core.run import RunRecord
from tests.core import runs

NOW = runs.NOW
NASTY = "träge\0 \udc80 'quoted\" \n\t{}%s"  # what logs and platforms say, and databases reject


def submission(run: str, *, name: str = "tiny", at: float = NOW) -> Submitted:
    return Submitted(run, runs.job(name=name), at)


def order(record: RunRecord) -> Order:
    """The run's current order, or its next."""
    if record.session is not None:
        return record.session.order
    if record.parked is not None:
        return record.parked
    generation = record.generation + 1
    session = f"{record.run}-s{generation:02d}"
    return replace(runs.assigned().order, run=record.run, session=session, generation=generation)


def assigned(record: RunRecord, at: float = NOW) -> Assigned:
    return Assigned(at, order(record), runs.TRAITS, "because")


def next_event(record: RunRecord, random: Random, at: float = NOW) -> Event:
    """An event that the lifecycle allows the run now."""
    kinds = [kind for kind in TABLE[record.phase] if kind is not Kind.SUBMITTED]
    return _MAKE[random.choice(kinds)](record, random, at)


def _cooldown(random: Random, at: float) -> Cooldown:
    return Cooldown("here", random.choice(["cpu", "T4"]), at + 60.0, NASTY, random.randint(1, 4))


def _accepted(record: RunRecord, random: Random, at: float) -> CheckpointAccepted:
    incarnation = record.session.incarnation if record.session else None
    step = random.randint(1, 1000)
    return CheckpointAccepted(at, runs.accepted(step, record.generation, incarnation or "aaaa", loss=0.5))


def _outputs(record: RunRecord, random: Random, at: float) -> OutputsKept:
    incarnation = record.session.incarnation if record.session else None
    ref = CheckpointRef(random.randint(0, 1000), record.generation, incarnation or "aaaa", outputs=True)
    return OutputsKept(at, Accepted(ref, random.randint(0, 10**9)))


def _some_checkpoint(record: RunRecord, random: Random) -> str:
    return random.choice([c.name for c in record.accepted] or ["none"])


def _some_stray(record: RunRecord, random: Random) -> str:
    return random.choice([stray.session for stray in record.strays] or ["none"])


_MAKE: dict[Kind, Callable[[RunRecord, Random, float], Event]] = {
    Kind.DEFERRED: lambda _, r, at: Deferred(at, r.choice([None, at + 3600.0]), NASTY),
    Kind.ASSIGNED: lambda record, _, at: assigned(record, at),
    Kind.PREPARED: lambda _record, _, at: Prepared(at),
    Kind.LAUNCHED: lambda _record, _, at: Launched(at),
    Kind.STARTED: lambda _record, r, at: Started(at, f"{r.getrandbits(32):08x}"),
    Kind.ACTION_FAILED: lambda _record, _, at: ActionFailed(at, "launch", NASTY, at + 2.0),
    Kind.WITHDRAWN: lambda _record, r, at: Withdrawn(at, NASTY, _cooldown(r, at)),
    Kind.TURNED_AWAY: lambda _record, r, at: TurnedAway(at, NASTY, _cooldown(r, at)),
    Kind.BEGAN: lambda _record, _, at: Began(at),
    Kind.STOP_REQUESTED: lambda _record, r, at: StopRequested(at, r.choice([Wish.CANCEL, Wish.HOLD])),
    Kind.ENDED: lambda _record, r, at: Ended(
        at, r.choice(list(Outcome)), NASTY, r.random() < 0.5, tail=NASTY
    ),
    Kind.ACCEPTED: _accepted,
    Kind.CORRUPT: lambda record, r, at: CheckpointCorrupt(
        at, _some_checkpoint(record, r), "no", order(record)
    ),
    Kind.RETIRED: lambda record, r, at: Retired(at, (_some_checkpoint(record, r),)),
    Kind.NOTED: lambda _record, _, at: Noted(at, NASTY),
    Kind.CONFIRMED: lambda record, r, at: Confirmed(at, _some_stray(record, r)),
    Kind.WISHED: lambda _record, r, at: Wished(at, r.choice(list(Wish)), r.random() < 0.5),
    Kind.REQUEUED: lambda _record, r, at: Requeued(at, NASTY, r.randint(0, 3), _cooldown(r, at), ("cpu", 4)),
    Kind.COMPLETED: lambda _record, _, at: Completed(at, NASTY),
    Kind.GAVE_UP: lambda _record, _, at: GaveUp(at, NASTY),
    Kind.CANCELLED: lambda _record, _, at: Cancelled(at, NASTY),
    Kind.HELD: lambda _record, _, at: Held(at, NASTY),
    Kind.RELEASED: lambda _record, _, at: Released(at),
    Kind.FAULTED: lambda _record, r, at: Faulted(at, NASTY, awaits=r.choice([None, *Awaited])),
    Kind.REGAINED: lambda _record, _, at: Regained(at, (NASTY,)),
    Kind.ADOPTED: lambda record, _, at: Adopted(at, NASTY, record.generation + 1, (), record.adoptions + 1),
    Kind.MOVED: lambda record, _, at: Moved(at, "other", record.store),
    Kind.WOKEN: lambda record, r, at: Woken(
        at, r.choice([None, Slice(at), Slice(at, at + 60.0, at + 90.0)]), r.choice([None, record.job])
    ),
    Kind.SLEPT: lambda _record, r, at: Slept(at, NASTY, r.choice([None, at + 3600.0])),
    Kind.OUTPUTS_KEPT: _outputs,
    Kind.AMENDED: lambda record, _, at: Amended(at, record.job, (NASTY,)),
    Kind.UNSCHEDULED: lambda _record, _, at: Unscheduled(at),
}
