"""`health`: whether the controller of this home lives and ticks; and the notes of its ticks that tell.

That a controller died shows in the ledger's lock; that it hangs shows only in what it stopped writing.
Nothing is decided from the notes. Imported by probes every few seconds: reads no config but the database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.cli.call import Call, Exit
from orchestrator.client.home import Home
from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.errors import BackendError
from orchestrator.files import write_whole
from orchestrator.ledger.takeover import Owner

NOTE_SECONDS = 2.0
TICK_SECONDS_MAX = 20.0  # a tick takes milliseconds and comes once a second


@dataclass(frozen=True)
class Tick:
    """The newest tick of the controller that took over at `since` (Owner.since), by the monotonic clock."""

    since: float
    monotonic: float


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
            write_whole(home.tick, wire.encode(Tick(since, now)), sync=False)

    return note


def health(call: Call) -> int:
    """Succeeds only while a controller of this home's ledger ticks on this machine.

    Raises BackendError where none runs, or the one that does has not ticked for TICK_SECONDS_MAX.
    """
    ledger = call.home.existing_ledger()
    owner = None
    if ledger is not None:
        with ledger:
            owner = ledger.owner()
    if owner is None:
        raise BackendError("no controller runs", backend="controller")
    age = _age(call, owner)
    call.out.document({"controller": owner, "tick_seconds_ago": round(age, 3)})
    call.out.say(f"a controller ticks: {owner}, {age:.1f} s ago")
    return Exit.OK


def tell_absence(call: Call, owner: Owner | None) -> None:
    """Says beside a view of runs under way that nobody looks after them: what it shows may be old."""
    if owner is None:
        up = call.command("up", "--detach")
        call.out.remark(f"no controller runs: sessions go on, but nothing new is decided until `{up}`")
        return
    try:
        tick = wire.decode(Tick, call.home.tick.read_bytes())
    except (OSError, ValueError):
        return
    if tick.since == owner.since and call.clock.monotonic() - tick.monotonic > TICK_SECONDS_MAX:
        call.out.remark(
            f"the controller has not ticked for more than {TICK_SECONDS_MAX:.0f} s, so this may be old; "
            f"{call.home.controller_log} says why"
        )


def _age(call: Call, owner: Owner) -> float:
    """Seconds since its last noted tick. Raises BackendError where that is too long ago, or not known."""
    try:
        tick = wire.decode(Tick, call.home.tick.read_bytes())
    except (OSError, ValueError):
        tick = None
    if tick is None or tick.since != owner.since:
        raise BackendError(
            f"the controller, {owner}, has not ticked yet, or not with the home {call.home.path}",
            backend="controller",
        )
    age = call.clock.monotonic() - tick.monotonic
    if not 0.0 <= age <= TICK_SECONDS_MAX:  # less than 0: noted before the machine was started anew
        raise BackendError(
            f"the controller, {owner}, lives but has not ticked for more than {TICK_SECONDS_MAX:.0f} s",
            backend="controller",
        )
    return age
