"""What is done with a job before it is submitted: `client.jobs`. Imports lazily. Decides nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.drafting import Drafted
    from orchestrator.rehearsal.judging import Rehearsed


class Jobs:
    """A first job file for a script, and whether a job resumes exactly."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def draft(
        self,
        script: str | os.PathLike[str],
        target: str | os.PathLike[str] | None = None,
        *,
        force: bool = False,
    ) -> Drafted:
        """Writes a first job file for a Python script or notebook, which is read and not run: by default
        beside it. Says what an exact resume still needs.

        Raises InputError for what is no script, and if the file exists, unless `force`.
        """
        from orchestrator.client import drafting

        where = None if target is None else Path(target)
        return drafting.draft(self._client, Path(script), where, force=force)

    def rehearse(
        self,
        job: str | os.PathLike[str],
        *,
        platform: str | None = None,
        steps: int | None = None,
        patience: float = 120.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> Rehearsed:
        """Trains a few steps of the job here several times: without interruption, then stopped, killed and
        resumed. Says whether it resumes exactly and what is lost if not.

        `platform`: a process or Docker platform of the config, or `process` or `docker`. `steps`: how many to
        train, if the command has `{steps}`; by default as many as take a few seconds. `patience`: seconds
        without a new checkpoint after which a training is stopped. `say` takes a line of progress. Starts no
        controller and uses no quota. Raises the same errors as `Client.plan`, and BackendError.
        """
        from orchestrator.client import rehearsing

        return rehearsing.rehearse(
            self._client, job, platform=platform, steps=steps, patience=patience, say=say
        )
