"""Whether the controller of a home runs and ticks, and the notes of its ticks that show it.

The ledger's lock shows that a controller died. Only missing notes show that it hangs. Nothing is decided from
the notes. Probes import this every few seconds, so of the config it reads only the database.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client.home import Home
from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.errors import InputError
from orchestrator.files import NO_ROOM, read_own, write_whole, written

if TYPE_CHECKING:
    from orchestrator.ledger import Owner, Standby

NOTE_SECONDS = 2.0
TICK_BYTES_MAX = 4096
TICK_SECONDS_MAX = 20.0  # a tick takes milliseconds and happens once a second


@dataclass(frozen=True)
class Tick:
    """The newest tick of the controller that took over at `since` (Owner.since), by the monotonic clock."""

    since: float
    monotonic: float


class State(StrEnum):
    """How the controller is doing. TICKS and WAITS are healthy."""

    ABSENT = "absent"  # no controller runs
    UNHEARD = "unheard"  # it has not ticked yet, or it uses another home or machine
    FROZEN = "frozen"  # it runs but has not ticked for TICK_SECONDS_MAX
    TICKS = "ticks"
    WAITS = "waits"  # a standby of this machine waits for its turn


@dataclass(frozen=True)
class Health:
    """`owner` is the controlling process, or None. `tick_seconds_ago` is the age of its newest tick, or None
    if no tick is known. Below 0 the machine was restarted since. `standbys` wait for their turn, on any
    machine."""

    owner: Owner | None = None
    tick_seconds_ago: float | None = None
    standbys: tuple[Standby, ...] = ()

    @property
    def standby(self) -> Standby | None:
        """The one of this machine, if it is awake."""
        here = socket.gethostname()
        mine = (each for each in self.standbys if each.is_on(here))
        return next((each for each in mine if each.silent_seconds <= TICK_SECONDS_MAX), None)

    @property
    def state(self) -> State:
        if self.tick_seconds_ago is None and self.standby is not None:
            return State.WAITS
        if self.owner is None:
            return State.ABSENT
        if self.tick_seconds_ago is None:
            return State.UNHEARD
        return State.TICKS if 0.0 <= self.tick_seconds_ago <= TICK_SECONDS_MAX else State.FROZEN


def of(home: Home, clock: Clock, owner: Owner | None, standbys: tuple[Standby, ...] = ()) -> Health:
    """The health of the controller that the ledger names."""
    if owner is None:
        return Health(standbys=standbys)
    try:
        tick = wire.decode(Tick, read_own(home.folders.tick, TICK_BYTES_MAX))
    except (OSError, InputError, ValueError):
        return Health(owner, standbys=standbys)
    ago = clock.monotonic() - tick.monotonic if tick.since == owner.since else None
    return Health(owner, ago, standbys)


def notes(home: Home, clock: Clock, since: float) -> Callable[[], None]:
    """Returns a function to call after each tick of the controller that took over at `since`.

    It writes at most one note in NOTE_SECONDS. If the disk takes no other file, the last note is overwritten.
    """
    noted = float("-inf")

    def note() -> None:
        nonlocal noted
        now = clock.monotonic()
        if now - noted < NOTE_SECONDS:
            return
        noted = now
        with contextlib.suppress(OSError):
            _write(home.folders.tick, wire.encode(Tick(since, now)))

    return note


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data, sync=False)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        with written(path, anew=False) as file:
            file.write(data)
            file.truncate()
