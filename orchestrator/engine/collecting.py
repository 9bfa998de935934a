"""Takes a session's checkpoints out of its outbox into the run's home store, or where an uplink shipped them.

Decides which of them are published, and in which order. Must never know platforms, nor what an error means
for the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from orchestrator.core.action import Collect, Done
from orchestrator.core.checkpoint import Accepted, CheckpointRef, Manifest, decode
from orchestrator.core.offer import Uplink
from orchestrator.errors import BackendError, CorruptCheckpoint, NotFound, Transient
from orchestrator.files import append, read_plain, remove_tree
from orchestrator.session.layout import BLOBS, CHECKPOINTS, MANIFEST
from orchestrator.session.outbox import Forgone, Outbox, collect, listen, refuse
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.opening import lies_on_disk_of
from orchestrator.stores.store import Store
from orchestrator.uplink import outbox as uplinked
from orchestrator.uplink.accepting import Look
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.registers import pin

_REPLACED = "the home store had a different manifest for {}: replaced by the session's own"


def look(action: Collect, store: Store, outbox: uplinked.StoreOutbox, into: Path) -> Done:
    """Takes the checkpoints that an uplink has shipped where they lie, and copies only what the session
    says."""
    keys = SessionKeys(action.run, action.session)
    found = Look(store, keys, outbox, into, action.known, action.kept).take(last=action.last)
    accepted = tuple(_accepted(each, action.metric) for each in found.manifests if _wanted(action, each.ref))
    try:
        notes, more = listen(outbox, into)
    except BackendError:
        if not accepted:
            raise
        notes, more = (), True  # what was found is worth a report
    told = tuple(dict.fromkeys((*found.notes, *notes)))
    return Done(action, accepted, found.corrupt, notes=told, more=found.more or more, late=found.late,
                gone=found.gone)  # fmt: skip


def bring(
    action: Collect, store: Store, outbox: Outbox, into: Path, before: Done, check_ours: Callable[[], None]
) -> Done:
    """Copies an outbox and publishes its checkpoints, except those that were found `before`. `check_ours` is
    called before anything is published, and may raise Superseded."""
    action = replace(action, known=action.known | {each.name for each in before.checkpoints})
    given = Forgone(outbox) if action.forgone else outbox
    copies = 2 if lies_on_disk_of(into, store) else 1
    collected = collect(given, into, action.known, last=action.last, copies=copies)
    accepted: list[Accepted] = []
    corrupt, notes, more = list(collected.corrupt), list(collected.notes), collected.more
    wanted = [ref for ref in _brought(into) if _wanted(action, ref)]
    if wanted:  # a collect that brings nothing asks the store nothing
        check_ours()
    if wanted and action.uplink is Uplink.STORE and not action.last:  # its uplink may come back and tidy up
        pinned = {ref.name for ref in wanted} | ({max(action.kept)} if action.kept else set())
        pin(store, SessionKeys(action.run, action.session), pinned)
    for ref in wanted:
        try:
            manifest, foreign = _publish(store, action.run, ref, into)
        except CorruptCheckpoint as error:
            corrupt.append((ref.name, error.reason))
            brought = into / CHECKPOINTS / ref.name
            remove_tree(brought / "published")
            refuse(brought)
        else:
            accepted += [_accepted(manifest, action.metric)] if manifest is not None else []
            more |= manifest is None
            notes += [_REPLACED.format(ref.name)] if foreign else []
    _drop_blobs(into)
    if collected.lack is not None:
        if action.last and not accepted:
            raise collected.lack  # it is tried again, and the session's folder stays
        notes.append(
            f"some of what it left is not here yet: {collected.lack.strerror}: free some there "
            "(`orchestrator prune` can help)"
        )
        more |= action.last
    names = {each.name for each in accepted}
    return replace(
        before,
        checkpoints=(*before.checkpoints, *accepted),
        corrupt=(*before.corrupt, *corrupt),
        notes=(*before.notes, *notes),
        more=before.more or more,
        late=tuple(each for each in before.late if each[0] not in names),
    )


def _brought(into: Path) -> list[CheckpointRef]:
    """Every checkpoint ever brought here, oldest first, even by a controller that died."""
    folder = into / CHECKPOINTS
    whole = folder.glob(f"*/{MANIFEST}")
    found = [CheckpointRef.parse(path.parent.name) for path in whole]
    return sorted((ref for ref in found if ref is not None), key=lambda ref: ref.name)


def _publish(store: Store, run: str, ref: CheckpointRef, into: Path) -> tuple[Manifest | None, bool]:
    """Publishes a checkpoint. Returns the session's own manifest, and whether the store had a different one
    under its name.

    The manifest is None if the checkpoint was published before but is now missing in the store, and its blobs
    are no longer here: then it is collected again. The store's manifest is never taken for the session's.
    """
    folder = into / CHECKPOINTS / ref.name
    published = folder / "published"
    before = published.exists()
    try:
        manifest = decode(ref.name, read_plain(folder / MANIFEST))
        if manifest.run != run:
            raise CorruptCheckpoint(ref.name, f"its manifest names another run: {manifest.run!r}")
        if before:
            with contextlib.suppress(NotFound):
                return stored.read(store, run, ref.name, manifest.sha256), False
        foreign = stored.publish(store, run, manifest, into)
    except FileNotFoundError as error:  # its blobs are missing: remove it, so that it is collected again
        remove_tree(folder)
        if before:
            return None, False
        raise Transient(f"only a part of {ref.name} was collected; it will be collected again") from error
    append(published, b"")
    return manifest, foreign


def _wanted(action: Collect, ref: CheckpointRef) -> bool:
    if ref.generation != action.generation or ref.name in action.known:
        return False
    return action.incarnation is None or ref.incarnation == action.incarnation


def _accepted(manifest: Manifest, metric: str | None) -> Accepted:
    metrics = {metric: manifest.metrics[metric]} if metric in manifest.metrics and metric else {}
    return Accepted(manifest.ref, manifest.size, metrics, manifest.created_at, manifest.sha256)


def _drop_blobs(into: Path) -> None:
    """Removes blobs that are in the home store now. Manifests stay, so that nothing is collected twice."""
    blobs = into / BLOBS
    if blobs.is_dir():
        for path in blobs.iterdir():
            remove_tree(path)  # a blob, or the draft folder of a controller that was killed


def is_unpublished(collected: Path) -> bool:
    """Whether there is a checkpoint here, with its blobs, that may never have reached the store. These may
    be the only copy."""
    try:
        if not list((collected / "blobs").iterdir()):
            return False
        brought = list((collected / "checkpoints").iterdir())
    except OSError:  # nothing was collected
        return False
    return any(not (checkpoint / "published").exists() for checkpoint in brought)
