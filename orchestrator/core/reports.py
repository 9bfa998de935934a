"""Takes the results of a run's actions into the draft of its next decision.

Pure. Knows actions and their reports, but no readings, wishes or routes.
"""

from __future__ import annotations

from orchestrator.core import slices
from orchestrator.core.action import (
    Collect,
    Discard,
    Done,
    Failed,
    Launch,
    Prepare,
    Report,
    Retire,
    Stop,
    Trouble,
)
from orchestrator.core.checkpoint import Accepted, CheckpointRef, newest, superseded_while_open
from orchestrator.core.closing import closing, cooldown
from orchestrator.core.damage import lost_resume
from orchestrator.core.draft import Draft
from orchestrator.core.event import (
    ActionFailed,
    CheckpointAccepted,
    Confirmed,
    Cooldown,
    Ended,
    Launched,
    OutputsKept,
    Prepared,
    Regained,
    Retired,
    Slept,
    Started,
    TurnedAway,
    Withdrawn,
)
from orchestrator.core.lifecycle import Awaited, Phase
from orchestrator.core.order import Outcome
from orchestrator.core.patience import (
    COLLECT_AGAIN_SECONDS,
    doubtful,
    only_there,
    out_of_patience,
    waits_for_late,
)
from orchestrator.core.session import StopReply
from orchestrator.core.superseded import superseded

RETRY_SECONDS = 2.0  # after a failed action; doubles with every failure in a row
RETRY_SECONDS_MAX = COLLECT_AGAIN_SECONDS
PREPARE_ATTEMPTS = 6
UNFORESEEN_ATTEMPTS = 3
CORRUPT_TOLD = 3
_COMES = {
    Awaited.END: "when the session has ended, the run goes on by itself",
    Awaited.OUTPUT: "when it appears, the run goes on by itself",
}
_PASSING = frozenset({Trouble.TRANSIENT, Trouble.CORRUPT, Trouble.FULL, Trouble.UNFORESEEN})
_REFUSALS = {
    Trouble.QUOTA: Outcome.QUOTA_EXHAUSTED,
    Trouble.REFUSED: Outcome.REFUSED,
    Trouble.REJECTED: Outcome.REJECTED,
    Trouble.DENIED: Outcome.DENIED,
}
_LASTING = frozenset({Trouble.DENIED, Trouble.REJECTED, Trouble.UNFORESEEN})


def take_report(draft: Draft, report: Report) -> None:
    session = draft.record.session
    name = report.action.session
    if isinstance(report.action, Retire) and isinstance(report, Done):
        for text in report.notes:
            draft.note(text)
    if isinstance(report.action, Discard):
        if isinstance(report, Done) and any(s.session == name for s in draft.record.strays):
            draft.emit(Confirmed(draft.now, name))
        return
    if isinstance(report, Done) and report.reply is StopReply.ENDED:
        draft.gone.add(name)
    if session is None or session.name != name:
        return  # a late answer about a closed session changes nothing
    if isinstance(report, Failed) and report.trouble is Trouble.SUPERSEDED:
        superseded(draft, report)
        return
    match report.action:
        case Prepare() if draft.record.phase is Phase.PREPARING:
            _prepared(draft, report)
        case Launch() if draft.record.phase is Phase.LAUNCHING:
            _launched(draft, report)
        case Collect() if draft.record.phase in (Phase.RUNNING, Phase.STOPPING, Phase.COLLECTING):
            _collected(draft, report)
        case Stop() if draft.record.phase is Phase.STOPPING and isinstance(report, Done):
            if report.reply is StopReply.ENDED and not _has_result(draft):
                draft.emit(Ended(draft.now, Outcome.STOPPED, "stopped", confirmed=True))
        case _:
            return


