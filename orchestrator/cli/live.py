"""What a run is doing right now, for people: the newest reading beside the ledger, and events in words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import wire
from orchestrator.core.run import (
    ActionFailed,
    Assigned,
    Cancelled,
    CheckpointAccepted,
    CheckpointCorrupt,
    Completed,
    Confirmed,
    Deferred,
    Ended,
    Event,
    GaveUp,
    Held,
    Noted,
    Requeued,
    Retired,
    RunRecord,
    Started,
    StopRequested,
    Wished,
    Withdrawn,
)
from orchestrator.core.session import Observation
from orchestrator.perform import Folders

EventWatcher = Callable[[RunRecord, Event], None]


@dataclass(frozen=True)
class Live:
    """The newest reading of a run's session, `at` the controller's clock."""

    session: str
    at: float
    observation: Observation


def writer(folders: Folders) -> Callable[[RunRecord, Observation, float], None]:
    """Keeps `live.json` of each run current; volatile, so a disk that is full costs only the view."""

    def write(record: RunRecord, observation: Observation, now: float) -> None:
        if record.session is None:
            return
        path = folders.live(record.run)
        data = wire.encode(Live(record.session.name, now, observation))
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(".tmp-live.json")
            draft.write_bytes(data)
            draft.replace(path)

    return write


def read(folders: Folders, record: RunRecord) -> Live | None:
    """The newest reading of the run's current session, or None."""
    return _read(folders.live(record.run), record.session.name if record.session else None)


def _read(path: Path, session: str | None) -> Live | None:
    try:
        found = wire.decode(Live, path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if found.session == session else None


def event_text(event: Event) -> str:
    """One event in words, for `why`, `logs` and the controller's log."""
    match event:
        case Deferred(reason=reason):
            return f"waits: {reason}"
        case Assigned(order=order, reason=reason):
            start = (
                f"from step {order.resume_step} ({order.resume})" if order.resume else "from the beginning"
            )
            return f"session {order.session} on {order.platform}/{order.accelerator}, {start} ({reason})"
        case Started(incarnation=incarnation):
            return f"the agent runs (incarnation {incarnation})"
        case ActionFailed(action=action, message=message):
            return f"{action} failed, trying again: {message}"
        case Withdrawn(reason=reason) | Requeued(reason=reason):
            return f"goes on with a new session: {reason}"
        case StopRequested(wish=wish):
            return f"asks the session to save and leave ({wish.value})"
        case Ended(outcome=outcome, message=message):
            return f"session ended, {outcome.value.replace('_', ' ')}: {message}"
        case CheckpointAccepted(checkpoint=checkpoint):
            return f"checkpoint {checkpoint.name} is verified in the home store"
        case CheckpointCorrupt(name=name, reason=reason):
            return f"checkpoint {name} is corrupt ({reason}): falls back"
        case Retired(names=names):
            return f"retires {len(names)} superseded checkpoint{'s' if len(names) != 1 else ''}"
        case Noted(text=text):
            return f"note: {text}"
        case Wished(wish=wish):
            return f"the user asks to {wish.value}"
        case Completed() | GaveUp() | Cancelled() | Held():
            return f"{event.kind.value.replace('_', ' ')}: {event.reason}"
        case Confirmed(session=session):
            return f"{session} is cleaned up"
        case _:
            return event.kind.value.replace("_", " ")
