"""A run's sessions, derived from its history. Decides nothing; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.core.event import (
    Assigned,
    CheckpointAccepted,
    CheckpointCorrupt,
    Ended,
    Event,
    Started,
    StopRequested,
    TurnedAway,
    Withdrawn,
)
from orchestrator.core.gpu_use import GpuUse
from orchestrator.core.lifecycle import Wish
from orchestrator.core.order import Order, Outcome


@dataclass(frozen=True)
class SessionSummary:
    """One session of a run. Times in unix seconds; None for what has not happened.

    `to_step` is the step of its newest accepted checkpoint. `stop` is the wish for which it was asked to
    leave. `outcome` is how it ended, `message` why, and `step` the newest step that it reported then. If
    `withdrawn`, it was never launched, and `message` says why. `gpu_use`: how busy its GPUs were, if known.
    """

    order: Order
    assigned_at: float
    started_at: float | None = None
    over_at: float | None = None
    to_step: int | None = None
    stop: Wish | None = None
    outcome: Outcome | None = None
    message: str = ""
    step: int | None = None
    withdrawn: bool = False
    gpu_use: GpuUse | None = None

    @property
    def name(self) -> str:
        return self.order.session

    @property
    def platform(self) -> str:
        return self.order.platform

    @property
    def accelerator(self) -> str:
        return self.order.accelerator

    @property
    def from_step(self) -> int:
        """The step of the checkpoint that it resumed from; 0 if it started from the beginning."""
        return self.order.resume_step


def sessions(history: Iterable[Event]) -> tuple[SessionSummary, ...]:
    """The run's sessions, in order."""
    found: list[SessionSummary] = []
    for event in history:
        if isinstance(event, Assigned):
            if found and found[-1].order.session == event.order.session:  # its platform had refused it
                found.pop()
            found.append(SessionSummary(event.order, event.at))
        elif found:
            found[-1] = _after(found[-1], event)
    return tuple(found)


def _after(session: SessionSummary, event: Event) -> SessionSummary:
    match event:
        case CheckpointCorrupt(order=order):  # it falls back to an earlier checkpoint
            return replace(session, order=order)
        case Started(at=at):
            return replace(session, started_at=at)
        case StopRequested(wish=wish):
            return replace(session, stop=wish)
        case CheckpointAccepted(checkpoint=checkpoint):
            return replace(session, to_step=max(session.to_step or 0, checkpoint.ref.step))
        case Ended(at=at, outcome=outcome, message=message, step=step, gpu_use=use):
            return replace(session, over_at=at, outcome=outcome, message=message, step=step, gpu_use=use)
        case Withdrawn(at=at, reason=reason) | TurnedAway(at=at, reason=reason):
            return replace(session, over_at=at, withdrawn=True, message=reason)
    return session
