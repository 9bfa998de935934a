"""Small jobs, orders, offers and records for tests of the core."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.event import (
    Assigned,
    CheckpointAccepted,
    Ended,
    Event,
    Launched,
    Prepared,
    Started,
    Submitted,
)
from orchestrator.core.job import Claim, Job, Precision, Profile, Work
from orchestrator.core.offer import Choice, Estimate, Offer, Route, Traits
from orchestrator.core.order import AgentStatus, Outcome, Result
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.session import Observation, Sighting

NOW = 1_790_000_000.0
RUN = "tiny-abcdefgh"
TRAITS = Traits(session_seconds=3600.0, wall_margin_seconds=60.0, visibility_seconds=10.0, poll_seconds=2.0)
OFFER = Offer("here", "cpu", TRAITS)


def fold(events: Iterable[Event]) -> RunRecord:
    """The record after all events of one run; the first event is its submission."""
    iterator = iter(events)
    first = next(iterator)
    assert isinstance(first, Submitted)
    record = submit(first)
    for event in iterator:
        record = apply(record, event)
    return record


def job(**changes: object) -> Job:
    values: dict[str, object] = {
        "name": "tiny",
        "command": ("train", "--steps", "{steps}", "--micro-batch={micro_batch}", "--acc", "{accumulate}"),
        "work": Work(total=1000, global_batch=16),
        "profiles": (
            (
                "default",
                Profile(8, Precision.FP32, claim=Claim((1.0, 2.0), 16, "cpu", "a test", "2026-11-20")),
            ),
        ),
        "bundle": "b" * 64,
    }
    return Job(**(values | changes))  # type: ignore[arg-type]


def record(*events: Event, **changes: object) -> RunRecord:
    found = submit(Submitted(RUN, job(**changes), NOW))
    for event in events:
        found = apply(found, event)
    return found


def choice(offer: Offer = OFFER, micro_batch: int = 8) -> Choice:
    estimate = Estimate(NOW, NOW + 900, NOW + 800, NOW + 1000, 1, 0.0, 0.0, 16.0, "claim")
    return Choice(offer, micro_batch, 16 // micro_batch, 1, estimate)


def routed(offer: Offer = OFFER, micro_batch: int = 8) -> Route:
    return Route(choice(offer, micro_batch), (), (), ())


def assigned(generation: int = 1, resume: Accepted | None = None, traits: Traits = TRAITS) -> Assigned:
    from dataclasses import replace

    from orchestrator.core.assign import assign

    before = record()
    order = assign(replace(before, generation=generation - 1, accepted=(resume,) if resume else ()), choice())
    return Assigned(NOW, order, traits, "because")


def accepted(step: int, generation: int = 1, incarnation: str = "aaaa", **metrics: float) -> Accepted:
    return Accepted(CheckpointRef(step, generation, incarnation), 10, metrics)


def launched() -> tuple[Event, ...]:
    return (assigned(), Prepared(NOW), Launched(NOW))


def running(*, started_at: float = NOW) -> tuple[Event, ...]:
    return (*launched(), Started(started_at, "aaaa"))


def ended(
    outcome: Outcome, *, step: int | None = None, confirmed: bool = True, message: str = "it ended"
) -> Ended:
    return Ended(NOW, outcome, message, confirmed, step=step)


def accept(step: int, generation: int = 1) -> CheckpointAccepted:
    return CheckpointAccepted(NOW, accepted(step, generation))


def seen(heartbeat: int = 1, *, checkpoint: str | None = None, warnings: tuple[str, ...] = (),
         result: Result | None = None, incarnations: tuple[str, ...] = ("aaaa",)) -> Observation:  # fmt: skip
    status = AgentStatus("aaaa", heartbeat, NOW, "running", checkpoint=checkpoint, warnings=warnings)
    sighting = Sighting.ENDED if result else Sighting.RUNNING
    return Observation(sighting, incarnations, status, result)
