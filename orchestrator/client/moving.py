"""Copies a run to another configured store, which becomes its home store once everything is verified there.

Decides when the move counts: after the last byte was read back from the new store. Until then the ledger and
the old store stay as they are, so an interrupted copy changes nothing and the next one continues it. Must
never touch a run that has a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client import stored
from orchestrator.core.checkpoint import Accepted, newest
from orchestrator.core.event import Moved
from orchestrator.core.run import RunRecord
from orchestrator.engine import depositing
from orchestrator.engine.ownership import Known
from orchestrator.errors import CorruptCheckpoint, InputError, LedgerConflict, NotFound, Superseded, Transient
from orchestrator.files import draft_folder, make_folder
from orchestrator.freeze import packing
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.stores import checkpoints, deposits
from orchestrator.stores.store import Store

if TYPE_CHECKING:
    from orchestrator.client.client import Client

Copied = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Move:
    """A run whose home store is now `to`. `moved` is False if it was before. `copied`: the checkpoints that
    are verified there. `left`: those that the old store could not give, and why. `deleted`: whether the old
    copy is gone; `notes` say why not, if that was asked for."""

    run: str
    source: str
    to: str
    moved: bool
    copied: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    deleted: bool = False
    notes: tuple[str, ...] = ()


def move(client: Client, run: str, to: str, *, delete_source: bool, progress: Copied | None) -> Move:
    """See `Run.copy`."""
    target = stored.opened_stores(client, to)[to]
    with client.ledgers.runs() as ledger:
        record = ledger.record(run)
        source = record.store or client.wired().config.home_store
        if source == to:
            return _again(client, ledger, record, to, delete_source=delete_source)
        _check_rests(record)
        store = client.wired().store(source)
        copied, left = _copied(store, target, record, client.home.folders, progress)
        _copy_material(store, target, record, client.home.folders)
        try:
            after = ledger.append(
                record, [Moved(client.clock.now(), to, source)], due_at=_due(ledger, record)
            )
        except LedgerConflict as error:
            raise Transient(
                f"{run} changed while it was copied; what was copied stays: copy it again"
            ) from error
    notes = depositing.deposit(target, to, after, client.home.folders)
    if not delete_source:
        return Move(run, source, to, True, copied, left, notes=notes)
    if left:
        notes = (*notes, f"the store {source} keeps its copy, because not everything in it could be copied")
        return Move(run, source, to, True, copied, left, notes=notes)
    with client.ledgers.runs() as ledger:
        kept = _delete(ledger, source, store, after)
    return Move(run, source, to, True, copied, left, deleted=not kept, notes=(*notes, *kept))


def _check_rests(record: RunRecord) -> None:
    """Raises InputError for a run with a session, because that writes to the old store."""
    run = record.run
    if record.session is not None:
        raise InputError(
            f"{run} has the session {record.session.name}, which knows only its present store: "
            f"`orchestrator hold {run}` first, then copy, then `orchestrator release {run}`"
        )
    if record.strays:
        raise InputError(f"session {record.strays[0].session} is still being cleaned up: try again when "
                         f"`orchestrator show {run}` no longer lists it")  # fmt: skip


def _due(ledger: Ledger, record: RunRecord) -> float | None:
    """The run's due time, which a move leaves as it is."""
    return next((each.due_at for each in ledger.summaries(run=record.run)), None)


