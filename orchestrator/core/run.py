"""A run's record, which is the fold of its events.

The ledger stores events; only `apply` changes a record. Decides nothing: `orchestrator.core.decide` says
which events happen, and the lifecycle table whether they are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.core.checkpoint import Accepted
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
from orchestrator.core.job import Job
from orchestrator.core.lifecycle import Awaited, Phase, Wish, successor
from orchestrator.core.notes import Notes
from orchestrator.core.order import Order
from orchestrator.core.pause import pausing
from orchestrator.core.session import ClosedSession, Session, Stray

DROPPED_MAX = 1000
CLOSED_SECONDS, CLOSED_MAX = 3600.0, 32  # sessions a platform may not have counted: no survey is older


@dataclass(frozen=True, slots=True)  # slots, because a controller keeps those of all waiting runs in memory
class RunRecord:
    """Everything the controller knows about a run; the fold of its events.

    `version` is the seq of the last event. `store` names the home store; empty: the first version submitted
    the run, and the ledger knows its store. `deferred`: the router found no offer; wait until `until`, or
    (None) for a slot or another offer. `start`: the machines that a person could start then. `paused_at`:
    when `until` was set. `fault`: why the run waits for a
    person in its current phase, if it does. `missing`: what the config lacks, if that is why; a wish leaves
    it until the next decision. `awaits`: what is looked for meanwhile. `forgone`: the user
    gave up what the session left. `parked`: the order of a session that is prepared, but whose platform
    refused to start it. `start_over`: held because no accepted checkpoint could be read; after a release the
    run may go on without. `closed`: the sessions that ended within the last hour before the last event.
    `dropped`: the latest names removed from `accepted` because they were damaged or gone in the home store.
    `deadline`: when it should be done, in unix seconds.
    `adoptions`: how many ledgers had the run before this one; `adopted_by`: the machine that took it last.
    `slice`: the time its schedule gives it; None: no schedule limits it. `asleep`: the slice is over, and the
    run waits for the next one, until `until` if that is known.
    `place`: the platform and accelerator of the session that was last seen to run.
    `outputs`: what its sessions left for people, oldest first. `asked_before`: the job named its outputs
    before a retry changed that, so all of them stay. `crash`: the exception that ended its
    last session, and the step that this reached.
    """

    run: str
    job: Job
    submitted_at: float
    phase: Phase = Phase.QUEUED
    version: int = 0
    generation: int = 0
    session: Session | None = None
    accepted: tuple[Accepted, ...] = ()
    fruitless: int = 0
    micro_batch_caps: tuple[tuple[str, int], ...] = ()
    cooldowns: tuple[Cooldown, ...] = ()
    strays: tuple[Stray, ...] = ()
    wish: Wish | None = None
    discard: bool = False
    until: float | None = None
    paused_at: float = 0.0
    deferred: bool = False
    start: str = ""
    reason: str = ""
    fault: str = ""
    notes: tuple[str, ...] = ()
    note_times: tuple[int, ...] = ()
    ended_at: float | None = None
    start_over: bool = False
    dropped: tuple[str, ...] = ()
    store: str = ""
    group: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    schedule: str = ""
    origin: str = ""
    missing: tuple[str, ...] = ()
    closed: tuple[ClosedSession, ...] = ()
    awaits: Awaited | None = None
    forgone: bool = False
    parked: Order | None = None
    adoptions: int = 0
    adopted_by: str = ""
    slice: Slice | None = None
    asleep: bool = False
    place: tuple[str, str] | None = None
    deadline: float | None = None
    outputs: tuple[Accepted, ...] = ()
    crash: tuple[str, int] | None = None
    asked_before: bool = False

    @property
    def stored(self) -> tuple[Accepted, ...]:
        """Everything of the run that the home store keeps: its checkpoints and its outputs."""
        return (*self.accepted, *self.outputs)

    @property
    def standing(self) -> Phase:
        """The phase that people see: a run that waits for a person is held, whatever its phase."""
        return Phase.HELD if self.fault and not self.phase.final else self.phase

    @property
    def stands(self) -> bool:
        """Whether nothing at all is done for the run until a person acts."""
        return bool(self.fault) and self.awaits is None

    @property
    def holds_slot(self) -> bool:
        """Whether it has a session that may still run, as far as is known."""
        session = self.session
        over = self.awaits is Awaited.OUTPUT and session is not None and session.end_confirmed
        return session is not None and not over

    @property
    def standing_reason(self) -> str:
        """The reason for the phase that people see."""
        return self.fault or self.reason

    def waiting_reason(self, now: float) -> str:
        """What a queued run waits for, if it is more than its turn; else empty. Its `reason` may then be an
        older one: how its last session ended."""
        pauses = self.until is not None and pausing(now, self.paused_at, self.until)
        return self.fault or (self.reason if self.asleep or self.deferred or pauses else "")


# --- The fold -------------------------------------------------------------------------------------------


def submit(event: Submitted) -> RunRecord:
    """The record of a run that was just submitted."""
    return RunRecord(
        run=event.run,
        job=event.job,
        submitted_at=event.at,
        version=1,
        store=event.store,
        group=event.group,
        parameters=event.parameters,
        schedule=event.schedule,
        origin=event.origin,
        slice=event.slice,
        deadline=event.deadline,
        accepted=() if event.start is None else (event.start,),
    )


def apply(record: RunRecord, event: Event) -> RunRecord:
    """The record after one more event. Raises IllegalTransition if the lifecycle has no row for it."""
    phase = successor(record.phase, event.kind)
    record = replace(record, phase=phase, version=record.version + 1)
    match event:
        case Deferred():
            return replace(record, until=event.until, paused_at=event.at, deferred=True, reason=event.reason,
                           start=event.start)  # fmt: skip
        case Assigned():
            return _assigned(record, event)
        case TurnedAway():
            return _turned_away(record, event)
        case Withdrawn() | Requeued() | Completed() | GaveUp() | Cancelled() | Held() | Released():
            return _closed(record, event)
        case CheckpointAccepted():
            return _progressed(record, event)
        case OutputsKept():
            return replace(record, outputs=(*record.outputs, event.outputs))
        case CheckpointCorrupt():
            left = tuple(c for c in record.accepted if c.name != event.name)
            to = f"step {event.order.resume_step:,}" if event.order.resume else "the beginning"
            note = f"checkpoint {event.name} cannot be used ({event.reason}); falling back to {to}"
            times = Notes(record.notes, record.note_times).of_kind(note)[1] + 1
            dropped = (*record.dropped, event.name)[-DROPPED_MAX:]
            return replace(_noted(record, note, times), accepted=left, dropped=dropped,
                           session=_session(record, order=event.order, failures=0, retry_at=0.0))  # fmt: skip
        case Retired():
            return _retired(record, event)
        case Prepared(image=image):
            job = record.job if image is None else replace(record.job, image=image)
            return replace(record, job=job, session=_session_after(record, event), start_over=False)
        case Noted():
            return _noted(record, event.text, event.times)
        case Faulted():
            return replace(record, fault=event.reason, missing=event.missing, awaits=event.awaits)
        case Regained():
            return replace(record, fault="", missing=(), awaits=None)
        case Confirmed():
            return _confirmed(record, event)
        case Wished():
            return _wished(record, event)
        case Adopted():
            return _adopted(record, event)
        case Moved():
            return replace(record, store=event.store)
        case Woken():
            return _woken(record, event)
        case Slept():
            return replace(record, asleep=True, until=event.until, paused_at=event.at, deferred=True,
                           reason=event.reason, start="")  # fmt: skip
        case Amended():
            asked = record.asked_before or record.job.outputs is not None
            return replace(record, job=event.job, asked_before=asked)
        case Unscheduled():
            given = None if record.slice is None else replace(record.slice, next_at=None, gone=True)
            return replace(record, slice=given)
        case Submitted():
            raise AssertionError("a run is submitted once")
        case Began():
            return replace(record, session=_session(record, began_at=event.at), place=_place(record))
        case StopRequested() | Ended():
            fault = record.fault if record.awaits is None else ""
            return replace(record, session=_session_after(record, event), awaits=None, fault=fault)
        case Started():
            session = _session(record, incarnation=event.incarnation, started_at=event.at)
            return replace(record, session=session, place=_place(record))
        case _:
            return replace(record, session=_session_after(record, event))


def _adopted(record: RunRecord, event: Adopted) -> RunRecord:
    """If it comes back, it no longer waits because it was away; it may still wait for something else."""
    still = record.awaits is not None or bool(record.missing)
    checkpoints = tuple(each for each in event.accepted if not each.ref.outputs)
    outputs = tuple(each for each in event.accepted if each.ref.outputs)
    record = replace(
        record, generation=event.generation, accepted=checkpoints, outputs=outputs,
        adoptions=event.adoptions, adopted_by=event.by, micro_batch_caps=event.micro_batch_caps,
        fault=record.fault if still else "",
    )  # fmt: skip
    if record.session is not None:
        return record
    return replace(record, reason=event.reason, until=None, deferred=False)


def _woken(record: RunRecord, event: Woken) -> RunRecord:
    """A pause that was set before it still holds; a wait for the next slice does not."""
    record = replace(record, slice=event.slice, ended_at=None, job=event.job or record.job)
    if not record.asleep:
        return record
    return replace(record, asleep=False, until=None, deferred=False, reason="")


def _noted(record: RunRecord, text: str, times: int) -> RunRecord:
    notes = Notes(record.notes, record.note_times).after(text, times)
    return replace(record, notes=notes.texts, note_times=notes.times)


def _wished(record: RunRecord, event: Wished) -> RunRecord:
    """Any wish ends the wait for a person. What is awaited is still looked for, unless the user gives it
    up."""
    wish = _wish(record, event)
    discard = wish is not None and (record.discard or event.discard)
    record = replace(record, wish=wish, discard=discard)
    gives_up = event.wish is Wish.RELEASE and event.discard and record.awaits is not None
    waits = record.awaits is not None and not event.discard
    return replace(record, forgone=record.forgone or gives_up, fault=record.fault if waits else "")


def _wish(record: RunRecord, event: Wished) -> Wish | None:
    """If the run is neither held nor failed, a release only cancels a requested hold. In a failed run, any
    other wish cancels a requested release."""
    if record.phase is Phase.FAILED and event.wish is not Wish.RELEASE:
        return None
    if event.wish is Wish.RELEASE and record.phase not in (Phase.HELD, Phase.FAILED):
        return None if record.wish is Wish.HOLD else record.wish
    return event.wish


def _session(record: RunRecord, **changes: object) -> Session:
    assert record.session is not None
    return replace(record.session, **changes)  # type: ignore[arg-type]


def _place(record: RunRecord) -> tuple[str, str]:
    assert record.session is not None
    return record.session.order.platform, record.session.order.accelerator


def _session_after(
    record: RunRecord, event: Prepared | Launched | ActionFailed | StopRequested | Ended
) -> Session:
    match event:
        case Prepared():
            return _session(record, failures=0, retry_at=0.0)
        case Launched():
            return _session(record, launched_at=event.at, failures=0, retry_at=0.0)
        case ActionFailed():
            session = record.session
            assert session is not None
            ended = session.outcome is not None
            message = session.message if ended else event.message  # keep how it ended
            return _session(record, failures=session.failures + 1, retry_at=event.retry_at, message=message)
        case StopRequested():
            return _session(record, stop=event.wish, stop_requested_at=event.at, failures=0, retry_at=0.0)
        case Ended():
            return _session(record, outcome=event.outcome, message=event.message, tail=event.tail,
                            step=event.step, until=event.until, ended_at=event.at,
                            end_confirmed=event.confirmed, failures=0, retry_at=0.0,
                            reached=event.reached, error=event.error, hopeless=event.hopeless)  # fmt: skip


def _progressed(record: RunRecord, event: CheckpointAccepted) -> RunRecord:
    assert record.session is not None
    order = record.session.order
    cooldowns = _cooldowns_beside(record, order.platform, order.accelerator)
    return replace(record, accepted=(*record.accepted, event.checkpoint), cooldowns=cooldowns)


def _retired(record: RunRecord, event: Retired) -> RunRecord:
    """The session remembers its own retired checkpoints, because its outbox may still hold them."""
    names = frozenset(event.names)
    left = tuple(c for c in record.accepted if c.name not in names)
    outputs = tuple(each for each in record.outputs if each.name not in names)
    session = record.session
    if session is not None:
        gone = tuple(c.ref.step for c in record.accepted
                     if c.name in names and c.ref.generation == session.generation)  # fmt: skip
        session = replace(session, retired_steps=(*session.retired_steps, *gone))
    return replace(record, accepted=left, outputs=outputs, session=session)


def _assigned(record: RunRecord, event: Assigned) -> RunRecord:
    session = Session(event.order, event.traits, event.at)
    if record.parked is not None and record.parked.session != event.order.session:
        record = _unparked(record)
    return replace(
        record, session=session, generation=event.order.generation, until=None, reason=event.reason,
        parked=None,
    )  # fmt: skip


def _turned_away(record: RunRecord, event: TurnedAway) -> RunRecord:
    assert record.session is not None
    record = replace(record, parked=record.session.order, session=None, reason=event.reason, until=None,
                     deferred=False)  # fmt: skip
    return _cooled(record, event.cooldown)


def _unparked(record: RunRecord) -> RunRecord:
    """What was prepared for a session that never started is to be discarded."""
    if record.parked is None:
        return record
    order = record.parked
    left = Stray(order.session, order.platform, order.accelerator, ended=True, until=None)
    return replace(record, strays=(*record.strays, left), parked=None)


def _confirmed(record: RunRecord, event: Confirmed) -> RunRecord:
    """A session that was given up as lost is over."""
    for stray in record.strays:
        if stray.session == event.session and not stray.ended:
            until = event.at if stray.until is None else min(stray.until, event.at)
            ran = max(0.0, until - stray.since)
            gone = ClosedSession(stray.session, stray.platform, stray.accelerator, stray.since, ran, event.at)
            record = replace(record, closed=_lately((*record.closed, gone)))
    return replace(record, strays=tuple(s for s in record.strays if s.session != event.session))


def _lately(closed: tuple[ClosedSession, ...]) -> tuple[ClosedSession, ...]:
    newest = max(each.gone_at for each in closed)
    return tuple(each for each in closed if each.gone_at > newest - CLOSED_SECONDS)[-CLOSED_MAX:]


def _closed(
    record: RunRecord, event: Withdrawn | Requeued | Completed | GaveUp | Cancelled | Held | Released
) -> RunRecord:
    """The run leaves its session, if it had one, or its hold."""
    record = _unparked(record)
    strays = record.strays
    session = record.session
    if session is not None:
        order = session.order
        until = None if session.wall_at is None else session.wall_at + session.traits.slack_seconds
        left = session.traits.hands_over and session.launched_at is not None
        wall = session.traits.session_seconds
        longest = None if wall is None else wall + session.traits.slack_seconds
        stray = Stray(session.name, order.platform, order.accelerator, session.end_confirmed, until,
                      session.traits.poll_seconds, left, session.assigned_at,
                      session.traits.uplink, longest, session.traits.machine)  # fmt: skip
        strays = (*strays, stray)
        has_run = session.runs_since is not None or session.launched_at is not None
        if has_run and session.end_confirmed:
            gone_at = event.at if session.ended_at is None else session.ended_at
            gone = ClosedSession(session.name, order.platform, order.accelerator, session.assigned_at,
                                 session.budget_seconds, gone_at)  # fmt: skip
            record = replace(record, closed=_lately((*record.closed, gone)))
    reason = "" if isinstance(event, Released) else event.reason
    fault = record.fault if record.awaits is None else ""
    record = replace(record, session=None, strays=strays, reason=reason, until=None, deferred=False,
                     forgone=False, awaits=None, fault=fault)  # fmt: skip
    if not isinstance(event, Withdrawn | Requeued):
        record = replace(record, wish=None, discard=False)
    if isinstance(event, Withdrawn | Requeued):
        record = _cooled(record, event.cooldown)
    if isinstance(event, Requeued | Held) and event.micro_batch_cap:
        caps = dict(record.micro_batch_caps) | dict([event.micro_batch_cap])
        record = replace(record, micro_batch_caps=tuple(sorted(caps.items())))
    if isinstance(event, Requeued):
        crash = None if session is None else session.crash
        return replace(record, fruitless=event.fruitless, until=event.until, paused_at=event.at, crash=crash)
    if isinstance(event, Released):
        given = None if record.slice is None or record.slice.gone else record.slice
        return replace(record, fruitless=0, cooldowns=(), ended_at=None, slice=given, crash=None,
                       asleep=record.asleep and given is not None)  # fmt: skip
    if isinstance(event, Held):
        return replace(record, start_over=record.start_over or event.start_over)
    if isinstance(event, Withdrawn):
        return record
    return replace(record, ended_at=event.at, missing=())


def _cooled(record: RunRecord, cooldown: Cooldown | None) -> RunRecord:
    if cooldown is None:
        return record
    others = _cooldowns_beside(record, cooldown.platform, cooldown.accelerator)
    return replace(record, cooldowns=(*others, cooldown))


def _cooldowns_beside(record: RunRecord, platform: str, accelerator: str) -> tuple[Cooldown, ...]:
    return tuple(c for c in record.cooldowns if (c.platform, c.accelerator) != (platform, accelerator))
