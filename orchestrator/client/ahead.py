"""`client.outlook(…)`: what is expected of the runs. Imports lazily. Decides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.imagining import Imagined
    from orchestrator.client.outlooking import Outlook


class Ahead:
    """Looks ahead for a client: call it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(
        self,
        job: str | os.PathLike[str] | None = None,
        *,
        platforms: str | Iterable[str] = (),
        deadline: str | float | None = None,
    ) -> Outlook:
        """The expected sessions and the expected end of every run: running, waiting and scheduled.

        With `job`, also of a run of this YAML file, as if it were submitted now; `platforms`: use only these
        for it. `deadline`: say whether it can be met; unix seconds, or words such as "Fri 09:00" in the
        config's time zone. Launches and writes nothing. Asks every platform, which takes up to 30 seconds.
        Raises the same errors as `Client.plan`, and InputError for a deadline that is no time or is over,
        or with a job that has a schedule.
        """
        from orchestrator.client.outlooking import find

        wanted = (platforms,) if isinstance(platforms, str) else tuple(platforms)
        return find(self._client, job, wanted, deadline)

    def on(self, job: str | os.PathLike[str], accelerators: str | Iterable[str]) -> tuple[Imagined, ...]:
        """What the job in this YAML file would take on accelerators that need not be there, on an assumed
        machine. Asks no platform and changes no routing. Raises SpecError for a wrong job, and InputError for
        an unknown accelerator."""
        from orchestrator.client.imagining import imagine

        return imagine(self._client, job, (accelerators,) if isinstance(accelerators, str) else accelerators)
