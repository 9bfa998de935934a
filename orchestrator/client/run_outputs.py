"""`run.outputs`: the files that a run's sessions left for people. Imports lazily. Decides nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.outputs import PulledOutputs
    from orchestrator.client.pulling import Progressed
    from orchestrator.core.run import RunRecord
    from orchestrator.stores.store import Store


class RunOutputs:
    """Of one run. `read` gives its record and its home store, both as they are now."""

    def __init__(self, client: Client, read: Callable[[], tuple[RunRecord, Store]]) -> None:
        self._client, self._read = client, read

    def pull(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        session: int | None = None,
        progress: Progressed | None = None,
    ) -> PulledOutputs:
        """Copies them into the folder `target`, by default `<run>-outputs` here. Of each file the newest
        version, or that of one `session`.

        Otherwise like `Run.pull`. Raises InputError if there are none.
        """
        from orchestrator.client import outputs, pulled

        record, store = self._read()
        wanted = outputs.wanted(record, session)
        folder = Path(target) if target is not None else None
        found = outputs.bring(store, record, wanted, folder, self._client.clock, progress)
        pulled.remember(self._client.home.folders, found.folder)
        return found
