"""The runs in the configured stores, whether or not this ledger knows them: `client.stores`.

Imports lazily, so that a listing of the ledger loads no store. Decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.adopting import Adoption
    from orchestrator.client.client import Client
    from orchestrator.client.stored import StoredRun


class Stores:
    """What the stores of a client say. Every method raises SpecError for a wrong config."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def runs(self, store: str) -> tuple[StoredRun, ...]:
        """Every run in this store. Raises InputError for an unknown store, and BackendError if it does not
        answer."""
        from orchestrator.client import stored
        from orchestrator.stores import deposits

        opened = stored.opened_stores(self._client, store)[store]
        return tuple(stored.stored_run(self._client, store, said) for said in deposits.everything(opened))

    def absence(self, store: str) -> str:
        """Why this store has nothing at all, such as a folder that does not exist; empty if it is there."""
        from orchestrator.client import stored
        from orchestrator.stores.store import absence

        return absence(stored.opened_stores(self._client, store)[store])

    def run(self, name: str, store: str | None = None) -> StoredRun:
        """Finds a run by its name or a unique prefix, in this store or in all of them. If several have it,
        the one that was told of it last counts.

        Raises InputError with the nearest names and the stores that were searched, and Transient if it may be
        in a store that does not answer.
        """
        from orchestrator.client import stored

        return stored.find(self._client, name, store)

    def adopt(
        self,
        store: str,
        runs: str | Iterable[str] = (),
        *,
        dry_run: bool = False,
        inputs: Mapping[str, str | os.PathLike[str]] = MappingProxyType({}),
        progress: Callable[[str], None] | None = None,
    ) -> tuple[Adoption, ...]:
        """Records the runs of this store, or these, in this ledger. Runs that it has already do not change,
        except one of `runs` that another ledger has adopted since: it is taken back.

        A run that was over is over. Any other is held until `release`: stop its old controller before.
        `dry_run`: only say what would happen. `inputs`: by its name, the path on this machine of an input
        that the store lacks. `progress` is called with each run's name. Raises InputError for an unknown
        store or run, and BackendError if the store or the ledger does not answer.
        """
        from orchestrator.client import adopting

        names = (runs,) if isinstance(runs, str) else tuple(runs)
        given = {name: Path(path) for name, path in inputs.items()}
        return adopting.adopt(self._client, store, names, dry_run=dry_run, given=given, progress=progress)

    def take_over(
        self, store: str = "", *, dry_run: bool = False, progress: Callable[[str], None] | None = None
    ) -> tuple[Adoption, ...]:
        """Puts this home in charge of this store, or of every store, that another copy of the home has used
        since, or that knows more of its runs than its ledger does. The runs under way go on from the newest
        checkpoints there, unless a person held them; a controller is started for them. Empty if each store
        is this home's already. `dry_run` and `progress` as in `adopt`, and the same errors.
        """
        from orchestrator.client import taking_over

        return taking_over.command(self._client, store, dry_run=dry_run, progress=progress)
