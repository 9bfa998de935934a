"""What must hold in every world for its users and their sessions: the checks on choices.

The checks on checkpoints and generations are in tests/simulation/checks.py. Each check is proved by planted
bugs: tests/simulation/test_planted_bugs.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import takewhile

from orchestrator.core.charges import charges
from orchestrator.core.event import (
    Assigned,
    Began,
    Cancelled,
    Completed,
    Ended,
    Event,
    GaveUp,
    Held,
    Launched,
    Noted,
    Released,
    Requeued,
    Started,
    StopRequested,
    Submitted,
    Wished,
)
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import Order, Outcome
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.ledger.journal import Stored
from orchestrator.platforms.simulated.history import Discarded
from orchestrator.platforms.simulated.platform import SimulatedPlatform
from tests.simulation.world import World

ROUNDING = 1e-3  # seconds: wall-clock numbers are large
_READ_BY_THE_NEXT = frozenset({Phase.QUEUED, Phase.PREPARING, Phase.LAUNCHING})


def wishes_are_granted(world: World) -> list[str]:
    """A run that is to be cancelled or held gets no new order, is not requeued and is not given up."""
    found = []
    for run in world.runs:
        wish: Wish | None = None
        held = False
        for item in world.ledger.history(run):
            match item.event:
                case Wished(wish=Wish.RELEASE) if not held:
                    wish = None if wish is Wish.HOLD else wish
                case Wished(wish=asked):
                    wish = asked
                case Assigned() | Requeued() | GaveUp() if wish in (Wish.CANCEL, Wish.HOLD):
                    if not (isinstance(item.event, GaveUp) and wish is Wish.HOLD):
                        found.append(f"{run}: {wish.value} was asked for, and then: {item.event.kind.value}")
                case Held() if wish is Wish.CANCEL:
                    found.append(f"{run} was to be cancelled, and is held")
                case Held():
                    held, wish = True, None
                case Released() | Cancelled() | Completed():
                    held, wish = False, None
    return found


def slots_are_not_overcommitted(world: World) -> list[str]:
    """No platform ever rejects a launch because our own sessions take all its slots; those that may still run
    count. Worlds where a clock jumped are exempt: their dates are wrong."""
    if world.clock_jumps:
        return []
    return [
        f"{launch.session}: {launch.error}"
        for platform in world.platforms.values()
        for launch in platform.history.launches
        if "slots for" in launch.error
    ]


def nothing_alive_is_discarded(world: World) -> list[str]:
    """What a session left is removed only when none of it runs or can still start. If a platform hides a
    session and also lets it run past its limit, nobody can know that."""
    if world.clock_jumps:
        return []
    return [
        f"{discarded.session} was discarded alive at {discarded.at:.0f} s"
        for platform in world.platforms.values()
        for discarded in platform.history.discards
        if discarded.alive and not _is_past_its_limit(platform, discarded)
    ]


def _is_past_its_limit(platform: SimulatedPlatform, discarded: Discarded) -> bool:
    """Whether the platform should have ended before everything of the session that still ran."""
    limits = {
        offer.accelerator: (offer.session_seconds or math.inf) + platform.scenario.slack_seconds
        for offer in platform.scenario.offers
    }
    ran = [
        life
        for life in platform.history.lifetimes
        if life.session == discarded.session and (life.ended_at is None or life.ended_at > discarded.at)
    ]
    return bool(ran) and all(life.started_at + limits[life.accelerator] < discarded.at for life in ran)


def nobody_is_given_up_in_haste(world: World) -> list[str]:
    """A session is lost only after several readings, while the controller was up and looked."""
    return world.witness.hasty


def what_is_gone_on_from_is_kept(world: World) -> list[str]:
    """The checkpoint that a live session was ordered to resume from stays in the home store until the session
    ends."""
    return world.witness.robbed


def too_large_stays_too_large(world: World) -> list[str]:
    """Out of memory on an accelerator is remembered across moves to others. (The smallest size may be tried
    again.)"""
    found = []
    for run in world.runs:
        too_large: dict[str, int] = {}
        order: Order | None = None
        for item in world.ledger.history(run):
            match item.event:
                case Assigned(order=order):
                    limit = too_large.get(order.accelerator)
                    if limit is not None and order.micro_batch >= limit > 1:
                        found.append(f"{order.session}: {order.micro_batch} on {order.accelerator} again")
                case Ended(outcome=Outcome.OUT_OF_MEMORY) if order is not None:
                    before = too_large.get(order.accelerator, order.micro_batch)
                    too_large[order.accelerator] = min(before, order.micro_batch)
    return found


def only_what_was_altered_arrives_corrupt(world: World) -> list[str]:
    """An outbox never shows an incomplete checkpoint, whenever it is read and whoever was killed. Of one that
    the user gave up, some blobs may never have appeared."""
    written = {
        checkpoint.name: checkpoint.corrupt
        for platform in world.platforms.values()
        for life in platform.history.lifetimes
        for checkpoint in life.written
    }
    return [
        f"{run}: {item.event.text}"
        for run in world.runs
        for item in _until_given_up(world, run)
        if isinstance(item.event, Noted) and "ignored corrupt checkpoint" in item.event.text
        and not written.get(item.event.text.split()[1], False)
        and "is missing" in item.event.text  # otherwise the transport to the home store may have caused it
    ]  # fmt: skip


def _until_given_up(world: World, run: str) -> Iterable[Stored]:
    """The run's history before its user gave up what a session left."""
    return takewhile(
        lambda item: not (isinstance(item.event, Wished) and item.event.wish is Wish.RELEASE
                          and item.event.discard),
        world.ledger.history(run),
    )  # fmt: skip


