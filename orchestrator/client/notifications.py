"""What somebody is told, was not told, and a test of it: `client.notifications`.

Imports lazily, so that a listing of runs loads neither the config nor what sends. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.errors import InputError

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.deliveries import Notification, NotifyTest

LISTED_MAX = 1000


class Notifications:
    """Every method may raise BackendError if the ledger cannot be read or written."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, *, all: bool = False, limit: int = LISTED_MAX) -> tuple[Notification, ...]:
        """Those that wait and those that were given up, newest first; with `all` also those that were sent in
        the last 14 days."""
        from orchestrator.client import deliveries

        with self._client.ledgers.existing() as ledger:
            return () if ledger is None else deliveries.listed(ledger, all=all, limit=limit)

    def retry(self, ids: str | Iterable[str] = (), *, all: bool = False) -> int:
        """Has the controller try these again soon, or with `all` every one that was given up. Returns how
        many. An id may be shortened.

        Raises InputError for an id that fits none, or several, or one that was sent.
        """
        from orchestrator.client import deliveries

        given = (ids,) if isinstance(ids, str) else tuple(ids)
        if bool(given) == all:
            raise InputError("give ids, or all of them: `orchestrator notify list` has the ids")
        with self._client.ledgers.existing() as ledger:
            if ledger is None:
                return 0
            return deliveries.retry(ledger, given, self._client.clock.now(), all=all)

    def test(self, target: str | None = None) -> tuple[NotifyTest, ...]:
        """Sends a message to this target now, or to every one of the config, and waits for the answers: up to
        half a minute each. A job's own address is `env:NAME`.

        Raises SpecError for a wrong config, and InputError for a target that it does not have, or if it has
        none.
        """
        from orchestrator.client import deliveries

        return deliveries.test(self._client.wired(), self._client.clock, target)
