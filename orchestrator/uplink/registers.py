"""The registers of an uplink: a run's fence, a session's claim, heartbeat and pins, and how they may change.

The fence is the generation that may publish, and which adoption of the run may raise it. It only rises: the
engine raises it, and so does an adoption. A claim is made once, by the first agent that comes. A heartbeat
changes as long as its agent lives. The engine pins what the uplink must not delete. Knows no clock: only a
reader that watches a heartbeat change can tell how old it is.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import TypeVar

from orchestrator.core import bounds, wire
from orchestrator.core.order import AgentStatus
from orchestrator.errors import Conflict, Rejected, Superseded, Transient
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.store import Store
from orchestrator.uplink.layout import SessionKeys, fence_key

T = TypeVar("T")
_ADOPTIONS_MAX = bounds.ADOPTIONS_MAX + 1  # after the last adoption
_NO_FENCE = "the store has no fence of {}: is its disk there?"


@dataclass(frozen=True)
class Fence:
    """Only sessions of this generation may publish, and only the ledger that counts so many `adoptions` of
    the run may raise it. `leave`: its session is asked to save and leave. Outside their bounds the numbers
    are not valid: no ledger writes them."""

    generation: int
    adoptions: int = 0
    leave: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.generation <= bounds.GENERATION_MAX and 0 <= self.adoptions <= _ADOPTIONS_MAX):
            raise ValueError("a fence out of its bounds")


@dataclass(frozen=True)
class Claim:
    """The one agent of a session that may publish."""

    incarnation: str


@dataclass(frozen=True)
class Published:
    """A checkpoint in the store, by its name and the sha256 of its manifest."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Heartbeat:
    """The agent's last shipped status, with its counter. The checkpoint that it names is in the store.
    `result`: the sha256 of the agent's result, once that is in the store, as the last object. `published`:
    the last few publications that are still there, the newest last, because a listing may be late."""

    status: AgentStatus
    result: str | None = None
    published: tuple[Published, ...] = ()


@dataclass(frozen=True)
class Pins:
    """Checkpoints that the engine relies on: the session's newest accepted one, and those that it is about to
    accept. The uplink deletes none of them."""

    names: frozenset[str] = frozenset()


def registers_of(store: Store) -> Registers:
    """Raises Rejected for a store without compare-and-swap."""
    if store.registers is None:
        raise Rejected("sessions with an uplink need a store with registers; this one has none")
    return store.registers


def fence_of(store: Store, run: str) -> Fence | None:
    """The run's fence; None if there is no valid one, or the store has no registers."""
    return None if store.registers is None else _decoded(Fence, store.registers.read(fence_key(run)))


def raise_fence(store: Store, run: str, generation: int, adoptions: int = 0) -> int:
    """From now on, no generation below this one can publish. Returns the fence, which may already be higher.

    Raises Superseded, and changes nothing, if a ledger with more `adoptions` has the run now. Raises Conflict
    if somebody else changes it at the same moment: try again. Overwrites an invalid fence.
    """
    registers, key = registers_of(store), fence_key(run)
    held = registers.read(key)
    there = _decoded(Fence, held) or Fence(0)
    if there.adoptions > adoptions:
        raise Superseded(f"another ledger has adopted {run}")
    stays = generation <= there.generation
    wanted = Fence(max(generation, there.generation), adoptions, leave=there.leave and stays)
    if held is None or wanted != there:
        registers.swap(key, wire.encode(wanted), None if held is None else held.version)
    return wanted.generation


def take_fence(store: Store, run: str, generation: int, adoptions: int) -> Fence:
    """Takes the run from every other ledger: afterwards only the caller may raise the fence, with the
    returned `adoptions`, and no session that was started before can publish.

    The fence is at least at `generation` and always above the one that was there; `adoptions` likewise.
    Raises Rejected if there is no number left, and Conflict as `raise_fence` does.
    """
    registers, key = registers_of(store), fence_key(run)
    held = registers.read(key)
    there = _decoded(Fence, held) or Fence(0)
    try:
        taken = Fence(max(generation, there.generation + 1), max(adoptions, there.adoptions + 1))
    except ValueError:
        raise Rejected(f"no session of {run} can have a number above its fence in the store") from None
    registers.swap(key, wire.encode(taken), None if held is None else held.version)
    return taken


