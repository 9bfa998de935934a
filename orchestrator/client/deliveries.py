"""Notifications for people: what waits to be told, what was given up, whom it goes to, and a test.

Decides nothing about when a message is sent: the controller does. Must never repeat an address.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator import sending
from orchestrator.client.home import Home
from orchestrator.client.notifying import address
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.core.delivery import Answer, State
from orchestrator.core.message import message, test_message
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.ledger import Ledger
from orchestrator.ledger.notifications import Row
from orchestrator.references import REFERENCE

LISTED_STATES = (State.WAITING, State.DEAD)
_SHORTEST = 4  # characters of an id
NO_TARGETS = (
    "the config has no targets for notifications; add one to {config}:\n"
    "notify:\n  - name: phone\n    url: env:NOTIFY_URL"
)


@dataclass(frozen=True)
class NotifyTest:
    """What became of a test. `said` is in words, without any part of the address."""

    target: str
    delivered: bool
    said: str
    seconds: float


@dataclass(frozen=True)
class Notification:
    """One notification. `title` says what happened. `next_at`: when it is tried again; None if it is
    not, or if its turn is now. `error`: how the last attempt failed, or the digest that it is part of. Times
    in unix seconds."""

    id: str
    target: str
    kind: str
    run: str
    state: State
    title: str
    created_at: float
    attempts: int
    next_at: float | None
    error: str


def listed(ledger: Ledger, *, all: bool, limit: int) -> tuple[Notification, ...]:
    """Those that wait and those that were given up, newest first; with `all` also those that were sent."""
    return tuple(map(_shown, ledger.notifications.rows(tuple(State) if all else LISTED_STATES, limit)))


def retry(ledger: Ledger, ids: tuple[str, ...], now: float, *, all: bool) -> int:
    """Makes them due now. Raises InputError for an id that fits none, or several."""
    rows = ledger.notifications.rows(LISTED_STATES)
    dead = [row.id for row in rows if row.state is State.DEAD]
    wanted = dead if all else [_found(each, rows) for each in ids]
    return ledger.notifications.retry(wanted, now)


def test(wired: Wired, clock: Clock, target: str | None) -> tuple[NotifyTest, ...]:
    """Sends a message now. Raises InputError for an unknown target, or if the config has none."""
    names = [each.name for each in wired.config.targets]
    if target is None and not names:
        raise InputError(NO_TARGETS.format(config=wired.folders.config))
    if target is not None and target not in names and not REFERENCE.fullmatch(target):
        raise InputError(unknown(f"target {target!r}", target, names))
    return tuple(_try(wired, clock, name) for name in ([target] if target is not None else names))


def _try(wired: Wired, clock: Clock, target: str) -> NotifyTest:
    began = clock.monotonic()
    try:
        told = test_message(secrets.token_hex(16), target, clock.now())
        found = sending.send(address(wired.config, target), told)
        delivered, said = found.answer is Answer.SENT, found.said
    except OrchestratorError as error:
        delivered, said = False, str(error)
    return NotifyTest(target, delivered, said, clock.monotonic() - began)


@dataclass(frozen=True)
class TargetState:
    """How a target is: `trouble` with its address, empty if none is known; how many messages wait, and were
    given up."""

    name: str
    trouble: str
    waiting: int
    dead: int


def targets(home: Home, wired: Wired) -> tuple[TargetState, ...]:
    """The config's targets, and those others that messages wait for. Sends nothing."""
    ledger = home.existing_ledger()
    found: dict[tuple[str, State], int] = {}
    if ledger is not None:
        with ledger:
            found = {(each.target, each.state): each.rows for each in ledger.notifications.counts()}
    held = [target for target, state in found if state in LISTED_STATES]
    names = dict.fromkeys([*(each.name for each in wired.config.targets), *held])
    return tuple(
        TargetState(name, _trouble(wired, name), *(found.get((name, state), 0) for state in LISTED_STATES))
        for name in names
    )


def _trouble(wired: Wired, target: str) -> str:
    try:
        return sending.trouble(address(wired.config, target))
    except OrchestratorError as error:
        return str(error)


def _found(given: str, rows: Iterable[Row]) -> str:
    found = [row.id for row in rows if row.id == given or row.id.startswith(given)]
    if len(found) == 1 and len(given) >= _SHORTEST:
        return found[0]
    if len(found) > 1:
        raise InputError(f"{given!r} is the beginning of {len(found)} notifications: write more of it")
    raise InputError(f"no notification {given!r} waits or was given up; `orchestrator notify list` has them")


def _shown(row: Row) -> Notification:
    title = f"damaged: {row.damaged}" if row.damaged else "this version cannot read it"
    if row.body is not None:
        title = message(row.id, row.body).title
    next_at = (row.due_at or None) if row.state is State.WAITING and row.attempts else None
    return Notification(row.id, row.target, row.kind, row.run, row.state, title, row.created_at, row.attempts,
                        next_at, row.error)  # fmt: skip
