"""What a ledger's past says: `client.past`. Decisions made again, and the same time with another config.

Imports lazily, so that a listing of the ledger loads neither the config nor any platform. Changes nothing. It
works on a copy of a home, and while a controller runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.replaying import Replay
    from orchestrator.hindsight.comparing import Comparison

MONTH_SECONDS = 30 * 86400.0


class Past:
    """The journals of a client's runs. Every method may raise BackendError if the ledger cannot be read."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def replay(self, run: str) -> Replay:
        """Makes the decisions of this run again, routing included, and says which differ today.

        Raises InputError for an unknown run, like `Client.run`.
        """
        from orchestrator.client import replaying

        return replaying.replay(self._client, run)

    def replays(self, *, since_seconds: float | None = None) -> Iterator[Replay]:
        """The same for every run, or for those that were under way within the last `since_seconds`; one after
        the other, in the order of submission. Raises InputError if there is no ledger yet."""
        from orchestrator.client import replaying

        return replaying.replays(self._client, since_seconds)

    def suppose(
        self,
        config: str | os.PathLike[str],
        *,
        since_seconds: float | None = MONTH_SECONDS,
        offers: str | Iterable[str] = (),
        progress: Callable[[str, int], None] | None = None,
    ) -> Comparison:
        """What would have happened with the config in this file, in the last `since_seconds` (None: ever).

        `offers`: what platforms have that were never asked, each `NAME=ACCELERATOR` or
        `NAME=ACCELERATOR:SLOTS`.
        `progress` is called with what is being done, and for how many runs it is. Asks no platform. Raises
        SpecError for a wrong config; and InputError if it cannot be read, for a new platform whose offers are
        not known, for wrong `offers`, or if nothing was recorded in that time.
        """
        from orchestrator.client import supposing

        given = (offers,) if isinstance(offers, str) else tuple(offers)
        return supposing.suppose(self._client, config, since_seconds, given, progress)
