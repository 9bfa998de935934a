"""Carries out each action with the verbs of one platform, the home store and this machine's folders.

Runs in workers, never in the engine's thread. Turns every error of a backend into a report that says what to
do next. Decides nothing, journals nothing.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core import wire
from orchestrator.core.action import (
    Action,
    Collect,
    Discard,
    Done,
    Failed,
    Launch,
    Prepare,
    Report,
    Retire,
    Stop,
    Trouble,
)
from orchestrator.core.checkpoint import Accepted, CheckpointRef, Manifest, decode
from orchestrator.core.job import frozen_image
from orchestrator.core.mask import Mask
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Order, run_of
from orchestrator.core.run import RunRecord
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    CorruptCheckpoint,
    InputError,
    NameTaken,
    NotFound,
    OrchestratorError,
    QuotaExhausted,
    Refused,
    Rejected,
    Transient,
)
from orchestrator.files import remove_tree, set_aside, write_whole
from orchestrator.freeze import inputs
from orchestrator.home import UPLINK, Folders
from orchestrator.platforms.platform import Platform
from orchestrator.session.layout import BLOBS, CHECKPOINTS, MANIFEST, RESULT
from orchestrator.session.outbox import Forgone, Outbox, collect, listen, refuse
from orchestrator.session.staging import Materials, Shipping
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.opening import carried
from orchestrator.stores.store import Store, snapshot
from orchestrator.unforeseen import Masked, Unforeseen, raise_again, sentence
from orchestrator.uplink import outbox as uplinked
from orchestrator.uplink.accepting import Look
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.registers import raise_fence

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_REPLACED = "the home store had a different manifest for {}: replaced by the session's own"
_ADOPTED = (
    "another ledger has adopted this run from its store, so its old checkpoints are no longer deleted here: "
    "go on in one of the two, and cancel the run in the other"
)


def _remove(folder: Path) -> None:
    """Removes a folder. If that fails, the next start of the controller removes it."""
    with contextlib.suppress(OSError):
        set_aside(folder)


@dataclass(frozen=True)
class Backends:
    """The configured platforms and stores by name, a lookup for secrets, and a handler for unexpected
    exceptions. `home_store` is the store in which new runs keep their checkpoints."""

    platforms: Mapping[str, Platform]
    stores: Mapping[str, Store]
    home_store: str
    folders: Folders
    secret: Callable[[str], str]
    unforeseen: Unforeseen = raise_again

    def platform(self, name: str) -> Platform:
        """Raises Rejected if the user removed the platform from the config after a session began there."""
        if name not in self.platforms:
            raise Rejected(f"the platform {name} is no longer in the config: put it back", backend=name)
        return self.platforms[name]

    def store(self, name: str) -> Store:
        """A run's home store; without a name, the config's. Raises Rejected if it was removed from the
        config."""
        if (name or self.home_store) not in self.stores:
            raise Rejected(f"the store {name} is no longer in the config: put it back", backend=name)
        return self.stores[name or self.home_store]

    def shipped(self, record: RunRecord) -> dict[str, Outbox]:
        """Session name → its outbox, if that is in the run's home store. Reads nothing."""
        session = record.session
        if session is None or session.traits.uplink is not Uplink.STORE:
            return {}
        store = self.stores.get(record.store or self.home_store)
        if store is None:
            return {}
        return {session.name: uplinked.StoreOutbox(store, record.run, session.name, session.generation)}


def lane(action: Action) -> str:
    """The lane for an action. A platform that hangs delays no other platform, and ending a session never
    waits for the start or the reading of another."""
    match action:
        case Prepare(order) | Launch(order):
            return f"begin:{order.platform}"
        case Collect():
            return f"collect:{action.platform}"
        case Stop():
            return f"stop:{action.platform}"
        case Discard():
            return f"discard:{action.platform}"
        case Retire():
            return "retire"


