"""Records runs of a store in this ledger: the machine that had them is gone.

Decides what arrives and how: a run that was over is over, any other is held for a person. Never changes a run
that the ledger has, and removes nothing. Before a run arrives, every session of its old ledger is fenced
out, if the store has registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from orchestrator.client import stored
from orchestrator.core.checkpoint import Accepted, newest
from orchestrator.core.deposit import GENERATION_MAX, Deposit, adoption, archives, is_run, submission
from orchestrator.core.job import Input, frozen_image
from orchestrator.core.lifecycle import Phase
from orchestrator.core.wording import did_you_mean
from orchestrator.engine import depositing
from orchestrator.errors import (
    Conflict,
    CorruptCheckpoint,
    InputError,
    LedgerConflict,
    NotFound,
    OrchestratorError,
    Rejected,
)
from orchestrator.files import remove_tree
from orchestrator.freeze import inputs, packing
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.stores import checkpoints as manifests
from orchestrator.stores import deposits
from orchestrator.stores.deposits import Said
from orchestrator.stores.store import Store
from orchestrator.uplink.registers import raise_fence

if TYPE_CHECKING:
    from orchestrator.client.client import Client

FENCE_TRIES = 5


class Came(StrEnum):
    """What became of a run in the store."""

    ADOPTED = "adopted"
    KNOWN = "known"  # the ledger has it already; nothing changed
    PULL_ONLY = "pull only"  # the store has its checkpoints, and nothing else of it
    DAMAGED = "damaged"  # what the store says of it cannot be believed; nothing changed


@dataclass(frozen=True)
class Adoption:
    """One run of the store. `phase`: as which it arrived, or would. `step`: of its newest checkpoint.
    `notes`: what a person should know, such as an archive that the store lacks."""

    run: str
    came: Came
    phase: Phase | None
    step: int | None
    checkpoints_count: int
    notes: tuple[str, ...] = ()


def adopt(
    client: Client,
    name: str,
    runs: tuple[str, ...],
    *,
    dry_run: bool,
    progress: Callable[[str], None] | None,
) -> tuple[Adoption, ...]:
    """See `Stores.adopt`."""
    store = stored.opened_stores(client, name)[name]
    wanted = _wanted(store, name, runs)
    if dry_run:
        with client.ledgers.existing() as ledger:
            known = set() if ledger is None else {each.run for each in ledger.summaries()}
        return tuple(_looked_at(said, known) for said in wanted)
    client.home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = []
    with client.ledgers.made() as ledger:
        for said in wanted:
            if progress is not None:
                progress(said.run)
            found.append(Adopting(client, name, store, ledger).adopt(said))
    return tuple(found)


def _wanted(store: Store, name: str, runs: tuple[str, ...]) -> tuple[Said, ...]:
    """Raises InputError for a run that the store does not have."""
    if not runs:
        return tuple(deposits.everything(store))
    found = []
    for run in runs:
        said = deposits.said_of(store, run) if is_run(run) else None
        if said is None:
            near = did_you_mean(run, deposits.names(store))
            raise InputError(
                f"the store {name} has no run called {run!r}; {near}`orchestrator ps --store {name}` "
                "lists them"
            )
        found.append(said)
    return tuple(found)


def _looked_at(said: Said, known: set[str]) -> Adoption:
    """What would become of it."""
    told = said.deposit
    if said.run in known:
        return _result(said, Came.KNOWN, told)
    if told is None:
        return _not_adoptable(said)
    return _result(said, Came.ADOPTED, told, said.troubles)


def _not_adoptable(said: Said) -> Adoption:
    if said.troubles:
        return _result(said, Came.DAMAGED, None, said.troubles)
    return _result(said, Came.PULL_ONLY, None, (
        "the store has no deposit of it, because an older version ran it: its checkpoints can be pulled",
    ))  # fmt: skip


def _result(said: Said, came: Came, told: Deposit | None, notes: tuple[str, ...] = ()) -> Adoption:
    phase = None
    if told is not None:
        phase = told.phase if told.phase.final else Phase.HELD
    refs = [each.ref for each in told.accepted] if told is not None else list(said.checkpoints)
    step = max((ref.step for ref in refs), default=None)
    return Adoption(said.run, came, phase, step, len(refs), notes)


@dataclass(frozen=True)
class Adopting:
    """From one store, into one ledger."""

    client: Client
    name: str
    store: Store
    ledger: Ledger

    def adopt(self, said: Said) -> Adoption:
        if self.ledger.summaries(run=said.run):
            return _result(said, Came.KNOWN, said.deposit)
        if said.deposit is None:
            return _not_adoptable(said)
        under_way = not said.deposit.phase.final
        notes: list[str] = []
        generation = _highest(said)
        if under_way:
            generation = self._fenced(said.run, generation, notes)
            if generation > GENERATION_MAX:
                return _result(
                    said, Came.DAMAGED, None, ("its fence in the store is higher than any session's",)
                )
            said = deposits.said_of(self.store, said.run) or said  # its old controller may have gone on
            if said.deposit is None:
                return _not_adoptable(said)
            generation = max(generation, _highest(said))
        told = said.deposit
        assert told is not None
        notes += said.troubles
        if under_way and not told.phase.final:
            # From here on the old controller deletes nothing that is about to be adopted.
            deposits.write(self.store, replace(told, adoptions=told.adoptions + 1, version=1))
            told = self._with_the_last(told, said, notes)
            notes += self._brought(told)
        return self._record(said, told, generation, notes)

    def _record(self, said: Said, told: Deposit, generation: int, notes: list[str]) -> Adoption:
        folder = self._folders.run(told.run)
        folder.mkdir(parents=True, exist_ok=True)  # from here on it shows that a run lives in this home
        events = adoption(
            told, self.client.clock.now(), generation=generation, source=f"the store {self.name}"
        )
        try:
            record = self.ledger.adopt(submission(told, self.name), events)
        except LedgerConflict:
            return _result(said, Came.KNOWN, told)  # by another adoption, just now
        try:
            depositing.deposit(self.store, self.name, record, self._folders)
        except (OrchestratorError, OSError) as error:  # the next controller tells it
            notes.append(f"the store was not told of the adoption yet: {error}")
        return _result(said, Came.ADOPTED, told, tuple(notes))

    @property
    def _folders(self) -> Folders:
        return self.client.home.folders

    def _fenced(self, run: str, generation: int, notes: list[str]) -> int:
        """Excludes every session of the old ledger. Returns the highest generation that it may have used."""
        if self.store.registers is None:
            notes.append(
                f"the store {self.name} has no registers, so nothing keeps a session that still runs from "
                "writing there; what it writes is not used"
            )
            return generation
        for attempt in range(FENCE_TRIES):
            try:
                # One above is the session that `adoption` leaves to the old ledger; two above is the next.
                return max(generation, raise_fence(self.store, run, min(generation, GENERATION_MAX) + 2) - 2)
            except Conflict:
                if attempt == FENCE_TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _with_the_last(self, told: Deposit, said: Said, notes: list[str]) -> Deposit:
        """With the newest checkpoint that the present session brought to the store, and that the old
        controller had no time to accept. It counts if every byte of it is verified."""
        known = {each.name for each in told.accepted}
        at = newest(told.accepted)
        candidates = [ref for ref in said.checkpoints
                      if ref.name not in known and ref.generation == told.generation
                      and ref.incarnation == told.incarnation
                      and (at is None or ref.step > at.ref.step)]  # fmt: skip
        for ref in sorted(candidates, key=lambda ref: ref.step, reverse=True):
            try:
                found = manifests.verify(self.store, told.run, ref.name)
            except (CorruptCheckpoint, NotFound) as error:
                notes.append(f"the checkpoint at step {ref.step:,} is not used: {error}")
                continue
            notes.append(
                f"accepted the checkpoint at step {ref.step:,}, which the old controller had not seen"
            )
            best = told.job.checkpoint.keep.best
            metrics = (
                {best.metric: found.metrics[best.metric]} if best and best.metric in found.metrics else {}
            )
            last = Accepted(ref, found.size, metrics, found.created_at, found.sha256)
            return replace(told, accepted=(*told.accepted, last))
        return told

    def _brought(self, told: Deposit) -> list[str]:
        """Fetches the archives that the next session needs. Returns what is lacking."""
        lacking = []
        image = frozen_image(told.job.image)
        for sha256 in archives(told.job):
            target = self._folders.image(sha256) if sha256 == image else self._folders.bundle(sha256)
            try:
                _fetch(self.store, told.run, sha256, target)
            except (NotFound, CorruptCheckpoint) as error:
                what = "what its image is built from" if sha256 == image else "its source"
                lacking.append(f"it cannot go on here without {what}, which the store cannot give: {error}")
        try:
            inputs.stage(told.job.inputs, self._folders.inputs, partial(_give, self.store, told.run))
        except (Rejected, OSError) as error:
            lacking.append(f"it cannot go on here before its inputs are at their paths: {error}")
        return lacking


def _highest(said: Said) -> int:
    """The highest generation of which the store has a trace."""
    told = said.deposit.generation if said.deposit is not None else 0
    written = (ref.generation for ref in said.checkpoints if ref.generation <= GENERATION_MAX)
    return max((told, *written))


def _fetch(store: Store, run: str, sha256: str, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if target.exists() and inputs.digest(target) == sha256:
        return
    deposits.fetch_material(store, run, sha256, target)


def _give(store: Store, run: str, wanted: Input, target: Path) -> bool:
    """Writes an input that the store has. False if it has none that is whole."""
    sha256 = wanted.sha256 or ""
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        archive = Path(folder) / "input.tar"
        try:
            deposits.fetch_input(store, run, sha256, archive)
            packing.unpack(archive, target, sha256)
        except (NotFound, CorruptCheckpoint, ValueError):
            remove_tree(target)
            return False
    return True
