"""What should happen next to one run: record × readings × reports × route × now → events and actions.

Pure and level-triggered: the same record gives the same actions, so a controller that died between journal
and act simply decides again. The engine journals the events before it performs the actions. Resume needs no
special case: it is a queued run that has checkpoints.
"""

from __future__ import annotations

import math

from orchestrator.core import slices
from orchestrator.core.action import (
    Collect,
    Discard,
    Launch,
    Prepare,
    Retire,
    Stop,
)
from orchestrator.core.assign import again, assign
from orchestrator.core.checkpoint import Accepted, CheckpointRef, superseded
from orchestrator.core.choosing import plan_text
from orchestrator.core.closing import cancelled
from orchestrator.core.draft import Decision, Draft, Inputs
from orchestrator.core.durable import is_durable
from orchestrator.core.ending import beyond_reach, ending, given_up, overdue, past_limit, unheard
from orchestrator.core.event import (
    Assigned,
    Began,
    Cancelled,
    CheckpointAccepted,
    Deferred,
    Ended,
    Held,
    Launched,
    Regained,
    Released,
    Retired,
    Slept,
    Started,
    StopRequested,
    Withdrawn,
)
from orchestrator.core.fault import faulted
from orchestrator.core.lifecycle import Awaited, Phase, Wish
from orchestrator.core.needs import wanting
from orchestrator.core.offer import UNDATED, Route, UntilKind, Uplink
from orchestrator.core.openings import openings_text
from orchestrator.core.order import Outcome
from orchestrator.core.patience import doubtful, goes_on_without
from orchestrator.core.pause import pausing
from orchestrator.core.reports import RETRY_SECONDS_MAX, take_report, ways
from orchestrator.core.route import opens_at
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Observation, Session, Sighting, Stray
from orchestrator.core.watch import Watch

UNASKED_KEPT = 3  # sessions whose outputs are kept although the job names none
STOP_AGAIN_SECONDS = 30.0
DISCARD_AGAIN_SECONDS = 30.0
AWAITED_AGAIN_SECONDS = 3600.0  # an outbox that could not be collected for hours
LOOK_AGAIN_SECONDS_MIN = 5.0  # if an offer's date has passed and the next survey has not answered yet
LOOK_AGAIN_SECONDS = 3600.0  # when nobody knows how long a rejection holds
OPENS_SECONDS_MIN = 7200.0  # longer than a cooldown
DEFER_TOLERANCE_SECONDS = 600.0  # a date that moves by less is not worth an event
_ALIVE = frozenset({Sighting.PENDING, Sighting.RUNNING})
# Nobody knows whether a session that is ending has copied what it started from.
_BEFORE_THE_NEXT = frozenset(
    {Phase.QUEUED, Phase.PREPARING, Phase.LAUNCHING, Phase.STOPPING, Phase.COLLECTING}
)
_BEFORE_TRAINING = frozenset({"starting", "probing", "fetching", "restoring"})  # states of the agent


def conclude(record: RunRecord, inputs: Inputs) -> Decision:
    """The next events and actions of any run: it may miss something in the config, or be held for an
    unexpected error."""
    if inputs.met:
        return faulted(record, inputs.met, inputs.now)
    if inputs.lacking:
        return wanting(record, inputs.lacking, inputs.now, inputs.elsewhere)
    return decide(record, inputs)


def decide(record: RunRecord, inputs: Inputs) -> Decision:
    """The next events and actions of one run that misses nothing in the config. Never raises on any inputs;
    an illegal event is a bug."""
    draft = Draft(record, inputs)
    given_up = record.wish is Wish.CANCEL and record.discard
    if record.missing and not given_up:  # a wish came while it waited for what the config has again
        draft.emit(Regained(draft.now, record.missing))
    for report in inputs.reports:
        take_report(draft, report)
    _read(draft)
    _grant_wish(draft)
    _sleep(draft)
    _take_route(draft)
    _retire(draft)
    _want(draft)
    return Decision(draft.record, tuple(draft.events), tuple(draft.actions), _due(draft), draft.tallies)