def perform(action: Action, backends: Backends) -> Report:
    """Carries out one action. Blocks. Reports every error as this action's, even an unexpected one, without
    secrets."""
    try:
        report = _reported(action, backends)
    except Exception as error:  # noqa: BLE001 the barrier: logged, and reported as this action's
        doing = f"{action.kind} of {action.session or 'a run'}"
        mask = _mask(action, backends)
        met = Masked(error, mask.text) if mask else error
        backends.unforeseen(doing, met)
        report = Failed(action, Trouble.UNFORESEEN, sentence(doing, met))
    if isinstance(report, Failed):
        return replace(report, message=_mask(action, backends).text(report.message))
    return report


def _mask(action: Action, backends: Backends) -> Mask:
    """Masks the secrets that this action sends to a platform, because its answer may repeat them."""
    if not isinstance(action, Prepare | Launch):
        return Mask()
    values: list[str] = []
    if isinstance(action, Prepare) and action.uplink is Uplink.STORE:
        with contextlib.suppress(OrchestratorError):
            values += carried(backends.store(action.store)).secret.values()
    for name in action.order.secrets:
        with contextlib.suppress(OrchestratorError):  # a missing secret was not sent
            values.append(backends.secret(name))
    return Mask(values)


def _reported(action: Action, backends: Backends) -> Report:
    """Turns every error of a backend into a report that says what to do next."""
    try:
        return _perform(action, backends)
    except CorruptCheckpoint as error:
        return Failed(action, Trouble.CORRUPT, error.reason, checkpoint=error.name)
    except NotFound as error:
        return Failed(action, Trouble.NOT_FOUND, str(error))
    except QuotaExhausted as error:
        trouble = Trouble.FULL if isinstance(action, Collect) else Trouble.QUOTA  # the home store's, then
        return Failed(action, trouble, str(error), until=error.until)
    except Refused as error:
        return Failed(action, Trouble.REFUSED, str(error), until=error.until)
    except AccessDenied as error:
        return Failed(action, Trouble.DENIED, str(error))
    except NameTaken as error:
        return Failed(action, Trouble.NAME_TAKEN, str(error))
    except (Rejected, InputError) as error:
        return Failed(action, Trouble.REJECTED, str(error))
    except (Transient, BackendError) as error:
        return Failed(action, Trouble.TRANSIENT, str(error))
    except OSError as error:  # this machine's own disk: full, read-only, gone
        trouble = Trouble.FULL if error.errno in _FULL else Trouble.TRANSIENT
        return Failed(action, trouble, _disk_text(error))


def _disk_text(error: OSError) -> str:
    where = error.filename or "no file"
    if error.errno in _FULL:
        return f"this machine's disk is full ({where}): free some space (`orchestrator prune` can help)"
    return f"{error.strerror or error} ({where})"


def _perform(action: Action, backends: Backends) -> Report:
    match action:
        case Prepare():
            return _prepare(action, backends)
        case Launch(order):
            backends.platform(order.platform).launch(order)
            return Done(action)
        case Collect():
            return _collect(action, backends)
        case Stop(session, platform):
            return Done(action, reply=backends.platform(platform).stop(session))
        case Discard(session, platform):
            _remove(backends.folders.staged(session))
            backends.platform(platform).discard(session)
            store = backends.stores.get(action.store or backends.home_store)
            if action.uplink is Uplink.STORE and store is not None:  # else: it went with its store
                uplinked.remove(store, run_of(session), session)
            return Done(action)
        case Retire():
            return _retire(action, backends)