def _prepared(draft: Draft, report: Report) -> None:
    if isinstance(report, Done):
        assert isinstance(report.action, Prepare)
        if report.action.order == draft.session.order:
            draft.emit(Prepared(draft.now, report.image))
            _note_all(draft, report)
        return
    order = draft.session.order
    if report.checkpoint is not None and report.checkpoint == order.resume:
        lost_resume(draft, report)
        return
    if report.trouble in _PASSING and draft.session.failures + 1 < PREPARE_ATTEMPTS:
        _failed(draft, report)
        return
    if report.trouble is Trouble.NAME_TAKEN:  # an old copy of the ledger was restored, and lacks this session
        soon = Cooldown(order.platform, order.accelerator, draft.now + RETRY_SECONDS, report.message,
                        since=draft.now)  # fmt: skip
        draft.note(f"{report.message}; was an old copy of the home restored? Continuing with the next name")
        draft.emit(Withdrawn(draft.now, report.message, soon))
        return
    draft.note(f"{order.platform} could not prepare {order.session}: {report.message}")
    if report.trouble is Trouble.REFUSED:
        pause = cooldown(draft.record, order, draft.now, report.message, report.until, refused=True)
    elif report.trouble in _LASTING:  # this lasts until a person acts, so other offers are tried
        pause = Cooldown(order.platform, order.accelerator, None, report.message, since=draft.now)
    else:
        pause = cooldown(draft.record, order, draft.now, report.message, report.until)
    draft.emit(Withdrawn(draft.now, report.message, pause))


def _note_all(draft: Draft, report: Done) -> None:
    for text in report.notes:
        draft.note(f"{draft.session.name}: {text}")


def _launched(draft: Draft, report: Report) -> None:
    if isinstance(report, Done) or report.trouble in _PASSING:  # it may have taken effect
        if isinstance(report, Failed) and report.trouble is Trouble.UNFORESEEN:
            draft.note(f"the launch of {draft.session.name} failed unexpectedly: {report.message}")
        if draft.session.launched_at is None:
            draft.emit(Launched(draft.now))
        return
    refused, order = report.trouble is Trouble.REFUSED, draft.session.order
    turned_away = report.trouble in (Trouble.REFUSED, Trouble.QUOTA, Trouble.CAPACITY)
    if turned_away and draft.session.launched_at is None:
        draft.note(f"{order.platform} refused {order.session}: {report.message}")
        pause = cooldown(draft.record, order, draft.now, report.message, report.until, refused=refused)
        draft.emit(TurnedAway(draft.now, report.message, pause))
        return
    outcome = _REFUSALS.get(report.trouble, Outcome.NO_CAPACITY)
    draft.note(f"{order.platform} refused {order.session}: {report.message}")
    draft.emit(Ended(draft.now, outcome, report.message, confirmed=True, until=report.until))


def _collected(draft: Draft, report: Report) -> None:
    if isinstance(report, Done):
        _note_corrupt(draft, report.corrupt)
        _note_all(draft, report)
        for checkpoint in report.checkpoints:
            _accept(draft, checkpoint)
        _note_gone(draft, report.gone)
    assert isinstance(report.action, Collect)
    if draft.record.phase is not Phase.COLLECTING or not report.action.last:
        return  # a collect that began before the session ended may have missed its last checkpoint
    if isinstance(report, Done):
        if draft.record.awaits is not None:
            draft.emit(Regained(draft.now, ()))
        late = [] if report.more else _worth_waiting_for(draft, report)
        if late and waits_for_late(draft.session, draft.now):
            name, reason = late[-1]
            _again_later(draft, "collect", f"checkpoint {name} is not complete yet: {reason}")
        elif not report.more:
            for name, reason in late:
                draft.note(f"checkpoint {name} was not accepted: {reason} in the home store; it stays there")
            _close(draft)
    elif _left_nothing(draft, report):
        _close(draft)
    elif report.trouble is Trouble.UNFORESEEN and draft.session.failures + 1 >= UNFORESEEN_ATTEMPTS:
        reason = f"the outbox of {draft.session.name} cannot be collected: {report.message}"
        _uncollected(draft, reason, awaits=None)
    elif not out_of_patience(draft.session, draft.now) and not _given_up(draft):
        _failed(draft, report)
    elif report.trouble is Trouble.FULL or only_there(draft.session):
        _uncollected(
            draft,
            f"the outbox of {draft.session.name} cannot be collected, and there is no copy outside "
            f"{draft.session.order.platform}: {report.message}",
            awaits=Awaited.OUTPUT,
        )
    else:
        draft.note(f"the outbox of {draft.session.name} could not be collected: {report.message}")
        _close(draft)


def _note_gone(draft: Draft, gone: tuple[str, ...]) -> None:
    """Takes accepted checkpoints off the record that the session's uplink has deleted. If newer ones do not
    supersede them, their absence proves nothing: the store may be late, and a resume will tell."""
    order, accepted = draft.session.order, draft.record.accepted
    best = None if order.keep.best is None else (order.keep.best.metric, order.keep.best.mode)
    pinned = frozenset([order.resume] if order.resume else [])
    superseded = {c.name for c in superseded_while_open(accepted, last=0, best=best, pinned=pinned)}
    names = tuple(name for name in gone if name in superseded)
    if names:
        draft.emit(Retired(draft.now, names, by=draft.session.name))


