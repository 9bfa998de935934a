"""What must hold where work comes home only at a session's end, and where launches are refused.

Such platforms show late, in parts or never what a session left, and say meanwhile that it runs, that it is
gone, or that it has ended. Each check is proved by a planted bug: tests/simulation/test_planted_bugs.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.core.event import (
    Assigned,
    Began,
    CheckpointAccepted,
    Cooldown,
    Ended,
    Event,
    Faulted,
    GaveUp,
    Held,
    Launched,
    Regained,
    Released,
    Started,
    TurnedAway,
    Wished,
    Withdrawn,
)
from orchestrator.core.lifecycle import Awaited
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import Order, Outcome
from orchestrator.platforms.simulated.history import Lifetime

if TYPE_CHECKING:
    from tests.simulation.world import World

ROUNDING = 1e-3  # seconds: wall-clock numbers are large
NOTICED_SECONDS = 2400.0  # outages included
ASLEEP_SECONDS = 2 * 3600.0  # naps, and a controller that is killed often
REFUSED_SECONDS_MIN = 4 * 3600.0  # for so long no person is asked about refusals
COLLECTED_SECONDS_MIN = 3600.0  # for so long an output that cannot be collected is asked for
PARKED_SHARE_MIN = 0.8  # of a new budget: what is prepared with less is not used


@dataclass
class Stay:
    """A session as the ledger tells it. Times in seconds of the world. `seen`: it was seen to run before its
    end, and `spoke`: its agent was. `agreed_at`: when the user first agreed to lose work."""

    run: str
    order: Order
    traits: Traits
    seen: bool = False
    spoke: bool = False
    launched_at: float = math.inf
    ended_at: float = math.inf
    ended: Ended | None = None
    agreed_at: float = math.inf
    held: list[tuple[float, Faulted]] = field(default_factory=list)
    events: list[tuple[float, Event]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.order.session

    @property
    def shows_at_its_end(self) -> bool:
        return self.traits.uplink is Uplink.NONE


def stays(world: World) -> Iterator[Stay]:
    """All sessions that their platforms did not refuse, in the order of their runs."""
    for run in world.runs:
        found: list[Stay] = []
        for item in world.ledger.history(run):
            event = item.event
            if isinstance(event, Assigned):
                found.append(Stay(run, event.order, event.traits))
            elif isinstance(event, TurnedAway):
                found.pop()
            elif found:
                _tell(found[-1], event, event.at - world.began_at)
        yield from found


def _tell(stay: Stay, event: Event, at: float) -> None:
    stay.events.append((at, event))
    match event:
        case Launched():
            stay.launched_at = at
        case Began():
            stay.seen = True
        case Started():
            stay.seen = stay.spoke = stay.seen or stay.ended is None
        case Ended():
            stay.ended, stay.ended_at = event, at
        case Wished(discard=True):
            stay.agreed_at = min(stay.agreed_at, at)
        case Faulted(awaits=Awaited()):
            stay.held.append((at, event))


def _lives(world: World, session: str) -> list[Lifetime]:
    return [
        life
        for platform in world.platforms.values()
        for life in platform.history.lifetimes
        if life.session == session
    ]


def _limit(stay: Stay) -> float:
    """Seconds after its start at which a session must be over."""
    return (stay.traits.session_seconds or math.inf) + stay.traits.slack_seconds


def _promised(world: World, stay: Stay) -> bool:
    """Whether the session's platform keeps its promises about what it shows, and clocks were right."""
    return stay.shows_at_its_end and stay.traits.absence_seconds > 0.0 and not world.clock_jumps


# --- Sessions -------------------------------------------------------------------------------------------


def nobody_alive_is_given_up_on_a_lie(world: World) -> list[str]:
    """A session that was seen to run is not taken for ended while it runs within its limit, whatever its
    platform says of it meanwhile, unless the user agreed to lose it."""
    found = []
    for stay in stays(world):
        if not (_promised(world, stay) and stay.seen and stay.ended_at < stay.agreed_at):
            continue
        limit = _limit(stay)
        for life in _lives(world, stay.name):
            until = min(math.inf if life.ended_at is None else life.ended_at, life.started_at + limit)
            if life.started_at <= stay.ended_at < until - ROUNDING:
                found.append(f"{stay.name} was alive when it was given up at {stay.ended_at:.0f} s")
    return found


def no_second_session_while_the_first_may_bill(world: World) -> list[str]:
    """The next session of a run is not launched while one that was seen still runs, also beyond its limit,
    unless the user agreed to that."""
    launched = {
        launch.session: launch.at
        for platform in world.platforms.values()
        for launch in platform.history.launches
        if launch.started
    }
    found = []
    for first, stay in pairwise(stays(world)):
        if first.run != stay.run or not (_promised(world, first) and first.seen):
            continue
        at = min(launched.get(stay.name, math.inf), first.agreed_at)
        for life in _lives(world, first.name):
            if at < first.agreed_at and (life.ended_at is None or at < life.ended_at - ROUNDING):
                found.append(f"{stay.name} was launched at {at:.0f} s, while {first.name} ran")
    return found