def _prepare(action: Prepare, backends: Backends) -> Report:
    order, folders = action.order, backends.folders
    if action.uplink is Uplink.STORE:
        _fence_for(order, backends.store(action.store))
    staged = folders.staged(order.session) if order.resume is not None else None
    if (
        staged is not None
        and (lost := _bring_resume(action, backends.store(action.store), staged)) is not None
    ):
        return lost
    image = frozen_image(order.image)
    mask = _mask(action, backends)
    materials = Materials(
        bundle=folders.bundle(order.bundle),
        agent=folders.agent,
        resume=staged,
        inputs=inputs.stage(order.inputs, folders.inputs),
        image=None if image is None else folders.image(image),
        secrets={name: backends.secret(name) for name in order.secrets},
        shipping=_shipping(action, backends),
        say=lambda text: _tell(folders.preparing(order.run), mask.text(text)),
    )
    try:
        pinned = backends.platform(order.platform).prepare(order, materials)
    finally:
        folders.preparing(order.run).unlink(missing_ok=True)
    if staged is not None:
        _remove(staged)
    return Done(action, image=pinned, notes=_untested(order))


def _shipping(action: Prepare, backends: Backends) -> Shipping | None:
    """What the session needs to ship its own outbox; None if something else brings that home."""
    if action.uplink is not Uplink.STORE:
        return None
    program = backends.folders.home / UPLINK
    try:
        portable = carried(backends.store(action.store))
    except Rejected as refusal:  # the platform decides whether it needs it
        return Shipping(program, refusal=str(refusal))
    return Shipping(program, wire.encode(portable), portable.this_machine)


def _fence_for(order: Order, store: Store) -> None:
    """Makes sure that no older session can publish any more before this one starts."""
    fence = raise_fence(store, order.run, order.generation)
    if fence > order.generation:
        raise NameTaken(f"{order.run} is already at generation {fence}; {order.session} is an older one")


def _bring_resume(action: Prepare, store: Store, staged: Path) -> Failed | None:
    """Fetches the checkpoint to resume into `staged`. If it is lost, reports what the store still has."""
    order = action.order
    assert order.resume is not None
    try:
        stored.fetch(store, order.run, order.resume, staged, order.resume_sha256)
    except NotFound:
        trouble, reason = Trouble.NOT_FOUND, "it is gone from the home store"
    except CorruptCheckpoint as error:
        trouble, reason = Trouble.CORRUPT, error.reason
    else:
        return None
    _remove(staged)  # the next one needs an empty folder
    left = stored.present(store, order.run, sorted(action.accepted - {order.resume}))
    doubt = "" if left else _doubt(store, action)
    return Failed(action, trouble, reason + doubt, checkpoint=order.resume, left=left, doubtful=bool(doubt))


def _doubt(store: Store, action: Prepare) -> str:
    """Why the store as a whole may be the wrong one; empty if it looks right.

    An unmounted disk looks like an empty store. If an old copy of the ledger was restored, the store has
    newer checkpoints that this ledger never accepted.
    """
    order = action.order
    known = action.accepted | action.dropped
    unknown = [ref for ref in stored.names(store, order.run)
               if ref.name not in known and ref.step > order.resume_step]  # fmt: skip
    if unknown:
        newest = max(unknown, key=lambda ref: ref.step).name
        return f"; the store has {newest}, unknown to this ledger: was an old copy of the home restored?"
    if deposits.is_empty(store):
        return "; the store is empty: is its disk there?"
    return ""


def _untested(order: Order) -> tuple[str, ...]:
    if order.resume is None or order.resume_sha256 is not None:
        return ()
    return (
        f"checkpoint {order.resume} cannot be verified, because an older version accepted it without the "
        "sha256 of its manifest; the home store's copy is used",
    )


