"""Whether a controller looks after the runs, and since when none does: what every view says first.

A listing asks it, so it imports little. Starts nothing, and decides nothing about runs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.client import health
from orchestrator.client.health import TICK_BYTES_MAX, State, Tick
from orchestrator.core import wire
from orchestrator.errors import InputError
from orchestrator.files import read_own

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.ledger import Owner, Standby

# Numbers are marked as old from then on. While a controller ticks, a platform may be asked only now and then.
OLD_SECONDS = 60.0
OLD_SECONDS_ATTENDED = 300.0


@dataclass(frozen=True)
class Attendance:
    """`controller` is the controlling process, or None. `since` is when the last tick was, in unix seconds,
    if nobody decides now; None if somebody does, or if that is unknown."""

    state: State
    controller: Owner | None = None
    since: float | None = None
    standbys: tuple[Standby, ...] = ()

    @property
    def is_attended(self) -> bool:
        """Whether what a view shows can be up to date."""
        return self.state not in (State.ABSENT, State.FROZEN)


def attendance(client: Client) -> Attendance:
    """Raises the same errors as opening the ledger."""
    owner = client.ledgers.owner()
    found = health.of(client.home, client.clock, owner)
    if found.state is State.ABSENT:
        found = client.health()  # it may only be restarting, or a standby may be about to take over
    if found.owner is None:
        return Attendance(State.ABSENT, None, _left_at(client), found.standbys)
    frozen = found.state is State.FROZEN and found.tick_seconds_ago is not None
    since = client.clock.now() - max(0.0, found.tick_seconds_ago or 0.0) if frozen else None
    return Attendance(found.state, found.owner, since, found.standbys)


def _left_at(client: Client) -> float | None:
    """When the last controller noted its last tick; None if it did so in another home, or never."""
    with client.ledgers.existing() as ledger, contextlib.suppress(OSError, InputError, ValueError):
        last = ledger.owner(last=True) if ledger is not None else None
        path = client.home.folders.tick
        if last is not None and wire.decode(Tick, read_own(path, TICK_BYTES_MAX)).since == last.since:
            return path.stat().st_mtime
    return None


def old_seconds(read_at: float | None, now: float, *, attended: bool) -> float | None:
    """How old numbers of then are; None if they are as new as can be, or if there are none."""
    age = 0.0 if read_at is None else now - read_at
    return age if age >= (OLD_SECONDS_ATTENDED if attended else OLD_SECONDS) else None
