"""Backups of one home: written while everything goes on, and restored into another.

Imports lazily, because every command makes one of these. `backing_up` and `restoring` do the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import InputError
from orchestrator.user import expanded

if TYPE_CHECKING:
    from orchestrator.client.backing_up import BackUp
    from orchestrator.client.client import Client
    from orchestrator.client.restoring import Restored


def _silent(_: str) -> None:
    return None


class Backups:
    """What `client.backups` offers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def write(
        self,
        target: str | os.PathLike[str],
        *,
        checkpoints: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> BackUp:
        """Writes the ledger, the config and what only the home has into one file, while all goes on.

        `target`: the file, or a folder to put it in. It is verified before it gets its name, and then takes
        the place of an earlier backup there. `checkpoints`: include the stores that lie in the home. Raises
        InputError if there is no ledger, if another file has that name, if it is neither a folder nor a name
        that ends with .tar.gz, or if it cannot be created, and OSError or BackendError if the file cannot be
        written or read back.
        """
        from orchestrator.client import backing_up

        path, say = expanded(Path(target)).absolute(), progress or _silent
        if os.fspath(target).endswith(os.sep) and not path.is_dir():
            raise InputError(f"there is no folder {path}: create it first (mkdir -p)")
        return backing_up.back_up(
            self._client.home, self._client.clock, path, checkpoints=checkpoints, progress=say
        )

    def restore(
        self,
        backup: str | os.PathLike[str],
        *,
        dry_run: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> Restored:
        """Brings a backup into the home, which must have no ledger. The old home must never run again.

        Every run that was under way goes on from the newest checkpoint that its store has; sessions that were
        started after the backup are fenced out. Before it changes anything, raises InputError if the home has
        a ledger, its database or the old home is in use, or the config that it will have is wrong, and
        BackendError for a damaged backup. A dry run changes nothing: its `refused` says what of this stands
        in the way.
        """
        from orchestrator.client import restoring

        path = expanded(Path(backup)).absolute()
        return restoring.restore(self._client, path, dry_run=dry_run, progress=progress or _silent)