def _copied(
    source: Store, target: Store, record: RunRecord, folders: Folders, progress: Copied | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Copies the accepted checkpoints and the outputs, oldest first. Returns those that are verified in the
    target, and why others are not. Raises CorruptCheckpoint if the newest checkpoint is not: then the run
    stays where it is."""
    copied, left = [], []
    every = sorted(record.stored, key=lambda each: (each.ref.step, each.ref.generation))
    for number, each in enumerate(every, 1):
        if progress is not None:
            progress(each.name, number, len(every))
        try:
            _copy_one(source, target, record.run, each, folders)
        except (CorruptCheckpoint, NotFound) as error:
            reason = error.reason if isinstance(error, CorruptCheckpoint) else "it is gone from its store"
            if each == newest(record.accepted):
                raise CorruptCheckpoint(each.name, f"{reason}; the run keeps its home store") from error
            left.append(f"step {each.ref.step:,} ({each.name}): {reason}")
        else:
            copied.append(each.name)
    return tuple(copied), tuple(left)


def _copy_one(source: Store, target: Store, run: str, wanted: Accepted, folders: Folders) -> None:
    """Copies one checkpoint by way of this machine's disk, and reads it back from the target."""
    if not _is_there(target, run, wanted):
        parent = folders.home
        make_folder(parent, 0o700)
        with draft_folder(parent, mode=0o700) as parts:
            manifest = checkpoints.fetch(source, run, wanted.name, parts, wanted.sha256)
            checkpoints.publish(target, run, manifest, parts)
        checkpoints.verify(target, run, wanted.name, manifest.sha256)


def _is_there(target: Store, run: str, wanted: Accepted) -> bool:
    """Whether the target has exactly this checkpoint, to the last byte. One without a sha256 never counts."""
    if not wanted.sha256:
        return False
    try:
        checkpoints.verify(target, run, wanted.name, wanted.sha256)
    except (CorruptCheckpoint, NotFound):
        return False
    return True


def _copy_material(source: Store, target: Store, record: RunRecord, folders: Folders) -> None:
    """Copies the archives that the old store has; `depositing` adds those that only this home has."""
    for each in record.job.inputs:
        _copy_input(source, target, record.run, each.sha256 or "", folders)
    for stat in deposits.material(source, record.run):
        sha256 = stat.key.rpartition("/")[2]
        there = target.stat(stat.key)
        if there is not None and there.size == stat.size:
            continue
        with draft_folder(folders.home, mode=0o700) as parts:
            archive: Path = parts / sha256
            try:
                deposits.fetch_material(source, record.run, sha256, archive)
            except (CorruptCheckpoint, NotFound):  # this home may have it, and `depositing` says if not
                continue
            deposits.put_material(target, record.run, sha256, archive)


def _copy_input(source: Store, target: Store, run: str, sha256: str, folders: Folders) -> None:
    """Copies one input, if the old store has it whole."""
    key = deposits.input_key(run, sha256)
    if source.stat(key) is None or target.stat(key) is not None:
        return
    with draft_folder(folders.home, mode=0o700) as parts:
        archive = parts / "input.tar"
        try:
            deposits.fetch_input(source, run, sha256, archive)
            packing.unpack(archive, parts / "input", sha256)
        except (CorruptCheckpoint, NotFound, ValueError):
            return
        deposits.put_input(target, run, sha256, archive)


def _again(client: Client, ledger: Ledger, record: RunRecord, to: str, *, delete_source: bool) -> Move:
    """The run was moved before; its old copy may still be there."""
    events = (stored.event for stored in ledger.history(record.run))
    before = [event for event in events if isinstance(event, Moved) and event.store == to]
    source = before[-1].source if before else to
    if not delete_source or not before:
        return Move(record.run, source, to, False)
    _check_rests(record)
    target, store = client.wired().store(to), client.wired().store(source)
    missing = [each for each in record.stored if not _is_there(target, record.run, each)]
    if missing:
        left = tuple(f"step {each.ref.step:,} ({each.name}): not verified in {to}" for each in missing)
        note = f"the store {source} keeps its copy, because {to} lacks something"
        return Move(record.run, source, to, False, left=left, notes=(note,))
    kept = _delete(ledger, source, store, record)
    return Move(record.run, source, to, False, deleted=not kept, notes=kept)


def _delete(ledger: Ledger, name: str, store: Store, record: RunRecord) -> tuple[str, ...]:
    """Removes the old copy of what was accepted: manifests first, then the blobs, then what the store says of
    the run. Checkpoints that nobody accepted stay, and everything stays if the run or the store is another
    ledger's now. Returns why something stays."""
    try:
        listed = Known(ledger, {name: store}).there(name, store, record.run, record.adoptions)
    except Superseded as error:
        return (f"everything stays in the old store: {error}",)
    gone = {each.name for each in record.stored}
    others = tuple(ref.name for ref in listed if ref.name not in gone)
    checkpoints.retire(store, record.run, gone, keep=others, older=ledger.made(record.run).has_lineage)
    if others:
        return (f"{len(others)} checkpoints that were never accepted stay in the old store",)
    deposits.remove(store, record.run)
    return ()