# --- Readings of the session ----------------------------------------------------------------------------


def _read(draft: Draft) -> None:
    phase = draft.record.phase
    watch = draft.inputs.watch
    if phase not in (Phase.LAUNCHING, Phase.RUNNING, Phase.STOPPING):
        return
    if phase is Phase.LAUNCHING and draft.session.launched_at is None and draft.inputs.launch_unknown:
        draft.emit(Launched(draft.now))  # it may have taken effect: look before launching again
    if draft.session.launched_at is None and draft.record.phase is Phase.LAUNCHING:
        return
    record = draft.record
    forgone = record.forgone or (record.discard and record.awaits is Awaited.OUTPUT)
    gone = "" if watch is None else unheard(draft.session, watch, draft.now, draft.monotonic)
    if watch is not None and draft.inputs.beyond and not gone:
        gone = beyond_reach(draft.session, watch, draft.monotonic, draft.inputs.beyond)
    if gone or watch is None or watch.observation is None:
        _unread(draft, gone, forgone)
        return
    observation = watch.observation
    if observation.incarnations:
        _read_incarnations(draft, observation)
    elif observation.sighting is Sighting.RUNNING and draft.session.runs_since is None:
        draft.emit(Began(draft.now))
    _note_warnings(draft, observation)
    ended = ending(draft.session, watch, draft.now, forgone=forgone)
    late = overdue(draft.session, watch)
    if late is not None and ended is None and draft.record.discard:
        forgone = True
        ended = Ended(draft.now, Outcome.LOST, f"{late[1]}; given up, as requested",
                      confirmed=late[0] is Awaited.OUTPUT)  # fmt: skip
    over = observation.sighting not in _ALIVE or past_limit(draft.session, draft.now)
    is_there = ended is not None and not forgone
    if draft.record.awaits is not None and (is_there or (late is None and not over)):
        draft.emit(Regained(draft.now, ()))
    if ended is not None:
        draft.emit(ended)
    elif late is not None:
        draft.fault(f"{late[1]}; {ways(late[0])}", awaits=late[0])


def _unread(draft: Draft, gone: str, forgone: bool) -> None:
    """Without a reading, only the clock and the user can say that a session is over. If its work exists
    nowhere else, only the user can: the platform may answer again."""
    if forgone:
        draft.emit(given_up(draft.now, confirmed=draft.record.awaits is Awaited.OUTPUT))
    elif gone and (_is_durable(draft) or draft.record.discard):
        draft.emit(Ended(draft.now, Outcome.LOST, gone, confirmed=False))
    elif gone and draft.record.awaits is None:
        draft.fault(f"{draft.session.name}: {gone}; {ways(Awaited.END)}", awaits=Awaited.END)


def _read_incarnations(draft: Draft, observation: Observation) -> None:
    if draft.session.incarnation is None:
        draft.emit(Started(draft.now, observation.incarnations[0]))
    for other in observation.incarnations:
        if other != draft.session.incarnation:
            draft.note(f"{draft.session.name} was started twice; {other} is ignored")


def _note_warnings(draft: Draft, observation: Observation) -> None:
    for text in observation.notes:
        draft.note(f"{draft.session.name}: {text}")
    status = observation.status
    if status is not None and status.incarnation == draft.session.incarnation:
        for warning in status.warnings:
            draft.note(f"{draft.session.name}: {warning}")


# --- The user's wish, and the route ---------------------------------------------------------------------


def _grant_wish(draft: Draft) -> None:
    wish = draft.record.wish
    if wish is None:
        return
    match draft.record.phase:
        case Phase.QUEUED:
            _let_go(draft, wish)
        case Phase.PREPARING:
            draft.emit(Withdrawn(draft.now, f"{wish.value} requested before the launch"))
            _let_go(draft, wish)
        case Phase.LAUNCHING | Phase.RUNNING if draft.session.launched_at is not None:  # else: not yet known
            if _is_durable(draft) or draft.record.discard:
                draft.emit(StopRequested(draft.now, wish))
            elif draft.session.traits.uplink is Uplink.STORE:
                draft.note(_waits(draft, wish))
        case Phase.FAILED if wish is Wish.RELEASE:
            draft.emit(Released(draft.now))
        case Phase.HELD if wish is not Wish.HOLD:
            draft.emit(Cancelled(draft.now, "cancelled") if wish is Wish.CANCEL else Released(draft.now))
        case _:
            return


