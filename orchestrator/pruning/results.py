"""Removes checkpoints and blobs of runs that are over from the home store, only through the store protocol.

Blobs that no manifest names are removed. Checkpoints are results, so they are removed only if the user asks:
all but the newest and the best, and only if those two are intact. A retirement is journalled before it is
performed. Must never know which store it is. The store may be shared, so only this ledger's runs are checked,
and those that another ledger has adopted are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.core.checkpoint import CheckpointRef, newest, superseded
from orchestrator.core.event import Retired
from orchestrator.core.run import RunRecord
from orchestrator.errors import CorruptCheckpoint, NotFound, Superseded
from orchestrator.ledger import Ledger
from orchestrator.pruning.rules import GRACE_SECONDS, Needs, Policy, old_enough
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.store import Stat, Store, snapshot

ADOPTED = "another ledger has adopted it from its store, so nothing of it is removed there"


@dataclass(frozen=True)
class Surplus:
    """What may go of one run: `checkpoints` by name, and the `blobs` that nothing else needs.
    `trouble`: why nothing may go, or no checkpoint although the user asked for it."""

    run: str
    checkpoints: tuple[str, ...] = ()
    blobs: tuple[Stat, ...] = ()
    trouble: str = ""

    @property
    def size(self) -> int:
        return sum(blob.size for blob in self.blobs)


def found(
    store: Store, ledger: Ledger, runs: Iterable[str], needs: Needs, policy: Policy
) -> Iterator[Surplus]:
    """What may go of the runs among these that are over. Changes nothing."""
    wanted = [run for run in runs if run in needs.runs and _is_over(run, needs, policy)]
    for record in ledger.records(wanted):
        surplus = _of_run(store, record, needs, policy)
        if surplus.blobs or surplus.checkpoints or surplus.trouble:
            yield surplus


def remove(store: Store, ledger: Ledger, surplus: Surplus, now: float) -> None:
    """Removes it. Checks the store again before it deletes. Idempotent: a second call continues.

    Before it removes a checkpoint, it reads every byte of those that stay. Raises CorruptCheckpoint if one of
    them is not intact, LedgerConflict if the run has changed in the meantime, and Superseded if another
    ledger has adopted it; then nothing is removed.
    """
    record = ledger.record(surplus.run)
    if deposits.checkpoints_unless_adopted(store, record.run, record.adoptions) is None:
        raise Superseded(f"{record.run}: {ADOPTED}")
    accepted = frozenset(c.name for c in record.stored)
    gone = tuple(name for name in surplus.checkpoints if name in accepted)
    if surplus.checkpoints:
        _check_whole(store, record, gone)
    if gone:
        record = ledger.append(record, [Retired(now, gone)], due_at=None)
        accepted -= frozenset(gone)
    if surplus.checkpoints:
        listed = {ref.name for ref in stored.names(store, record.run)}
        stored.retire(
            store, record.run, surplus.checkpoints, keep=(listed | accepted) - {*surplus.checkpoints}
        )
    with snapshot(store):
        for blob in stored.orphans(store, record.run, accepted):
            store.delete(blob.key)


def of_run(store: Store, record: RunRecord) -> Surplus:
    """Everything that the store keeps of a run that is over. Changes nothing."""
    listed = deposits.checkpoints_unless_adopted(store, record.run, record.adoptions)
    if listed is None:
        return Surplus(record.run, trouble=ADOPTED)
    names = tuple(sorted({*(ref.name for ref in listed), *(each.name for each in record.stored)}))
    return Surplus(record.run, names, stored.orphans(store, record.run, (), names))


def remove_all(store: Store, record: RunRecord) -> None:
    """Removes every checkpoint and output of a run that is over, then what the store says of the run.

    Nothing is journalled: the run's record is to go next. Idempotent. Raises Superseded, and removes nothing,
    if another ledger has adopted the run.
    """
    found = of_run(store, record)
    if found.trouble:
        raise Superseded(f"{record.run}: {found.trouble}")
    stored.retire(store, record.run, found.checkpoints, keep=())
    with snapshot(store):
        for blob in stored.orphans(store, record.run, ()):
            store.delete(blob.key)
    deposits.remove(store, record.run)


def _check_whole(store: Store, record: RunRecord, gone: tuple[str, ...]) -> None:
    """Raises CorruptCheckpoint unless every accepted checkpoint except those in `gone` is intact."""
    for kept in record.stored:
        if kept.name in gone:
            continue
        try:
            stored.verify(store, record.run, kept.name, kept.sha256)
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(kept.name, f"{error.reason}; so the others stay") from error
        except NotFound as error:
            raise CorruptCheckpoint(kept.name, "it has no manifest; so the others stay") from error


def _is_over(run: str, needs: Needs, policy: Policy) -> bool:
    facts = needs.runs[run]
    grace = min(GRACE_SECONDS, policy.older_than_seconds)
    return facts.over and facts.ended_at is not None and policy.now - facts.ended_at >= grace


def _of_run(store: Store, record: RunRecord, needs: Needs, policy: Policy) -> Surplus:
    if deposits.checkpoints_unless_adopted(store, record.run, record.adoptions) is None:
        return Surplus(record.run, trouble=ADOPTED)
    accepted = [c.name for c in record.stored]
    gone: tuple[str, ...] = ()
    trouble = ""
    if policy.checkpoints and not old_enough(needs.runs[record.run], needs, policy):
        gone, kept = superseded_results(record, stored.names(store, record.run))
        troubles = (
            {name: why for name in kept if (why := stored.lacks(store, record.run, name))} if gone else {}
        )
        for name, why in troubles.items():
            gone, trouble = (), f"{name} is incomplete ({why}), so the others stay"
    keep = [name for name in accepted if name not in gone]
    return Surplus(record.run, gone, stored.orphans(store, record.run, keep, gone), trouble)


def superseded_results(
    record: RunRecord, listed: Iterable[CheckpointRef]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names that may go, names that stay). The newest stays, and the best by the job's own metric. So do
    the outputs, and everything in the store that is newer than the newest accepted checkpoint."""
    best = record.job.checkpoint.keep.best
    going = superseded(
        record.accepted,
        last=1,
        best=(best.metric, best.mode) if best is not None else None,
        pinned=frozenset(),
    )
    names = {c.name for c in going}
    kept = tuple(c.name for c in record.stored if c.name not in names)
    last = newest(record.accepted)
    if last is None:
        return (), ()
    names |= {ref.name for ref in listed if ref.name not in kept and ref.step <= last.ref.step}
    return tuple(sorted(names)), kept
