"""Events and phases in words, used by the live view, `why`, `show` and the controller's log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from orchestrator.clock import utc_text
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
    Started,
    StopRequested,
    Submitted,
    TurnedAway,
    Unscheduled,
    Wished,
    Withdrawn,
    Woken,
)
from orchestrator.core.lifecycle import Wish
from orchestrator.core.notes import counted_text
from orchestrator.core.order import Order, Outcome
from orchestrator.core.wording import count_text, number_text, size_text

# Events that a live view shows at once; `why` tells the rest.
NEWS = (
    Deferred, Assigned, ActionFailed, Withdrawn, StopRequested, Ended, CheckpointCorrupt, Noted, Wished, Held,
    Released, Faulted, Regained, TurnedAway, Woken, Slept, Unscheduled,
)  # fmt: skip
_WISHES = {
    Wish.CANCEL: "to cancel the run",
    Wish.HOLD: "to hold the run",
    Wish.RELEASE: "to release the run",
}


def until_text(until: float | None, now: float) -> str:
    """` until …`; empty if the time is unknown or has passed."""
    return f" until {utc_text(until)}" if until is not None and until > now else ""


def waiting_text(since: float) -> str:
    """Describes a session that its platform has not started yet."""
    return f"waiting in the platform's queue since {utc_text(since)}"


def place(order: Order) -> str:
    """Platform and accelerator."""
    return f"{order.platform}/{order.accelerator}"


def short_session(session: str) -> str:
    """`s03` of `job-7f3kq2vd-s03`."""
    return session.rpartition("-")[2]


def event_text(event: Event) -> str:
    """One event in words."""
    match event:
        case Submitted(job=job, schedule=schedule, origin=origin):
            by = f" by the schedule {schedule}, planned for {origin}" if schedule else f" {origin}".rstrip()
            return f"submitted{by}: {number_text(job.work.total)} {job.work.unit}"
        case Deferred(reason=reason, until=until, start=start):
            waits = "for a person" if start and until is None else _until(until)
            return f"waits {waits}: {reason}"
        case Assigned(order=order):
            return f"session {short_session(order.session)} on {place(order)}, {resume_text(order)}"
        case Prepared():
            return "its files are staged"
        case Launched():
            return "launched"
        case Began():
            return "its machine is running"
        case Started(incarnation=incarnation):
            return f"the agent is running (incarnation {incarnation})"
        case ActionFailed(action=action, message=message):
            return f"{_ACTIONS.get(action, action)} failed, trying again: {message}"
        case Withdrawn(reason=reason):
            return f"the session is dropped before its launch: {reason}"
        case Requeued(reason=reason):
            return with_reason("continues with a new session", reason)
        case StopRequested(wish=wish):
            return f"the session is asked to save and leave, in order {_WISHES[wish]}"
        case Ended():
            return ended_text(event)
        case CheckpointAccepted(checkpoint=checkpoint):
            return f"checkpoint {checkpoint.name} is in the home store"
        case Amended(changes=changes):
            return f"the user changed its job: {', '.join(changes)}"
        case OutputsKept(outputs=outputs):
            return f"its outputs are in the home store ({size_text(outputs.size)})"
        case CheckpointCorrupt(name=name, reason=reason, order=order):
            return f"checkpoint {name} cannot be used ({reason}); continues {resume_text(order)}"
        case Retired(names=names, by=by):
            text = f"{count_text(len(names), 'superseded checkpoint')} retired"
            return f"{text} by the uplink of {by}" if by else text
        case Noted(text=text, times=times):
            return counted_text(text, times)
        case Wished(wish=wish):
            return f"the user asks {_WISHES[wish]}"
        case Released():
            return "released"
        case Completed() | GaveUp() | Cancelled() | Held():
            return with_reason(_CLOSING[type(event)], event.reason)
        case Confirmed(session=session, given_up=given_up):
            return f"session {short_session(session)} {'given up' if given_up else 'cleaned up'}"
        case Faulted(reason=reason):
            return f"held as it is: {reason}"
        case TurnedAway(reason=reason):
            return f"its platform does not start it now; what is staged there stays: {reason}"
        case Adopted(reason=reason):
            return reason
        case Moved(store=store, source=source):
            return f"its checkpoints are now in the store {store}, copied from {source}"
        case Woken():
            return _woken_text(event)
        case Slept(reason=reason):
            return reason
        case Unscheduled():
            return "its schedule was removed"
        case Regained(found=()):
            return "continues: what it awaited is there"
        case Regained(found=found):
            return f"continues: it has the {' and the '.join(found)} again"


def _woken_text(event: Woken) -> str:
    edited = "" if event.job is None else ", as its schedule was edited"
    if event.slice is None:
        return f"awake: no window limits it any more{edited}"
    return f"awake{_until_closing(event.slice.until)}{edited}"


def _until_closing(closes: float | None) -> str:
    return " for one session" if closes is None else f" until its window closes, {utc_text(closes)}"


_ACTIONS = {
    "prepare": "staging its files",
    "launch": "the launch",
    "collect": "bringing its output home",
    "stop": "stopping it",
    "discard": "the clean-up",
}
_CLOSING = {Completed: "done", GaveUp: "given up", Cancelled: "cancelled", Held: "held"}


def with_reason(word: str, reason: str) -> str:
    """`word: reason`, or one of the two if the other adds nothing."""
    if not reason:
        return word
    return reason if reason.startswith(word) else f"{word}: {reason}"


def _until(until: float | None) -> str:
    return "for a free slot" if until is None else f"until {utc_text(until)}"


def resume_text(order: Order) -> str:
    """Where a session starts from."""
    return f"from step {number_text(order.resume_step)}" if order.resume else "from the beginning"


_OUTCOMES = {
    Outcome.COMPLETED: "completed",
    Outcome.STOPPED: "left its session",
    Outcome.QUOTA_EXHAUSTED: "ran out of quota",
    Outcome.NO_CAPACITY: "found no capacity",
    Outcome.REFUSED: "was refused",
    Outcome.REJECTED: "was rejected",
    Outcome.DENIED: "was denied access",
    Outcome.LOST: "was lost",
    Outcome.OUT_OF_MEMORY: "ran out of memory",
    Outcome.STALLED: "stalled",
    Outcome.CRASHED: "crashed",
    Outcome.DIVERGED: "diverged",
}


def outcome_text(outcome: Outcome) -> str:
    """How a session ended, in one to three words."""
    return _OUTCOMES[outcome]


def ended_text(event: Ended) -> str:
    """How a session ended, and its newest checkpoint."""
    text = ending_text(event.outcome, event.message, event.step)
    is_sentence = event.outcome in (Outcome.COMPLETED, Outcome.STOPPED) and event.message
    return text if is_sentence else f"the session {text}"


def ending_text(outcome: Outcome, message: str, step: int | None) -> str:
    if outcome in (Outcome.COMPLETED, Outcome.STOPPED) and message:
        return message
    newest = f" (newest checkpoint: step {number_text(step)})" if step is not None else ""
    return f"{with_reason(outcome_text(outcome), message)}{newest}"


def told(events: Iterable[Event]) -> Iterator[tuple[float, str]]:
    """A history as (time, line). Consecutive checkpoints share a line, and so do equal failures in a row."""
    accepted: list[CheckpointAccepted] = []
    retired, ended = 0, ""
    for event, times in _folded(events):
        if isinstance(event, CheckpointAccepted):
            accepted.append(event)
        elif isinstance(event, Retired):
            retired += len(event.names)
        else:
            yield from _checkpoints_told(accepted, retired)
            accepted, retired = [], 0
            text = event_text(_without(ended, event))
            yield event.at, f"{text} ({number_text(times)} times)" if times > 1 else text
            ended = event.message if isinstance(event, Ended) else ended
    yield from _checkpoints_told(accepted, retired)


def _folded(events: Iterable[Event]) -> Iterator[tuple[Event, int]]:
    """Each event with 1, or the first of equal failures in a row with their number."""
    for failure, group in groupby(events, _failure):
        if failure is None:
            yield from ((event, 1) for event in group)
        else:
            first, *others = group
            yield first, 1 + len(others)


def _failure(event: Event) -> tuple[str, str] | None:
    return (event.action, event.message) if isinstance(event, ActionFailed) else None


def _without(said: str, event: Event) -> Event:
    """The event without its reason if the session's end has just given the same reason."""
    if isinstance(event, Requeued | Completed) and event.reason == said:
        return replace(event, reason="")
    return event


def _checkpoints_told(accepted: list[CheckpointAccepted], retired: int) -> Iterator[tuple[float, str]]:
    if not accepted:
        return
    steps = [number_text(event.checkpoint.ref.step) for event in accepted]
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    gone = f", {number_text(retired)} superseded retired" if retired else ""
    yield accepted[-1].at, f"{count_text(len(steps), 'checkpoint')} verified in the home store, {where}{gone}"
