"""Whether the controller of a home lives and ticks; and the notes of its ticks that tell.

That a controller died shows in the ledger's lock; that it hangs shows only in what it stopped writing.
Nothing is decided from the notes. Imported by probes every few seconds: reads no config but the database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.client.home import Home
from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.files import write_whole

if TYPE_CHECKING:
    from orchestrator.ledger import Owner

NOTE_SECONDS = 2.0
TICK_SECONDS_MAX = 20.0  # a tick takes milliseconds and comes once a second


@dataclass(frozen=True)
class Tick:
    """The newest tick of the controller that took over at `since` (Owner.since), by the monotonic clock."""

    since: float
    monotonic: float


class State(StrEnum):
    """How the controller does. Only TICKS is well."""

    ABSENT = "absent"  # none runs
    UNHEARD = "unheard"  # it has not ticked yet, or not with this home on this machine
    FROZEN = "frozen"  # it lives, and has not ticked for TICK_SECONDS_MAX
    TICKS = "ticks"


@dataclass(frozen=True)
class Health:
    """`owner` is the process that controls, None where none does. `tick_seconds_ago` is the age of its newest
    tick, None where none is known; below 0, the machine was started anew since."""

    owner: Owner | None = None
    tick_seconds_ago: float | None = None

    @property
    def state(self) -> State:
        if self.owner is None:
            return State.ABSENT
        if self.tick_seconds_ago is None:
            return State.UNHEARD
        return State.TICKS if 0.0 <= self.tick_seconds_ago <= TICK_SECONDS_MAX else State.FROZEN


def of(home: Home, clock: Clock, owner: Owner | None) -> Health:
    """The health of the controller that the ledger says there is."""
    if owner is None:
        return Health()
    try:
        tick = wire.decode(Tick, home.folders.tick.read_bytes())
    except (OSError, ValueError):
        return Health(owner)
    return Health(owner, clock.monotonic() - tick.monotonic if tick.since == owner.since else None)


def notes(home: Home, clock: Clock, since: float) -> Callable[[], None]:
    """To be called after each tick of the controller that took over at `since`: writes at most one note in
    NOTE_SECONDS. A disk that is full costs only the note."""
    noted = float("-inf")

    def note() -> None:
        nonlocal noted
        now = clock.monotonic()
        if now - noted < NOTE_SECONDS:
            return
        noted = now
        with contextlib.suppress(OSError):
            write_whole(home.folders.tick, wire.encode(Tick(since, now)), sync=False)

    return note
