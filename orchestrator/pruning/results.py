"""Removes checkpoints and blobs of runs that are over from the home store, only through the store protocol.

Blobs that no manifest names are removed. Checkpoints are results, so they are removed only if the user asks:
all but the newest and the best, and only if those two are intact. A retirement is journalled before it is
performed. Must never know which store it is. The store may be shared, so only this ledger's runs are checked,
and only what this ledger made of them goes, unless the user asks for what is unknown, too. Nothing goes of
runs and stores that are another ledger's now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.core.checkpoint import CheckpointRef, newest, superseded
from orchestrator.core.event import Retired
from orchestrator.core.run import RunRecord
from orchestrator.engine.ownership import Known
from orchestrator.errors import CorruptCheckpoint, NotFound, Superseded
from orchestrator.ledger import Ledger, Made
from orchestrator.pruning.rules import GRACE_SECONDS, Needs, Policy, old_enough
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.store import Stat, Store, snapshot


@dataclass(frozen=True)
class Surplus:
    """What may go of one run: `checkpoints` by name, and the `blobs` that nothing else needs.
    `trouble`: why nothing may go, or no checkpoint although the user asked for it. `unknown`: checkpoints
    that stay, because this ledger never accepted them and another one may have."""

    run: str
    checkpoints: tuple[str, ...] = ()
    blobs: tuple[Stat, ...] = ()
    trouble: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(blob.size for blob in self.blobs)


def found(
    store: Store, ledger: Ledger, runs: Iterable[str], needs: Needs, policy: Policy
) -> Iterator[Surplus]:
    """What may go of the runs among these that are over. Changes nothing."""
    wanted = [run for run in runs if run in needs.runs and _is_over(run, needs, policy)]
    for record in ledger.records(wanted):
        surplus = _of_run(store, ledger, record, needs, policy)
        if surplus.blobs or surplus.checkpoints or surplus.trouble or surplus.unknown:
            yield surplus


def remove(store: Store, ledger: Ledger, surplus: Surplus, now: float) -> None:
    """Removes it. Checks the store again before it deletes. Idempotent: a second call continues.

    Before it removes a checkpoint, it reads every byte of those that stay. Raises CorruptCheckpoint if one of
    them is not intact, LedgerConflict if the run has changed in the meantime, and Superseded if another
    ledger has adopted it; then nothing is removed.
    """
    record = ledger.record(surplus.run)
    listed = _there(store, ledger, record)
    accepted = frozenset(c.name for c in record.stored)
    gone = tuple(name for name in surplus.checkpoints if name in accepted)
    if surplus.checkpoints:
        _check_whole(store, record, gone)
    if gone:
        record = ledger.append(record, [Retired(now, gone)], due_at=None)
        accepted -= frozenset(gone)
    if surplus.checkpoints:
        keep = ({ref.name for ref in listed} | accepted) - {*surplus.checkpoints}
        stored.retire(store, record.run, surplus.checkpoints, keep=keep)
    wanted = {blob.key for blob in surplus.blobs}
    with snapshot(store):
        for blob in stored.orphans(store, record.run, accepted):
            if blob.key in wanted:
                store.delete(blob.key)


def of_run(store: Store, ledger: Ledger, record: RunRecord) -> Surplus:
    """Everything that this ledger made of a run that is over. Changes nothing."""
    try:
        listed = _there(store, ledger, record)
    except Superseded as error:
        return Surplus(record.run, trouble=str(error))
    made = _made(ledger, record)
    names = tuple(sorted({ref.name for ref in listed if made.has(ref)} | {c.name for c in record.stored}))
    unknown = tuple(ref.name for ref in listed if ref.name not in names)
    blobs = stored.orphans(store, record.run, unknown, names, made.has_lineage)
    return Surplus(record.run, names, blobs, unknown=unknown)


def remove_all(store: Store, ledger: Ledger, record: RunRecord) -> str:
    """Removes every checkpoint and output of a run that is over, then what the store says of the run.
    Returns what stays and why, if another ledger may have accepted it.

    Nothing is journalled: the run's record is to go next. Idempotent. Raises Superseded, and removes nothing,
    if the run or the store is another ledger's now.
    """
    found = of_run(store, ledger, record)
    if found.trouble:
        raise Superseded(f"{record.run}: {found.trouble}")
    stored.retire(store, record.run, found.checkpoints, keep=found.unknown)
    has_lineage = _made(ledger, record).has_lineage
    with snapshot(store):
        for blob in stored.orphans(store, record.run, found.unknown, of=has_lineage):
            store.delete(blob.key)
    if found.unknown:
        return f"{record.run}: {unknown_text(found.unknown)}"
    deposits.remove(store, record.run)
    return ""


def unknown_text(names: tuple[str, ...]) -> str:
    """What stays in the store although its run is over, and why."""
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} stay in the store: this ledger never accepted them, and another copy of it may have"


def _there(store: Store, ledger: Ledger, record: RunRecord) -> tuple[CheckpointRef, ...]:
    """The run's checkpoints. Raises Superseded if the run or the store is another ledger's now."""
    return Known(ledger, {record.store: store}).there(record.store, store, record.run, record.adoptions)


def _made(ledger: Ledger, record: RunRecord) -> Made:
    """Its history may have been forgotten, but not what is still accepted."""
    made, kept = ledger.made(record.run), record.stored
    return Made(
        made.names | {c.name for c in kept}, made.own, made.started | {c.ref.incarnation for c in kept}
    )


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


def _of_run(store: Store, ledger: Ledger, record: RunRecord, needs: Needs, policy: Policy) -> Surplus:
    try:
        listed = _there(store, ledger, record)
    except Superseded as error:
        return Surplus(record.run, trouble=str(error))
    made = _made(ledger, record)
    ours = [ref for ref in listed if made.has(ref)]
    unknown = tuple(ref.name for ref in listed if not made.has(ref))
    accepted = [c.name for c in record.stored]
    gone: tuple[str, ...] = ()
    trouble = ""
    if policy.checkpoints and not old_enough(needs.runs[record.run], needs, policy):
        gone, kept = superseded_results(record, ours)
        troubles = (
            {name: why for name in kept if (why := stored.lacks(store, record.run, name))} if gone else {}
        )
        for name, why in troubles.items():
            gone, trouble = (), f"{name} is incomplete ({why}), so the others stay"
    if policy.unknown and not trouble:
        gone, unknown = (*gone, *unknown), ()
    keep = [name for name in (*accepted, *unknown) if name not in gone]
    of = (lambda _incarnation: True) if policy.unknown else made.has_lineage
    blobs = stored.orphans(store, record.run, keep, gone, of)
    return Surplus(record.run, gone, blobs, trouble, unknown)


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
