"""What waits to be told, what was given up, and a test of those who are told: `client.notifications`.

Imports lazily, so that a listing loads neither the config nor what sends. Decides nothing about when a
message is sent: the controller does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.delivery import State
from orchestrator.errors import InputError

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.home import Home
    from orchestrator.client.wiring import Wired
    from orchestrator.ledger.notifications import Row

LISTED_STATES = (State.WAITING, State.DEAD)
LISTED_MAX = 1000
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
    """One message of the outbox. `title` says what happened. `next_at`: when it is tried again; None if it is
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


class Notifications:
    """Every method may raise BackendError if the ledger cannot be read or written."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, *, all: bool = False, limit: int = LISTED_MAX) -> tuple[Notification, ...]:
        """Those that wait and those that were given up, newest first; with `all` also those that were sent in
        the last 14 days."""
        states = tuple(State) if all else LISTED_STATES
        with self._client.ledgers.existing() as ledger:
            rows = () if ledger is None else ledger.notifications.rows(states, limit)
        return tuple(map(_shown, rows))

    def retry(self, ids: str | Iterable[str] = (), *, all: bool = False) -> int:
        """Has the controller try these again soon, or with `all` every one that was given up. Returns how
        many. An id may be shortened.

        Raises InputError for an id that fits none, or several, or one that was sent.
        """
        given = (ids,) if isinstance(ids, str) else tuple(ids)
        if bool(given) == all:
            raise InputError("give ids, or all of them: `orchestrator notify list` has the ids")
        with self._client.ledgers.existing() as ledger:
            rows = () if ledger is None else ledger.notifications.rows(LISTED_STATES)
            dead = [row.id for row in rows if row.state is State.DEAD]
            wanted = dead if all else [_found(each, rows) for each in given]
            if ledger is None or not wanted:
                return 0
            return ledger.notifications.retry(wanted, self._client.clock.now())

    def test(self, target: str | None = None) -> tuple[NotifyTest, ...]:
        """Sends a message to this target now, or to every one of the config, and waits for the answers: up to
        half a minute each. A job's own address is `env:NAME`.

        Raises SpecError for a wrong config, and InputError for a target that it does not have, or if it has
        none.
        """
        from orchestrator.core.wording import unknown
        from orchestrator.references import REFERENCE

        wired = self._client.wired()
        names = [each.name for each in wired.config.targets]
        if target is None and not names:
            raise InputError(NO_TARGETS.format(config=wired.folders.config))
        if target is not None and target not in names and not REFERENCE.fullmatch(target):
            raise InputError(unknown(f"target {target!r}", target, names))
        return tuple(self._try(wired, name) for name in ([target] if target is not None else names))

    def _try(self, wired: Wired, target: str) -> NotifyTest:
        import secrets

        from orchestrator import sending
        from orchestrator.client.notifying import address
        from orchestrator.core.delivery import Answer
        from orchestrator.core.message import test_message
        from orchestrator.errors import OrchestratorError

        clock = self._client.clock
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
    from orchestrator import sending
    from orchestrator.client.notifying import address
    from orchestrator.errors import OrchestratorError

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
    from orchestrator.core.message import message

    title = "this version cannot read it" if row.body is None else message(row.id, row.body).title
    next_at = row.due_at if row.state is State.WAITING and row.attempts else None
    return Notification(row.id, row.target, row.kind, row.run, row.state, title, row.created_at, row.attempts,
                        next_at, row.error)  # fmt: skip