def _waits(draft: Draft, wish: Wish) -> str:
    run, session = draft.record.run, draft.session.name
    return (
        f"{wish.value} waits for the end of {session}, whose newest work is not in the home store: "
        f"`orchestrator {wish.value} {run} --discard` does not wait, and loses that work"
    )


def _is_durable(draft: Draft) -> bool:
    watch = draft.inputs.watch
    status = None if watch is None or watch.observation is None else watch.observation.status
    return is_durable(draft.session.traits, status)


def _let_go(draft: Draft, wish: Wish) -> None:
    if wish is Wish.CANCEL:
        draft.emit(cancelled(draft.record, draft.now))
    else:
        draft.emit(Held(draft.now, "held on request"))


def _sleep(draft: Draft) -> None:
    """Between two slices of its schedule the run sleeps. Nothing is launched once its window has closed."""
    record, now = draft.record, draft.now
    if record.phase is Phase.PREPARING and slices.is_over(record, now):
        draft.emit(Withdrawn(now, "its window closed before the launch"))
        record = draft.record
    given = record.slice
    if record.phase is not Phase.QUEUED or given is None:
        return
    if not (record.asleep or slices.is_over(record, now)):
        return
    if given.gone:
        draft.emit(Held(now, slices.orphaned(record)))
    elif not (record.asleep and record.deferred):
        until = given.next_at if given.next_at is not None and given.next_at > now else None
        draft.emit(Slept(now, slices.sleeping(record, until), until))


def _take_route(draft: Draft) -> None:
    record, route, now = draft.record, draft.inputs.route, draft.now
    if record.phase is not Phase.QUEUED or route is None or record.asleep:
        return
    if record.until is not None and pausing(now, record.paused_at, record.until) and not record.deferred:
        draft.look_again_at = record.until  # a pause, whatever is on offer
        return
    if route.chosen is not None:
        order = again(record.parked, assign(record, route.chosen, _opens_seconds(route, now), now))
        reason = f"{order.platform}/{order.accelerator}: {route.chosen.estimate.rate_source}"
        if (expected := plan_text(route, now)) and order != record.parked:
            reason = f"{reason}; {expected}"
        draft.emit(Assigned(now, order, route.chosen.offer.traits, reason))
        return
    kinds = {r.until.kind for r in route.rejections}
    undated = any(r.until == UNDATED for r in route.rejections)
    opening = opens_at(route)
    start = openings_text(r for r in route.rejections if r.until.kind is UntilKind.START)
    told = openings_text(sorted(route.rejections, key=lambda r: r.until.kind is not UntilKind.START))
    if opening is None and not undated and not kinds & {UntilKind.SLOT, UntilKind.START}:
        draft.emit(Held(now, f"no offer can run this job: {told or 'no platform is configured'}"))
        return
    until = None if opening is None else max(opening, now + LOOK_AGAIN_SECONDS_MIN)
    draft.look_again_at = until
    if undated:
        draft.look_again_at = min(until or math.inf, now + LOOK_AGAIN_SECONDS)
    if not record.deferred or _moved(record.until, until) or start != record.start:
        draft.emit(Deferred(now, until, told, start))


def _opens_seconds(route: Route, now: float) -> float | None:
    """Seconds until the next rejected offer opens by itself, for example when its quota is refreshed.

    None if no offer will. Times below OPENS_SECONDS_MIN do not count: ending a session for them costs more
    than it gains.
    """
    times = [r.until.at - now for r in route.rejections if r.until.kind is UntilKind.TIME and r.until.at]
    return min((seconds for seconds in times if seconds >= OPENS_SECONDS_MIN), default=None)


