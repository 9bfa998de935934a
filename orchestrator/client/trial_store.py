"""The home store, as the sessions of trials ship to it.

Notes each session before anything of it is there, so that a later trial removes what one that died left
behind. Must never touch the keys of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from orchestrator.core.order import run_of
from orchestrator.engine.perform import shipping_to
from orchestrator.files import append, make_folder, remove_tree
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Shipping
from orchestrator.stores.store import Store, snapshot
from orchestrator.uplink import outbox as uplinked
from orchestrator.uplink.layout import fence_key
from orchestrator.uplink.registers import raise_fence, registers_of


class HomeStoreOfTrials:
    """Implements `orchestrator.platforms.platform.TrialStore`. The store is opened with the first use.
    `program` is the uplink as one zip application, and `notes` a folder of one platform's trials."""

    def __init__(self, store: Callable[[], Store], program: Path, notes: Path) -> None:
        self._opened = cache(store)
        self._program = program
        self._notes = notes

    def shipping(self) -> Shipping:
        return shipping_to(self._opened(), self._program)

    def begin(self, session: str, generation: int) -> None:
        make_folder(self._notes, 0o700)
        append(self._notes / session, b"")
        raise_fence(self._opened(), run_of(session), generation)

    def outbox(self, session: str, generation: int) -> Outbox:
        return uplinked.StoreOutbox(self._opened(), run_of(session), session, generation)

    def clear(self, session: str) -> None:
        store, run = self._opened(), run_of(session)
        registers_of(store).delete(fence_key(run))  # first: without it, nothing is published
        uplinked.remove(store, run, session)
        with snapshot(store):
            for stat in list(store.list(f"runs/{run}/")):
                store.delete(stat.key)
        remove_tree(self._notes / session)

    def noted(self) -> tuple[str, ...]:
        """The sessions of which something may be in the store."""
        return tuple(sorted(each.name for each in self._notes.glob("*-trial-*")))

    def clear_dead(self, under_way: Callable[[], Collection[str]]) -> None:
        """Removes what is there of trials that died. `under_way` has the names of those that did not."""
        noted = self.noted()
        alive = under_way()  # read last: it holds whatever was noted
        for session in noted:
            if run_of(session) not in alive:
                self.clear(session)