def _tell(path: Path, text: str) -> None:
    """Writes a line for viewers. On a full disk only this line is lost."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode(), sync=False)


def _collect(action: Collect, backends: Backends) -> Report:
    into = backends.folders.collected(action.run, action.session)
    into.mkdir(parents=True, exist_ok=True)
    store = backends.store(action.store)
    found = Done(action)
    for outbox in _outboxes(action, backends, into):
        if isinstance(outbox, uplinked.StoreOutbox):
            with snapshot(store):
                found = _look(action, store, outbox, into)
        else:
            found = _bring(action, store, outbox, into, found)
    return found


def _look(action: Collect, store: Store, outbox: uplinked.StoreOutbox, into: Path) -> Done:
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


def _bring(action: Collect, store: Store, outbox: Outbox, into: Path, before: Done) -> Done:
    """Copies an outbox and publishes its checkpoints, except those that were found `before`."""
    action = replace(action, known=action.known | {each.name for each in before.checkpoints})
    given = Forgone(outbox) if action.forgone else outbox
    collected = collect(given, into, action.known, last=action.last)
    accepted: list[Accepted] = []
    corrupt, notes, more = list(collected.corrupt), list(collected.notes), collected.more
    for ref in [ref for ref in _brought(into) if _wanted(action, ref)]:
        try:
            manifest, foreign = _publish(store, action.run, ref, into)
        except CorruptCheckpoint as error:
            corrupt.append((ref.name, error.reason))
            brought = into / CHECKPOINTS / ref.name
            (brought / "published").unlink(missing_ok=True)
            refuse(brought)
        else:
            accepted += [_accepted(manifest, action.metric)] if manifest is not None else []
            more |= manifest is None
            notes += [_REPLACED.format(ref.name)] if foreign else []
    _drop_blobs(into)
    names = {each.name for each in accepted}
    return replace(
        before,
        checkpoints=(*before.checkpoints, *accepted),
        corrupt=(*before.corrupt, *corrupt),
        notes=(*before.notes, *notes),
        more=before.more or more,
        late=tuple(each for each in before.late if each[0] not in names),
    )


def _outboxes(action: Collect, backends: Backends, into: Path) -> Iterator[Outbox]:
    """Opens the session's outbox. Before the last look at one in the store, raises the fence, so that nothing
    can be published afterwards and go unseen. If the result did not get there, then perhaps not all
    checkpoints did: what the platform itself still has is brought after it."""
    if action.uplink is not Uplink.STORE:
        yield backends.platform(action.platform).open(action.session)
        return
    store = backends.store(action.store)
    if action.last:
        raise_fence(store, action.run, action.generation + 1)
    try:
        shipped = uplinked.opened(store, action.run, action.session, action.generation)
    except NotFound as error:
        own = _own_outbox(action, backends) if action.last else None
        if own is not None:
            yield own
        elif action.incarnation is not None:
            raise Transient(f"{error}, which had its claim before: is the store's disk there?") from error
        else:
            raise
    else:
        yield shipped
        if action.last and not (into / RESULT).exists():
            own = _own_outbox(action, backends)
            yield from () if own is None else (own,)


def _own_outbox(action: Collect, backends: Backends) -> Outbox | None:
    """What the platform itself still has of a session that ships its outbox."""
    try:
        return backends.platform(action.platform).open(action.session)
    except Rejected:  # it has nothing, or is no longer in the config
        return None


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
        manifest = decode(ref.name, (folder / MANIFEST).read_bytes())
        if manifest.run != run:
            raise CorruptCheckpoint(ref.name, f"its manifest names another run: {manifest.run!r}")
        if before:
            with contextlib.suppress(NotFound):
                return stored.read(store, run, ref.name, manifest.sha256), False
        foreign = stored.publish(store, run, manifest, into)
    except FileNotFoundError as error:  # its blobs are missing: remove it, so that it is collected again
        shutil.rmtree(folder)
        if before:
            return None, False
        raise Transient(f"only a part of {ref.name} was collected; it will be collected again") from error
    published.touch()
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


def _retire(action: Retire, backends: Backends) -> Report:
    store = backends.store(action.store)
    refs = deposits.checkpoints_unless_adopted(store, action.run, action.adoptions)
    if refs is None:
        return Done(action, notes=(_ADOPTED,))
    kept = [ref.step for ref in refs if ref.name in action.keep]
    newest_kept = max(kept, default=-1)
    gone = [
        ref.name
        for ref in refs
        if ref.name not in action.keep and ref.generation <= action.generation and ref.step <= newest_kept
    ]
    if gone:
        listed = {ref.name for ref in refs}
        stored.retire(store, action.run, gone, keep=(listed | action.keep) - set(gone))
    return Done(action)