def _moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(before - after) > DEFER_TOLERANCE_SECONDS


# --- The actions of this phase --------------------------------------------------------------------------


def unasked(record: RunRecord) -> tuple[Accepted, ...]:
    """The outputs that retention may delete: old ones that the job did not ask for, now or before a retry."""
    if record.job.outputs is not None or record.asked_before:
        return ()
    kept = sorted({each.ref.generation for each in record.outputs})[-UNASKED_KEPT:]
    # never some of one session's: what its outbox still has would come again
    return tuple(each for each in record.outputs if each.ref.generation not in kept)


def _retire(draft: Draft) -> None:
    """Retention, when a checkpoint was accepted or a generation closed. The checkpoint to resume is pinned.
    If a live session ships to the store by itself, retention waits until its generation is closed."""
    record = draft.record
    session = record.session
    closed = draft.before.session is not None and session is None and record.parked is None
    accepted = any(isinstance(event, CheckpointAccepted) for event in draft.events)
    if session is not None and session.traits.uplink is Uplink.STORE:
        return
    if not accepted and not closed:
        return
    keep = record.job.checkpoint.keep
    best = (keep.best.metric, keep.best.mode) if keep.best else None
    pinned = frozenset([session.order.resume] if session and session.order.resume else [])
    old = (*superseded(record.accepted, last=keep.last, best=best, pinned=pinned), *unasked(record))
    gone = tuple(c.name for c in old)
    if gone:
        draft.emit(Retired(draft.now, gone))
    if gone or closed:
        names = frozenset(c.name for c in draft.record.stored)
        retire = Retire(record.run, names, record.generation, record.store, record.adoptions)
        draft.actions.append(retire)


def _want(draft: Draft) -> None:
    """The actions that this phase needs; the engine drops those that are already in progress."""
    record, now = draft.record, draft.now
    for stray in record.strays:
        _want_of_stray(draft, stray)
    session = record.session
    if session is None or now < session.retry_at < now + 2 * RETRY_SECONDS_MAX:
        return
    match record.phase:
        case Phase.PREPARING:
            draft.actions.append(_prepare(record, session))
        case Phase.LAUNCHING if session.launched_at is None:
            draft.actions.append(Launch(session.order, record.store, record.adoptions))
        case Phase.RUNNING:
            if _collect_due(session, draft.inputs.watch, draft.monotonic):
                draft.actions.append(_collect(record, session, draft.inputs.watch))
        case Phase.STOPPING:
            watch = draft.inputs.watch or Watch(draft.monotonic)
            if not watch.stop_impossible and _again(draft, watch.stop_asked_at, STOP_AGAIN_SECONDS):
                asked = session.generation if _hears_the_store_only(session) else None
                draft.actions.append(
                    Stop(session.name, session.order.platform, record.store, asked, record.discard)
                )
        case Phase.COLLECTING:
            looked = draft.inputs.watch
            rarely = record.awaits is not None and not (record.forgone or record.discard)
            asked_at = looked.collected_at if looked is not None and rarely else None
            if _again(draft, asked_at, AWAITED_AGAIN_SECONDS):
                draft.actions.append(_collect(record, session, looked))
        case _:
            return


def _prepare(record: RunRecord, session: Session) -> Prepare:
    """A session that fetches its checkpoint itself may find it damaged, and then ends without a newer one.
    So the checkpoint is verified once a session brought nothing, or if none may."""
    traits = session.traits
    fetches = traits.fetches and traits.uplink is Uplink.STORE
    return Prepare(
        session.order,
        frozenset(c.name for c in record.accepted),
        frozenset(record.dropped),
        record.store,
        traits.uplink,
        record.adoptions,
        fetches,
        thorough=fetches and (record.fruitless > 0 or record.job.without_progress == 1),
        schedule=record.schedule,
    )


def _hears_the_store_only(session: Session) -> bool:
    return session.traits.uplink is Uplink.STORE and not session.traits.readable_mid_run


