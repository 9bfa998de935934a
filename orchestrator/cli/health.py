"""`health`: succeeds only while the controller of this home ticks. Also what views say when it does not.

Probes call it every few seconds, so of the config it reads only the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.call import Call, Exit
from orchestrator.client import health as healths
from orchestrator.client.health import TICK_SECONDS_MAX, Health, State
from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.client import Owner


def health(call: Call) -> int:
    """Succeeds only while a controller of this home's ledger ticks on this machine, or a standby waits here.

    Raises BackendError if no controller runs, or if it has not ticked for TICK_SECONDS_MAX.
    """
    found = call.client.health()
    age = found.tick_seconds_ago
    if found.state not in (State.TICKS, State.WAITS):
        raise BackendError(_trouble(call, found), backend="controller")
    ago = None if age is None else round(age, 3)
    call.out.document({"controller": found.owner, "tick_seconds_ago": ago, "standbys": found.standbys})
    if age is not None:
        call.out.say(f"a controller ticks: {found.owner}, {age:.1f} s ago")
    for each in found.standbys:
        call.out.say(f"standing by: {each}")
    if age is None:
        call.out.say(f"the controller: {found.owner or 'none yet, the standby takes over'}")
    return Exit.OK


def _trouble(call: Call, found: Health) -> str:
    if found.state is State.ABSENT:
        return "no controller is running"
    if found.state is State.UNHEARD:
        return (
            f"the controller, {found.owner}, has not ticked yet, or uses another home than {call.home.path}"
        )
    return f"the controller, {found.owner}, runs but has not ticked for more than {TICK_SECONDS_MAX:.0f} s"


def tell_absence(call: Call, owner: Owner | None) -> None:
    """Warns, beside a view of runs under way, that no controller looks after them and the view may be old."""
    found = healths.of(call.home, call.clock, owner)
    if found.state is State.ABSENT:
        again = call.client.health()  # a standby may be about to take over, or have done so
        if again.owner is not None:
            return
        if again.standbys:
            told = f"no controller is running; a standby is to take over: {again.standbys[0]}"
            call.out.remark(f"{told}. If this lasts, see what it says")
            return
        up = call.command("up", "--detach")
        call.out.remark(
            f"no controller is running: sessions continue, but nothing new is decided; start one with `{up}`"
        )
    elif found.tick_seconds_ago is not None and found.tick_seconds_ago > TICK_SECONDS_MAX:
        call.out.remark(
            f"the controller has not ticked for more than {TICK_SECONDS_MAX:.0f} s, so this may be old; "
            f"for the cause see {call.home.folders.controller_log}"
        )