def what_was_seen_is_collected_before_it_is_discarded(world: World) -> list[str]:
    """If a session's agent was seen and its end too, its newest checkpoint comes home before anything of it
    is removed, unless the user agreed to lose it."""
    if world.clock_jumps:
        return []
    known = {stay.name: stay for stay in stays(world) if stay.shows_at_its_end and stay.spoke}
    discards = {d.session: d.at for platform in world.platforms.values() for d in platform.history.discards}
    found = []
    for name, at in discards.items():
        stay, lives = known.get(name), _lives(world, name)
        if stay is None or stay.agreed_at < at or len(lives) != 1 or not lives[0].written:
            continue
        newest = lives[0].written[-1]
        home = any(isinstance(e, CheckpointAccepted) and e.checkpoint.name == newest.name
                   for _, e in stay.events)  # fmt: skip
        confirmed = stay.ended is not None and stay.ended.confirmed
        if confirmed and not newest.corrupt and not home:
            found.append(f"{name} was discarded at {at:.0f} s, and {newest.name} never came home")
    return found


# --- Runs that wait for a person ------------------------------------------------------------------------


def what_appears_is_gone_on_with(world: World) -> list[str]:
    """A run that awaits a session's end or output goes on by itself soon after that is there."""
    if world.clock_jumps:
        return []
    found = []
    for stay in stays(world):
        for at, _ in stay.held:
            usual = NOTICED_SECONDS + COLLECTED_SECONDS_MIN * (stay.ended_at <= at)
            asleep = ASLEEP_SECONDS * (world.restarts > 0 or world.naps)
            after = [when for when, e in stay.events if when >= at and isinstance(e, Regained | Wished)]
            noticed_at = min(after, default=world.clock.elapsed())
            there_at = world.platforms[stay.order.platform].complete_at(stay.name)
            if noticed_at > max(at, there_at) + usual + asleep:
                found.append(f"{stay.name} was there at {there_at:.0f} s, and noticed at {noticed_at:.0f} s")
    return found


def nobody_is_held_without_need(world: World) -> list[str]:
    """A person is asked only if a platform broke a promise: about what an ended session left, about its
    session limit, or about a refusal that lasts for hours."""
    if world.clock_jumps:
        return []
    found = []
    for stay in stays(world):
        for at, event in stay.held:
            if stay.shows_at_its_end and not _is_due(world, stay, at):
                found.append(f"{stay.name} was held at {at:.0f} s: {event.reason}")
    return [*found, *_asked_about_refusals(world)]


def _is_due(world: World, stay: Stay, at: float) -> bool:
    """Whether what its platform promised did not come by this time."""
    there_at = world.platforms[stay.order.platform].complete_at(stay.name)
    if stay.ended_at <= at:
        return at >= stay.ended_at + COLLECTED_SECONDS_MIN and there_at > stay.ended_at
    lives = _lives(world, stay.name)
    ends = [math.inf if life.ended_at is None else life.ended_at for life in lives]
    limit = _limit(stay)
    noticed_at = at + 2.0 * stay.traits.poll_seconds  # the time before the first reading counts
    saved = noticed_at - max(ends, default=math.inf) >= stay.traits.saving_seconds_max
    waited = noticed_at - stay.launched_at >= stay.traits.pending_seconds_max + limit
    return saved or waited or any(noticed_at - life.started_at >= limit for life in lives)


def _asked_about_refusals(world: World) -> list[str]:
    """Offers that are closed until a person acts, although their platform has not refused them for long."""
    found = []
    for run in world.runs:
        first_at: dict[tuple[str, str], float] = {}
        for item in world.ledger.history(run):
            match item.event:
                case TurnedAway(at=at, cooldown=cooldown) | Withdrawn(at=at, cooldown=Cooldown() as cooldown):
                    here = cooldown.platform, cooldown.accelerator
                    seconds = at - first_at.setdefault(here, at)
                    if cooldown.refusals and cooldown.until is None and seconds < REFUSED_SECONDS_MIN:
                        found.append(f"{run}: closed after {seconds:.0f} s of refusals: {cooldown.reason}")
                case Released() | CheckpointAccepted():
                    first_at.clear()
    return found


def no_run_fails_by_what_platforms_lost(world: World) -> list[str]:
    """A run that platforms keep losing is held, and can be released."""
    found = []
    for run in world.runs:
        events = [item.event for item in world.ledger.history(run)]
        ends = [event.outcome for event in events if isinstance(event, Ended)]
        if any(isinstance(event, GaveUp) for event in events) and ends[-1] is Outcome.LOST:
            found.append(f"{run} has failed: {world.record(run).reason}")
    return found


# --- Refused launches -----------------------------------------------------------------------------------


def a_refused_launch_keeps_what_is_prepared(world: World) -> list[str]:
    """After a refusal the next launch of the same work in the same place has the same name, so that nothing
    is uploaded or named anew."""
    found = []
    for run in world.runs:
        order: Order | None = None
        refused: Order | None = None
        for item in world.ledger.history(run):
            match item.event:
                case Assigned(order=order):
                    if refused is not None and _means_the_same(refused, order) and order != refused:
                        found.append(f"{refused.session} was refused, and {order.session} made anew")
                    refused = None
                case TurnedAway():
                    refused = order
                case Held():
                    refused = None
    return found


def _means_the_same(refused: Order, order: Order) -> bool:
    before, after = ((o.platform, o.accelerator, o.resume, o.command) for o in (refused, order))
    if refused.budget_seconds is None or order.budget_seconds is None:
        return before == after and refused.budget_seconds == order.budget_seconds
    least = PARKED_SHARE_MIN * order.budget_seconds
    return before == after and least <= refused.budget_seconds <= order.budget_seconds


ALL = (
    nobody_alive_is_given_up_on_a_lie,
    no_second_session_while_the_first_may_bill,
    what_was_seen_is_collected_before_it_is_discarded,
    what_appears_is_gone_on_with,
    nobody_is_held_without_need,
    no_run_fails_by_what_platforms_lost,
    a_refused_launch_keeps_what_is_prepared,
)