def _want_of_stray(draft: Draft, stray: Stray) -> None:
    watch = draft.inputs.strays.get(stray.session, Watch(draft.monotonic))
    observation = watch.observation
    sighting = None if observation is None else observation.sighting
    over = stray.ended or stray.session in draft.gone or sighting is Sighting.ENDED
    beyond = stray.until is not None and draft.now > stray.until
    if sighting is Sighting.ABSENT and watch.pending_seconds > 0.0 and stray.seconds_max is not None:
        beyond = watch.absent_for(stray.seconds_max)  # it waited, so it may have started since
    alive = sighting in _ALIVE and not watch.stop_impossible  # its session limit did not end it
    if over or (beyond and not alive):
        if stray.ended and stray.hands_over and _may_be_read(draft):
            return  # only if its end was seen: else it holds its slot until it is discarded
        if _again(draft, watch.discard_asked_at, DISCARD_AGAIN_SECONDS):
            draft.actions.append(Discard(stray.session, stray.platform, draft.record.store, stray.uplink))
    elif _again(draft, watch.stop_asked_at, STOP_AGAIN_SECONDS):
        draft.actions.append(Stop(stray.session, stray.platform))


def _may_be_read(draft: Draft) -> bool:
    """Whether the run's next session is still to come, or has not yet copied its checkpoint."""
    watch = draft.inputs.watch
    status = watch.observation.status if watch is not None and watch.observation is not None else None
    reads = draft.record.phase is Phase.RUNNING and (status is None or status.state in _BEFORE_TRAINING)
    return reads or draft.record.phase in _BEFORE_THE_NEXT


def _again(draft: Draft, asked_at: float | None, seconds: float) -> bool:
    return asked_at is None or draft.monotonic - asked_at >= seconds


def _collect_due(session: Session, watch: Watch | None, monotonic: float) -> bool:
    if session.traits.uplink is Uplink.NONE or watch is None or watch.observation is None:
        return False
    status = watch.observation.status
    committed = status.checkpoint if status is not None else None
    if watch.collected_at is None or (committed is not None and committed != watch.collected):
        return True
    return monotonic - watch.collected_at >= session.traits.collect_seconds


def _collect(record: RunRecord, session: Session, watch: Watch | None) -> Collect:
    best = record.job.checkpoint.keep.best
    return Collect(
        run=record.run,
        session=session.name,
        platform=session.order.platform,
        generation=session.generation,
        incarnation=session.incarnation,
        known=_known(record, session),
        last=record.phase is Phase.COLLECTING,
        metric=best.metric if best else None,
        store=record.store,
        uplink=session.traits.uplink,
        forgone=record.forgone or goes_on_without(session),
        kept=frozenset(c.name for c in record.accepted if c.ref.generation == session.generation),
        adoptions=record.adoptions,
        doubts=_hears_the_store_only(session) and session.end_confirmed and doubtful(session),
        stale_before=_stale_before(session, watch),
    )


def _stale_before(session: Session, watch: Watch | None) -> float | None:
    """What the store heard before then is stale: the platform itself has newer news of the session. None as
    long as its uplink may not have begun."""
    traits = session.traits
    if watch is None or not traits.readable_mid_run or watch.running_seconds < traits.silence_seconds:
        return None
    status = None if watch.observation is None else watch.observation.status
    return None if status is None else status.written_at - traits.silence_seconds


def _known(record: RunRecord, session: Session) -> frozenset[str]:
    """What was accepted of its checkpoints and outputs, including checkpoints that were retired since."""
    names = {c.name for c in record.stored}
    if session.incarnation is not None:
        refs = (CheckpointRef(s, session.generation, session.incarnation) for s in session.retired_steps)
        names.update(ref.name for ref in refs)
    return frozenset(names)


def _due(draft: Draft) -> float | None:
    record = draft.record
    if record.phase is not Phase.QUEUED:
        return None
    if draft.look_again_at is not None:
        return draft.look_again_at
    if not draft.events:  # no route yet
        return record.until if record.until is not None and record.until > draft.now else None
    return record.until if record.deferred or record.until is not None else 0.0