def _worth_waiting_for(draft: Draft, report: Done) -> list[tuple[str, str]]:
    """The incomplete checkpoints that the run would go on from, and outputs, oldest first."""
    best = newest(draft.record.accepted)
    step = -1 if best is None else best.ref.step
    given_up = draft.record.forgone or draft.record.discard
    refs = ((CheckpointRef.parse(name), name, reason) for name, reason in report.late)
    worth = ((name, reason) for ref, name, reason in refs if ref and (ref.outputs or ref.step > step))
    return [] if given_up else sorted(worth)


def _left_nothing(draft: Draft, report: Failed) -> bool:
    """Whether the session left nothing, or nothing that is still wanted."""
    if draft.record.forgone or draft.session.launched_at is None:  # given up, or refused by its platform
        return True
    return report.trouble is Trouble.NOT_FOUND and not doubtful(draft.session)


def _given_up(draft: Draft) -> bool:
    """Whether the user gives up an outbox that could not be collected twice in a row."""
    return draft.record.discard and draft.session.failures >= 1


def _uncollected(draft: Draft, reason: str, *, awaits: Awaited | None) -> None:
    """The run waits until a person gives up the outbox, or until what it `awaits` can be collected."""
    if draft.record.discard:
        draft.note(f"{reason}; given up, as requested")
        _close(draft)
    else:
        draft.fault(f"{reason}; {ways(awaits)}", awaits=awaits)


def ways(awaits: Awaited | None) -> str:
    """What a person can do about what a session left."""
    if awaits is None:
        return "`orchestrator cancel --discard` gives it up"
    return (
        f"{_COMES[awaits]}; `orchestrator release --discard` goes on without its output, and "
        "`orchestrator cancel --discard` ends the run"
    )


def _note_corrupt(draft: Draft, corrupt: tuple[tuple[str, str], ...]) -> None:
    """One note for all of them, so that the text stays the same while they do."""
    if not corrupt:
        return
    told = ", ".join(f"{name} ({reason})" for name, reason in corrupt[:CORRUPT_TOLD])
    more = f" and {len(corrupt) - CORRUPT_TOLD} more" if len(corrupt) > CORRUPT_TOLD else ""
    draft.note(f"ignored corrupt {'checkpoint' if len(corrupt) == 1 else 'checkpoints'} {told}{more}")


def _accept(draft: Draft, found: Accepted) -> None:
    """Accepts checkpoints and outputs only of the current generation and its one incarnation (fencing)."""
    session = draft.session
    ref, incarnation = found.ref, found.ref.incarnation
    if ref.generation != session.generation:
        return
    if session.incarnation is None and draft.record.phase is not Phase.RUNNING:
        draft.emit(Started(draft.now, incarnation))
        session = draft.session
    if incarnation != session.incarnation:
        draft.note(f"{session.name} was started twice; checkpoints of {incarnation} are ignored")
    elif all(known.name != found.name for known in draft.record.stored):
        draft.emit(OutputsKept(draft.now, found) if ref.outputs else CheckpointAccepted(draft.now, found))


def _close(draft: Draft) -> None:
    """The last collect is done: the generation closes for good."""
    session = draft.session
    draft.emit(closing(draft.record, draft.now))
    record = draft.record
    if record.phase is Phase.QUEUED and slices.ends_slice(record, session) and record.slice is not None:
        until = record.slice.next_at
        draft.emit(Slept(draft.now, slices.sleeping(record, until), until))


def _failed(draft: Draft, report: Failed) -> None:
    _again_later(draft, type(report.action).__name__.lower(), report.message)


def _again_later(draft: Draft, action: str, message: str) -> None:
    """The action is repeated after a pause, which doubles."""
    pause = min(RETRY_SECONDS * 2.0 ** min(draft.session.failures, 20), RETRY_SECONDS_MAX)
    draft.emit(ActionFailed(draft.now, action, message, draft.now + pause))


def _has_result(draft: Draft) -> bool:
    watch = draft.inputs.watch
    observation = watch.observation if watch else None
    return observation is not None and observation.result is not None
