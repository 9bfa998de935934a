"""The registers of an uplink: a run's fence, a session's claim and heartbeat, and the rules of their change.

The fence is the generation that may publish; it only ever rises, and only the engine raises it. A claim is
made once, by the first agent that comes. A heartbeat changes as long as its agent lives.
Knows no clock: how old a heartbeat is, only who watches it change can tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from orchestrator.core import wire
from orchestrator.core.order import AgentStatus
from orchestrator.errors import Conflict, Rejected, Superseded
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.store import Store
from orchestrator.uplink.layout import SessionKeys, fence_key

T = TypeVar("T")


@dataclass(frozen=True)
class Fence:
    """No session of an older generation may publish, nor one of a later."""

    generation: int


@dataclass(frozen=True)
class Claim:
    """The one agent of a session that may publish."""

    incarnation: str


@dataclass(frozen=True)
class Heartbeat:
    """The agent's last status that was shipped, which counts; the checkpoint it names is in the store.
    `result`: the sha256 of the agent's result, once that is there, as the last of all."""

    status: AgentStatus
    result: str | None = None


def registers_of(store: Store) -> Registers:
    """Raises Rejected for a store without compare-and-swap."""
    if store.registers is None:
        raise Rejected("this store has no registers, which sessions with an uplink need")
    return store.registers


def raise_fence(store: Store, run: str, generation: int) -> int:
    """From now on no generation below this one publishes; returns the fence, which may have been higher.

    Raises Conflict where another raises it just now: ask again. What is no fence is written over.
    """
    registers, key = registers_of(store), fence_key(run)
    held = registers.read(key)
    there = _decoded(Fence, held)
    if there is not None and there.generation >= generation:
        return there.generation
    registers.swap(key, wire.encode(Fence(generation)), None if held is None else held.version)
    return generation


def check_fence(store: Store, run: str, generation: int) -> None:
    """Raises Superseded unless the fence is at this generation."""
    there = _decoded(Fence, registers_of(store).read(fence_key(run)))
    if there is None or there.generation != generation:
        at = "has no fence" if there is None else f"is at generation {there.generation}"
        raise Superseded(f"{run} {at}: generation {generation} publishes nothing more")


def claim(store: Store, keys: SessionKeys, incarnation: str) -> None:
    """Makes the session this agent's, unless it is already. Raises Superseded where it is another's."""
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
        raise Superseded(f"{keys.session} belongs to another agent: {incarnation} publishes nothing")


def claimant(store: Store, keys: SessionKeys) -> str | None:
    """The agent that has claimed the session; None where none has, or what lies there is no claim."""
    there = _decoded(Claim, registers_of(store).read(keys.claim))
    return None if there is None else there.incarnation


def beat(store: Store, keys: SessionKeys, beats: Heartbeat) -> None:
    """Writes the heartbeat, unless it says so already."""
    registers, value = registers_of(store), wire.encode(beats)
    held = registers.read(keys.heartbeat)
    if held is None or held.value != value:
        registers.swap(keys.heartbeat, value, None if held is None else held.version)


def heartbeat(store: Store, keys: SessionKeys) -> Heartbeat | None:
    """The last one; None where there is none, or what lies there is no heartbeat."""
    return _decoded(Heartbeat, registers_of(store).read(keys.heartbeat))


def _decoded(kind: type[T], held: Held | None) -> T | None:
    """What a register holds; None where it holds nothing, or nothing of the kind."""
    try:
        return None if held is None else wire.decode(kind, held.value)
    except ValueError:
        return None