def ask_to_leave(store: Store, run: str, generation: int) -> None:
    """Asks the session of this generation to save and leave; its uplink hears it with its next heartbeat.
    Does nothing if the fence is elsewhere: then it leaves anyway. Raises Conflict as `raise_fence` does."""
    registers, key = registers_of(store), fence_key(run)
    held = registers.read(key)
    there = _decoded(Fence, held)
    if held is not None and there is not None and there.generation == generation and not there.leave:
        registers.swap(key, wire.encode(replace(there, leave=True)), held.version)


def close_fence(store: Store, run: str, generation: int, adoptions: int = 0) -> None:
    """From now on, this generation cannot publish. Raises Transient without a fence, as `check_fence` does.
    Raises Superseded and Conflict as `raise_fence` does."""
    if registers_of(store).read(fence_key(run)) is None:
        raise Transient(_NO_FENCE.format(run))
    raise_fence(store, run, generation + 1, adoptions)


def check_fence(store: Store, run: str, generation: int) -> Fence:
    """The fence. Raises Superseded unless it is at this generation. Raises Transient without a fence: it is
    set before each session and never removed, so this is the wrong folder, or a disk is not mounted."""
    held = registers_of(store).read(fence_key(run))
    if held is None:
        raise Transient(_NO_FENCE.format(run))
    there = _decoded(Fence, held)
    if there is None or there.generation != generation:
        at = "has no valid fence" if there is None else f"is at generation {there.generation}"
        raise Superseded(f"{run} {at}: generation {generation} must not publish any more")
    return there


def claim(store: Store, keys: SessionKeys, incarnation: str) -> None:
    """Claims the session for this agent, if it has not already. Raises Superseded if another agent has it."""
    registers = registers_of(store)
    held = registers.read(keys.claim)
    if held is None:
        try:
            registers.swap(keys.claim, wire.encode(Claim(incarnation)), None)
        except Conflict:
            held = registers.read(keys.claim)
        else:
            return
    if _decoded(Claim, held) != Claim(incarnation):
        raise Superseded(f"{keys.session} belongs to another agent: {incarnation} must not publish")


def claimant(store: Store, keys: SessionKeys) -> str | None:
    """The agent that has claimed the session; None if there is no valid claim."""
    there = _decoded(Claim, registers_of(store).read(keys.claim))
    return None if there is None else there.incarnation


def beat(store: Store, keys: SessionKeys, beats: Heartbeat) -> None:
    """Writes the heartbeat, unless it is unchanged."""
    registers, value = registers_of(store), wire.encode(beats)
    held = registers.read(keys.heartbeat)
    if held is None or held.value != value:
        registers.swap(keys.heartbeat, value, None if held is None else held.version)


def heartbeat(store: Store, keys: SessionKeys) -> Heartbeat | None:
    """The last heartbeat; None if there is no valid one."""
    return _decoded(Heartbeat, registers_of(store).read(keys.heartbeat))


def pin(store: Store, keys: SessionKeys, names: Set[str]) -> None:
    """Pins these checkpoints, unless they are pinned already. Those that were pinned before may then go.

    Raises Conflict if another controller changes the pins at the same moment: try again.
    """
    registers = registers_of(store)
    held = registers.read(keys.pins)
    before = _decoded(Pins, held)
    if before is None or not names <= before.names:
        value = wire.encode(Pins(frozenset(names)))
        registers.swap(keys.pins, value, None if held is None else held.version)


def pinned(store: Store, keys: SessionKeys) -> frozenset[str]:
    """The checkpoints that the engine relies on. Raises Rejected if nobody can tell, so that none goes."""
    held = registers_of(store).read(keys.pins)
    there = _decoded(Pins, held)
    if held is not None and there is None:
        raise Rejected(f"{keys.pins} cannot be read: no checkpoint of {keys.session} is deleted")
    return frozenset() if there is None else there.names


def _decoded(kind: type[T], held: Held | None) -> T | None:
    """The register's value; None if it is empty or of another kind."""
    try:
        return None if held is None else wire.decode(kind, held.value)
    except ValueError:
        return None
