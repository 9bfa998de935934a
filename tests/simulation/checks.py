"""What must hold in every world, with any faults. Each check returns the violations it finds.

Each check is proved by a planted bug: tests/simulation/test_planted_bugs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from orchestrator.core.checkpoint import newest
from orchestrator.core.closing import NOT_COUNTED
from orchestrator.core.event import (
    Assigned,
    Cancelled,
    CheckpointAccepted,
    Completed,
    Ended,
    GaveUp,
    Held,
    Released,
    Requeued,
    Started,
    Submitted,
    TurnedAway,
    Wished,
)
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.errors import OrchestratorError
from orchestrator.platforms.simulated import expected_state
from orchestrator.stores import checkpoints as stored
from tests.simulation.world import World

ROUNDING = 1e-3  # seconds: wall-clock numbers are large
Check = Callable[[World], list[str]]


def one_incarnation_a_generation(world: World) -> list[str]:
    """In each generation at most one incarnation writes accepted checkpoints."""
    found = []
    for run in world.runs:
        writers: dict[int, set[str]] = {}
        for item in world.ledger.history(run):
            if isinstance(item.event, CheckpointAccepted):
                ref = item.event.checkpoint.ref
                writers.setdefault(ref.generation, set()).add(ref.incarnation)
        found += [f"{run} g{g}: accepted from {sorted(w)}" for g, w in writers.items() if len(w) > 1]
    return found


def accepted_checkpoints_are_kept(world: World) -> list[str]:
    """No accepted checkpoint is lost: every one in the record is complete in the home store. Older ones may
    have been deleted by their uplink, after which nobody could look."""
    found = []
    for run in world.runs:
        best = newest(world.record(run).accepted)
        for accepted in world.record(run).accepted:
            if accepted.name in world.witness.retired and accepted is not best:
                continue
            try:
                manifest = stored.read(world.memory, run, accepted.name)
                lineage = f"g{accepted.ref.generation:02d}-{accepted.ref.incarnation}"
                prefix = f"runs/{run}/blobs/{lineage}/"
                blobs = {stat.key.rsplit("/", 1)[1]: stat.size for stat in world.memory.list(prefix)}
            except OrchestratorError as error:
                found.append(f"{accepted.name}: {error}")
                continue
            missing = [b for b, size in manifest.blobs().items() if blobs.get(b) != size]
            found += [f"{accepted.name}: blob {b} is gone" for b in missing]
    return found


def resumes_at_the_newest(world: World) -> list[str]:
    """Every session is ordered to start at the newest accepted checkpoint, and does."""
    found = []
    for run in world.runs:
        record: RunRecord | None = None
        for item in world.ledger.history(run):
            if isinstance(item.event, Submitted):
                record = submit(item.event)
                continue
            assert record is not None
            if isinstance(item.event, Assigned):
                best = newest(record.accepted)
                ordered = item.event.order.resume
                if ordered != (best.name if best else None):
                    found.append(f"{item.event.order.session}: resumes at {ordered}, newest is {best}")
            record = apply(record, item.event)
    return found


def generations_only_grow(world: World) -> list[str]:
    """A generation is ordered once, and again only if its platform refused to start it. After it is closed,
    nothing is accepted from it."""
    found = []
    for run in world.runs:
        current, closed, refused = 0, 0, False
        for item in world.ledger.history(run):
            refused |= isinstance(item.event, TurnedAway)
            if isinstance(item.event, Assigned):
                generation = item.event.order.generation
                if generation != current + 1 and not (refused and generation == current):
                    found.append(f"{item.event.order.session} follows generation {current}")
                closed, current, refused = generation - 1, generation, False
            if isinstance(item.event, CheckpointAccepted) and item.event.checkpoint.ref.generation <= closed:
                found.append(f"{item.event.checkpoint.name} accepted after its generation was closed")
    return found


def nothing_starts_twice(world: World) -> list[str]:
    """A launch is requested once per session, answered or not, and only for an ordered session. It is
    requested again only after a clear refusal.

    So even a platform that does not recognise names would start nothing twice.
    """
    ordered = {
        item.event.order.session
        for run in world.everybody
        for item in world.ledger.history(run)
        if isinstance(item.event, Assigned)
    }
    found = []
    for platform in world.platforms.values():
        launches = platform.history.launches
        asked = Counter(launch.session for launch in launches if not launch.refused)
        found += [f"{name} was launched {n} times" for name, n in asked.items() if n > 1]
        last = {launch.session: launch.refused for launch in launches}
        found += [f"{name} was refused after a launch" for name in asked if last[name]]
        found += [f"{name} was never ordered" for name in last if name not in ordered]
    return found


def quota_is_not_overspent(world: World) -> list[str]:
    """No quota cuts off a session of ours, because our launches plan together to stay within it.

    Exceptions: the platform started a session twice, an agent froze and exceeded its budget, or a clock gave
    wrong dates.
    """
    found = []
    for platform in world.platforms.values():
        faults = platform.scenario.faults
        late = faults.double_start or faults.freeze or faults.wedged
        if platform.scenario.quota is None or late or world.clock_jumps:
            continue
        cut = [life for life in platform.history.lifetimes if life.end == "the quota is used up"]
        found += [f"{life.session} was cut off by the quota" for life in cut]
    return found


def what_can_finish_does(world: World) -> list[str]:
    """Once faults have stopped, each run ends: done, cancelled on request, or failed for a counted reason."""
    found = []
    for run in world.runs:
        record = world.record(run)
        if not record.phase.final:
            found.append(f"{run} is still {record.phase.value}: {record.reason}")
        elif record.strays:
            found.append(f"{run} has left {[s.session for s in record.strays]} behind")
        elif record.phase is Phase.FAILED and not _failed_fairly(world, record):
            found.append(f"{run} failed unfairly: {record.reason}")
    return found


def _failed_fairly(world: World, record: RunRecord) -> bool:
    """Whether the last `retry.without_progress` counted sessions made no newer checkpoint."""
    fruitless, seen = 0, False
    for item in world.ledger.history(record.run):
        match item.event:
            case Assigned():
                seen = False
            case CheckpointAccepted():
                seen = True
            case Ended(outcome=outcome) if outcome not in NOT_COUNTED | {Outcome.OUT_OF_MEMORY}:
                fruitless += 1
            case Released():
                fruitless = 0
        if seen:
            fruitless = 0
    return fruitless >= record.job.without_progress


def the_result_is_exact(world: World) -> list[str]:
    """A finished run's last checkpoint holds the state of an uninterrupted run."""
    found = []
    for run in world.runs:
        record = world.record(run)
        if record.phase is not Phase.DONE:
            continue
        last = newest(record.accepted)
        order = next(i.event.order for i in world.ledger.history(run) if isinstance(i.event, Assigned))
        if last is None or last.ref.step != record.job.work.total:
            found.append(f"{run} is done at {last}")
            continue
        manifest = stored.read(world.memory, run, last.name)
        state = world.restored(run, manifest, "state.json")
        if state != expected_state(order, last.ref.step):
            found.append(f"{run}: {state!r}")
    return found


