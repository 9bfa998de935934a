"""`health`: succeeds only while the controller of this home ticks. Also what views say when it does not.

Probes call it every few seconds, so of the config it reads only the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.call import Call, Exit, holders
from orchestrator.client import health as healths
from orchestrator.client.attendance import Attendance, attendance
from orchestrator.client.health import TICK_SECONDS_MAX, Health, State
from orchestrator.clock import utc_text
from orchestrator.core.wording import span
from orchestrator.errors import BackendError
from orchestrator.files.room import is_full, shortage

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
    if is_full(call.home.path):
        call.out.remark(f"nothing new can be stored: {_full(call)}")
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
    why = f", because {_full(call)}" if is_full(call.home.path) else ""
    return (
        f"the controller, {found.owner}, runs but has not ticked for more than {TICK_SECONDS_MAX:.0f} s{why}"
    )


def _full(call: Call) -> str:
    return shortage(call.home.path, *holders(call.home.path))[0]


def tell_first(call: Call, found: Attendance) -> None:
    """Says on the first line of a view of runs under way that nobody looks after them, and since when."""
    if text := absence_text(call, found):
        call.out.wrapped(text, "yellow")


def absence_text(call: Call, found: Attendance) -> str:
    """Why what a view shows may be old; empty if a controller ticks."""
    now = call.clock.now()
    if found.state is State.ABSENT:
        since = ""
        if found.since is not None:
            since = f" since {utc_text(found.since)} ({span(max(0.0, now - found.since))} ago)"
        if found.standbys:
            waits = f"a standby is to take over: {found.standbys[0]}"
            return f"no controller is running{since}; {waits}. If this lasts, see what it says"
        up = call.command("up", "--detach")
        return f"no controller is running{since}; nothing moves until `{up}`"
    if found.state is State.FROZEN:
        ago = f" for {span(now - found.since)}" if found.since is not None else ""
        if is_full(call.home.path):
            return (
                f"the controller has not ticked{ago}, because {_full(call)}; nothing moves until there is "
                f"room: `{call.command('prune')}` and `{call.command('rm')}` can help"
            )
        log = call.command("logs", "--controller", "--tail", "20")
        return f"the controller has not ticked{ago}, so this may be old; for the cause see `{log}`"
    return ""


def tell_absence(call: Call, owner: Owner | None) -> None:
    """Warns, beside what needs a controller, that none is running or that it does not tick."""
    if healths.of(call.home, call.clock, owner).state in (State.ABSENT, State.FROZEN):
        found = attendance(call.client)
        if text := absence_text(call, found):
            call.out.remark(text)