def what_cannot_save_is_not_stopped_unasked(world: World) -> list[str]:
    """A session that brings work home only at its end is stopped only if the user agreed to lose the work."""
    found = []
    for run in world.runs:
        traits: Traits | None = None
        discard = False
        for item in world.ledger.history(run):
            match item.event:
                case Assigned(traits=traits):
                    pass
                case Wished(discard=asked):
                    discard = discard or asked
                case StopRequested() if traits is not None and not traits.durable_mid_run and not discard:
                    found.append(f"{run} g{world.record(run).generation} was stopped, and its work lost")
    return found


def pauses_are_kept(world: World) -> list[str]:
    """After a failure nothing is ordered before the pause is over, or from an offer that is paused."""
    if world.clock_jumps:
        return []
    found = []
    for run in world.runs:
        record: RunRecord | None = None
        paused_until = 0.0
        for item in world.ledger.history(run):
            event = item.event
            if isinstance(event, Submitted):
                record = submit(event)
                continue
            assert record is not None
            match event:
                case Requeued(until=until):
                    paused_until = until or 0.0
                case Released():
                    paused_until = 0.0
                case Assigned(at=at, order=order):
                    here = (order.platform, order.accelerator)
                    cooled = [c.until for c in record.cooldowns if (c.platform, c.accelerator) == here]
                    if at < paused_until or any(until is None or at < until for until in cooled):
                        found.append(f"{order.session} was ordered during a pause")
            record = apply(record, event)
    return found


def what_the_next_session_reads_is_kept(world: World) -> list[str]:
    """What a session hands over stays on its platform until the next session has begun. Worlds where a clock
    jumped are exempt: their dates are wrong."""
    if world.clock_jumps:
        return []
    launched = {
        item.event.order.session: run
        for run in world.everybody
        for item in world.ledger.history(run)
        if isinstance(item.event, Assigned)
    }
    closed = {session: at for run in world.runs for session, at in _closed(world, run).items()}
    found = []
    for platform in world.platforms.values():
        if platform.scenario.uplink is not Uplink.NONE:
            continue
        for discarded in platform.history.discards:
            run = launched[discarded.session]
            since = closed.get(discarded.session)
            if since is not None and _waited(world, run, since, discarded.at):
                found.append(f"{discarded.session} was discarded before the next one of {run} had begun")
    return found


def waiting_is_not_charged(world: World) -> list[str]:
    """A session's wait in a platform's queue is not charged. If the session was over before it was seen to
    run, its start is unknown, so it is not checked. Worlds where a clock jumped are exempt: their dates are
    wrong."""
    if world.clock_jumps:
        return []
    started = {
        life.session: world.began_at + life.started_at
        for platform in world.platforms.values()
        for life in reversed(platform.history.lifetimes)
    }
    found = []
    for run in world.runs:
        events = [item.event for item in world.ledger.history(run)]
        seen = _seen_to_run(events)
        found += [
            f"{charge.session} is charged for {started[charge.session] - charge.began_at:.0f} s of its wait"
            for charge in charges(events, world.clock.now())
            if charge.session in seen and charge.began_at < started[charge.session] - ROUNDING
        ]
    return found


def _seen_to_run(events: Iterable[Event]) -> set[str]:
    """The sessions that were seen to run before they were seen to end."""
    found, session = set(), ""
    for event in events:
        match event:
            case Assigned(order=order):
                session = order.session
            case Began() | Started() if session:
                found.add(session)
            case Ended():
                session = ""
    return found


def _closed(world: World, run: str) -> dict[str, float]:
    """The run's sessions that were launched and seen to end, and when they were closed."""
    found: dict[str, float] = {}
    session, launched, over = "", False, False
    for item in world.ledger.history(run):
        match item.event:
            case Assigned(order=order):
                session, launched, over = order.session, False, False
            case Launched():
                launched = True
            case Ended(confirmed=True):
                over = launched
            case Requeued(at=at) if over:
                found[session] = at - world.began_at
    return found


def _waited(world: World, run: str, since: float, until: float) -> bool:
    """Whether the run was waiting for its next session all the time between these moments."""
    phases = {phase for at, phase in world.witness.phases[run] if since - ROUNDING <= at <= until}
    return bool(phases) and phases <= _READ_BY_THE_NEXT


ALL = (
    wishes_are_granted,
    slots_are_not_overcommitted,
    nothing_alive_is_discarded,
    nobody_is_given_up_in_haste,
    what_is_gone_on_from_is_kept,
    too_large_stays_too_large,
    only_what_was_altered_arrives_corrupt,
    what_cannot_save_is_not_stopped_unasked,
    pauses_are_kept,
    what_the_next_session_reads_is_kept,
    waiting_is_not_charged,
)