def one_start_is_journalled(world: World) -> list[str]:
    """The engine accepts one incarnation of a session, and journals it before any checkpoint of that
    incarnation."""
    found = []
    for run in world.runs:
        started: dict[int, str] = {}
        generation = 0
        for item in world.ledger.history(run):
            match item.event:
                case Assigned(order=order):
                    generation = order.generation
                case Started(incarnation=incarnation):
                    if generation in started:
                        found.append(f"{run} g{generation} started twice")
                    started[generation] = incarnation
                case CheckpointAccepted(checkpoint=checkpoint):
                    if started.get(generation) != checkpoint.ref.incarnation:
                        found.append(f"{checkpoint.name}: accepted from an incarnation that was not")
    return found


def the_last_look_is_after_the_end(world: World) -> list[str]:
    """No generation is closed before its outbox was read once more after the session's end was known.
    Otherwise its last data would be lost. A user may give up what an uplink shipped, if the store fails.
    Worlds where a clock jumped are exempt: their events have wrong dates."""
    if world.clock_jumps:
        return []
    found = []
    for run in world.runs:
        session, generation, ended_at, ships, agreed = "", 0, None, False, False
        for item in world.ledger.history(run):
            match item.event:
                case Assigned(order=order, traits=traits):
                    session, generation, ended_at = order.session, order.generation, None
                    ships, agreed = traits.uplink is Uplink.STORE, False
                case Wished(discard=True) if ships:
                    agreed, ended_at = True, None
                case Ended(at=at) if not agreed:
                    ended_at = at - world.began_at
                case Completed() | Requeued() | GaveUp() | Cancelled() | Held() if ended_at is not None:
                    if not any(at >= ended_at - ROUNDING for at in _looks(world, run, session, generation)):
                        found.append(f"{session} was closed unseen after its end at {ended_at:.0f} s")
                    ended_at = None
    return found


def _looks(world: World, run: str, session: str, generation: int) -> list[float]:
    """When its outbox was requested. If the outbox lies in the store, the last look begins with the fence."""
    collects = (collect for platform in world.platforms.values() for collect in platform.history.collects)
    fences = (each for each in world.witness.fences if each.run == run and each.generation == generation + 1)
    return [*(at for at, name in collects if name == session), *(each.at for each in fences)]


def the_controller_rests(world: World) -> list[str]:
    """A tick that changes nothing does not request the next one at once."""
    return [f"it never paused at {at:.0f} s" for at in world.restless_at[:3]]


ALL: tuple[Check, ...] = (
    one_incarnation_a_generation,
    accepted_checkpoints_are_kept,
    resumes_at_the_newest,
    generations_only_grow,
    nothing_starts_twice,
    quota_is_not_overspent,
    what_can_finish_does,
    the_result_is_exact,
    one_start_is_journalled,
    the_last_look_is_after_the_end,
    the_controller_rests,
)
