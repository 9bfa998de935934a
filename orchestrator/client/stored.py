"""Runs as a store describes them: listed and pulled without this machine's ledger.

Decides which store's word counts for a run, and which of its checkpoints were accepted. Must never write to a
store or a ledger. What was not accepted, as far as the store says, is verified by its manifest alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client import checkpoints as listing
from orchestrator.client import pulled, pulling
from orchestrator.client.run_outputs import RunOutputs
from orchestrator.core.checkpoint import Accepted, CheckpointRef, newest
from orchestrator.core.deposit import Deposit, record_of
from orchestrator.core.job import Job, Work
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import did_you_mean, unknown
from orchestrator.errors import CorruptCheckpoint, InputError, NotFound, OrchestratorError, Transient
from orchestrator.stores import checkpoints as manifests
from orchestrator.stores import deposits
from orchestrator.stores.deposits import Said
from orchestrator.stores.store import Store, absence

if TYPE_CHECKING:
    from orchestrator.client.checkpoints import Checkpoint
    from orchestrator.client.client import Client
    from orchestrator.client.pulling import Progressed, Pulled, Wanted

CANDIDATES_MAX = 10
_PREFIX = re.compile(r"[a-z0-9][a-z0-9-]{0,199}")
_NEAREST = 3


@dataclass(frozen=True)
class StoredRun:
    """A run in the store of this name in the config. `told` is False if the store says nothing of it but its
    checkpoints: then nobody knows which were accepted, and the phase is None.

    `step` is that of the newest accepted checkpoint, or else of any. `troubles`: why what the store was told
    last could not be used. `encrypted`: because it cannot be decrypted here. `said` is all that it says.
    """

    run: str
    store: str
    told: bool
    phase: Phase | None
    step: int | None
    checkpoints_count: int
    troubles: tuple[str, ...]
    said: Said = field(repr=False, compare=False)
    client: Client = field(repr=False, compare=False)

    @property
    def encrypted(self) -> bool:
        return self.said.encrypted

    def checkpoints(self, *, verify: bool = False) -> tuple[Checkpoint, ...]:
        """Its checkpoints, oldest first: those that were accepted, and others that have a manifest, which are
        not `authenticated`. `verify`: read every byte. Raises BackendError if the store does not answer."""
        store = self._store()
        found = listing.checkpoints(store, self._record(store, everything=True), verify=verify)
        accepted = self._record(store, everything=False)
        last, best = newest(accepted.accepted), listing.best(accepted)
        if last is None:
            return found
        return tuple(
            replace(each, newest=each.name == last.name, best=best is not None and each.name == best.name)
            for each in found
        )

    def pull(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        step: Wanted = "latest",
        progress: Progressed | None = None,
    ) -> Pulled:
        """Like `Run.pull`. The newest and the best are those of the accepted checkpoints, if the store says
        which these are. A `step` may also name another, and then the result is not `authenticated`."""
        store = self._store()
        record = self._record(store, everything=isinstance(step, int) or not self._accepted())
        if step == "best" and not self.told:
            raise InputError(f"the store {self.store} does not say what is best for {self.run}: give a step")
        wanted = pulling.wanted(record, step)
        folder = Path(target) if target is not None else None
        found = pulling.bring(store, record, wanted, folder, self.client.clock, progress)
        pulled.remember(self.client.home.folders, found.folder)
        return found

    @property
    def outputs(self) -> RunOutputs:
        """Like `Run.outputs`. Only outputs that the store says were accepted count."""
        return RunOutputs(self.client, self._told)

    def _told(self) -> tuple[RunRecord, Store]:
        store = self._store()
        return self._record(store, everything=False), store

    def _store(self) -> Store:
        return self.client.wired().store(self.store)

    def _accepted(self) -> tuple[Accepted, ...]:
        return self.said.deposit.accepted if self.said.deposit is not None else ()

    def _record(self, store: Store, *, everything: bool) -> RunRecord:
        """The run to look at; with `everything` also with checkpoints that nobody accepted."""
        said = self.said.deposit
        record = _untold(self.run) if said is None else record_of(said, self.store)
        if not everything:
            return record
        known = {each.name for each in record.stored}
        unknown = [ref for ref in self.said.checkpoints if ref.name not in known]
        others = [_by_manifest(store, self.run, ref) for ref in unknown if not ref.outputs]
        return replace(record, accepted=(*record.accepted, *others))


def _untold(run: str) -> RunRecord:
    """A run of which only checkpoints are known."""
    return RunRecord(run, Job(name=run, command=(), work=Work(1, 1), profiles=()), 0.0)


def _by_manifest(store: Store, run: str, ref: CheckpointRef) -> Accepted:
    """A checkpoint that only its manifest vouches for. A damaged one is listed with its trouble later."""
    try:
        found = manifests.read(store, run, ref.name)
    except (CorruptCheckpoint, NotFound):
        return Accepted(ref, 0)
    return Accepted(ref, found.size, found.metrics, found.created_at)


def find(client: Client, name: str, store: str | None) -> StoredRun:
    """See `Stores.run`."""
    opened = opened_stores(client, store)
    found, silent = _starting(client, opened, name)
    exact = [each for each in found if each.run == name]
    names = sorted({each.run for each in exact or found})
    if len(names) == 1:
        return max(exact or found, key=_newness)
    if names:
        listed = ", ".join(names[:CANDIDATES_MAX]) + (", …" if len(names) > CANDIDATES_MAX else "")
        raise InputError(f"{name!r} matches several runs: {listed}")
    if silent:
        told = "; ".join(f"{each}: {error}" for each, error in silent.items())
        raise Transient(f"the run {name!r} may be in a store that does not answer: {told}")
    known = sorted({run for each in opened.values() for run in deposits.names(each)})
    near = did_you_mean(name, known, _NEAREST)
    searched = ", ".join(f"{each} ({why})" if (why := absence(at)) else each for each, at in opened.items())
    raise InputError(f"there is no run called {name!r}; {near}searched the stores: {searched}")


def _starting(
    client: Client, opened: Mapping[str, Store], name: str
) -> tuple[Sequence[StoredRun], Mapping[str, OrchestratorError]]:
    """The runs whose names start like this, and the stores that did not answer."""
    found: list[StoredRun] = []
    silent: dict[str, OrchestratorError] = {}
    for each, store in opened.items() if _PREFIX.fullmatch(name) else ():
        try:
            found += (stored_run(client, each, said) for said in deposits.everything(store, name))
        except OrchestratorError as error:
            silent[each] = error
    return found, silent


def opened_stores(client: Client, name: str | None) -> dict[str, Store]:
    """The configured stores by name, or the one of this name. Raises InputError if there is none."""
    wired = client.wired()
    known = [each.name for each in wired.config.stores]
    if name is not None and name not in known:
        raise InputError(unknown(f"store {name!r}", name, known))
    return {each: wired.store(each) for each in known if name in (None, each)}


def stored_run(client: Client, store: str, said: Said) -> StoredRun:
    """What the store says of one run, as a value."""
    told = said.deposit
    every = tuple(each.ref for each in told.accepted) if told else said.checkpoints
    refs = [ref for ref in every if not ref.outputs]
    there = sum(not ref.outputs for ref in said.checkpoints)
    return StoredRun(
        said.run, store, told is not None, told.phase if told else None,
        max((ref.step for ref in refs), default=None), there, said.troubles, said, client,
    )  # fmt: skip


def _newness(run: StoredRun) -> tuple[bool, tuple[int, int], int]:
    told: Deposit | None = run.said.deposit
    return told is not None, told.order if told is not None else (0, 0), run.step or 0
