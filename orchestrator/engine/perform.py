"""Carries out each action with the verbs of one platform, the home store and this machine's folders.

Runs in workers, never in the engine's thread. Turns every error of a backend into a report that says what to
do next. Decides nothing, journals nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
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
from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.core.job import frozen_image
from orchestrator.core.mask import Mask
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Order, run_of
from orchestrator.core.run import RunRecord
from orchestrator.engine import bringing, parcels
from orchestrator.engine.collecting import bring, look
from orchestrator.engine.outboxes import outboxes
from orchestrator.engine.ownership import Ownership
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    CorruptCheckpoint,
    Fenced,
    InputError,
    NameTaken,
    NoCapacity,
    NotFound,
    OrchestratorError,
    QuotaExhausted,
    Refused,
    Rejected,
    Superseded,
    Transient,
)
from orchestrator.files import (
    NO_ROOM,
    Lack,
    NoLocks,
    make_folder,
    remove_tree,
    set_aside,
    shortage,
    write_whole,
)
from orchestrator.freeze import inputs
from orchestrator.home import UPLINK, Folders
from orchestrator.platforms.platform import Platform
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials, Shipping, fetchable
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.opening import carried
from orchestrator.stores.store import Store, snapshot
from orchestrator.unforeseen import Masked, Unforeseen, raise_again, sentence
from orchestrator.uplink import outbox as uplinked
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.registers import ask_to_leave, fence_of, raise_fence

_AHEAD_MAX = 100  # sessions that an old copy of the home may lack; each is tried and skipped
_FULL = NO_ROOM


def _remove(folder: Path) -> None:
    """Removes a folder. If that fails, the next start of the controller removes it."""
    with contextlib.suppress(OSError):
        set_aside(folder)


@dataclass(frozen=True)
class Backends:
    """The configured platforms and stores by name, a lookup for secrets, and a handler for unexpected
    exceptions. `home_store` is the store in which new runs keep their checkpoints. `confirm` raises Fenced if
    another controller has taken over. `shared`: other machines may have submitted runs of this ledger.
    `ownership`: whether the stores are still this ledger's, and what it made there."""

    platforms: Mapping[str, Platform]
    stores: Mapping[str, Store]
    home_store: str
    folders: Folders
    secret: Callable[[str], str]
    unforeseen: Unforeseen = raise_again
    confirm: Callable[[], None] = lambda: None
    shared: bool = False
    ownership: Ownership = field(default_factory=Ownership)

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

    def elsewhere(self, record: RunRecord) -> str:
        """Why the run's store is another ledger's; then nothing is done, not even if the run is over."""
        return self.ownership.elsewhere(record.store or self.home_store)

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
            store = backends.store(action.store)
            values += carried(store).secret.values()
            if action.fetches:
                values.append(parcels.key_to_hide(store, SessionKeys(action.order.run, action.session)))
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
    except Superseded as error:
        return Failed(action, Trouble.SUPERSEDED, str(error))
    except NotFound as error:
        return Failed(action, Trouble.NOT_FOUND, str(error))
    except QuotaExhausted as error:
        trouble = Trouble.FULL if isinstance(action, Collect) else Trouble.QUOTA  # the home store's, then
        return Failed(action, trouble, str(error), until=error.until)
    except NoCapacity as error:
        return Failed(action, Trouble.CAPACITY, str(error), until=error.until)
    except Refused as error:
        return Failed(action, Trouble.REFUSED, str(error), until=error.until)
    except AccessDenied as error:
        return Failed(action, Trouble.DENIED, str(error))
    except NameTaken as error:
        return Failed(action, Trouble.NAME_TAKEN, str(error))
    except (Rejected, InputError) as error:
        return Failed(action, Trouble.REJECTED, str(error))
    except (Transient, BackendError, Fenced) as error:  # nothing of a fenced controller is journalled
        return Failed(action, Trouble.TRANSIENT, str(error))
    except OSError as error:  # this machine's own disk: full, read-only, gone
        trouble = Trouble.FULL if error.errno in _FULL else Trouble.TRANSIENT
        if isinstance(error, NoLocks):
            return Failed(action, Trouble.DENIED, str(error))
        return Failed(action, trouble, _disk_text(error, backends.folders))


def _disk_text(error: OSError, folders: Folders) -> str:
    if isinstance(error, Lack):
        return f"{error.strerror}: free some there (`orchestrator prune` and `orchestrator rm` can help)"
    where = error.filename or "no file"
    if error.errno in _FULL:
        near = Path(os.fsdecode(where)) if error.filename else folders.home
        what, do = shortage(near, *folders.home.glob("*/*/*"))
        return f"{what} ({where}): {do} (`orchestrator prune` and `orchestrator rm` can help)"
    return f"{error.strerror or error} ({where})"


def _perform(action: Action, backends: Backends) -> Report:
    if not isinstance(action, Collect):  # a process that was frozen may have lost control since it decided
        backends.confirm()
    if isinstance(action, Prepare | Launch):
        _check_ours(action, backends)
    match action:
        case Prepare():
            return _prepare(action, backends)
        case Launch(order):
            backends.platform(order.platform).launch(order)
            return Done(action)
        case Collect():
            return _collect(action, backends)
        case Stop(session, platform):
            _ask_to_leave(action, backends)
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


def _ask_to_leave(action: Stop, backends: Backends) -> None:
    """If the store does not answer, the session is not stopped yet, because it would not have heard of it."""
    if action.generation is None:
        return
    try:
        ask_to_leave(backends.store(action.store), run_of(action.session), action.generation)
    except BackendError:
        if not action.discard:
            raise


def _check_ours(action: Prepare | Launch | Collect, backends: Backends) -> None:
    """Raises Superseded if another ledger has adopted the run from its store. A store that does not answer
    delays nothing here: what needs the store fails later, and the next action looks again."""
    run = action.run if isinstance(action, Collect) else action.order.run
    name = action.store or backends.home_store
    if name not in backends.stores:
        return
    store = backends.stores[name]
    try:
        backends.ownership.check(name)
        fence = fence_of(store, run)
        order = deposits.newest(store, run)
        adopted = order[0] > action.adoptions or (fence is not None and fence.adoptions > action.adoptions)
        by = deposits.adopter(store, run, action.adoptions) if adopted else None
    except BackendError:
        return
    if adopted:
        where = f" on the machine {by}" if by else ""
        raise Superseded(
            f"another ledger{where} has adopted {run} from the store {name}, so it goes on there"
        )
    backends.ownership.check_run(name, run, order, action.adoptions)


def _prepare(action: Prepare, backends: Backends) -> Report:
    order, folders = action.order, backends.folders
    if action.uplink is Uplink.STORE:
        _fence_for(action, backends.store(action.store))
    keys = SessionKeys(order.run, order.session)
    key = parcels.key_for(backends.store(action.store), keys) if action.fetches else ""
    brought = order.resume is not None and (not action.fetches or bool(key))
    staged = folders.staged(order.session) if brought else None
    lost = _find_resume(action, backends, backends.store(action.store), staged)
    if lost is not None:
        return lost
    image = frozen_image(order.image)
    mask = _mask(action, backends)
    materials = Materials(
        bundle=_archive(action, backends, order.bundle, folders.bundle(order.bundle)),
        agent=folders.agent,
        resume=staged,
        inputs=_inputs(action, backends),
        image=None if image is None else _archive(action, backends, image, folders.image(image)),
        secrets={name: backends.secret(name) for name in order.secrets},
        shipping=_shipping(action, backends),
        say=lambda text: _tell(folders.preparing(order.run), mask.text(text)),
    )
    try:
        if action.fetches and materials.shipping is not None and not materials.shipping.refusal:
            try:
                materials = _parcelled(materials, order, backends.store(action.store), keys, key)
            except QuotaExhausted as error:  # the home store's
                return Failed(action, Trouble.FULL, str(error))
        pinned = backends.platform(order.platform).prepare(order, materials)
    finally:
        remove_tree(folders.preparing(order.run))
    if staged is not None:
        _remove(staged)
    return Done(action, image=pinned, notes=_untested(order))


def _archive(action: Prepare, backends: Backends, sha256: str, target: Path) -> Path:
    if not backends.shared or target.exists():
        return target
    return bringing.archive(backends.store(action.store), _places(action), sha256, target)


def _inputs(action: Prepare, backends: Backends) -> Path | None:
    order, into = action.order, backends.folders.inputs
    if not backends.shared:
        return inputs.stage(order.inputs, into)
    return bringing.stage(backends.store(action.store), _places(action), order.inputs, into)


def _places(action: Prepare) -> tuple[str, ...]:
    """Where the store has what this machine lacks: with the run or, if no machine that has it has seen the
    run yet, with its schedule."""
    return (action.order.run, *([deposits.of_schedule(action.schedule)] if action.schedule else ()))


def _parcelled(materials: Materials, order: Order, store: Store, keys: SessionKeys, key: str) -> Materials:
    """The materials, with what the session can fetch itself in the store."""
    assert materials.shipping is not None
    given = fetchable(order, materials, staged=materials.resume is not None)
    told = parcels.put(store, keys, given, key, materials.say)
    return replace(materials, shipping=replace(materials.shipping, parcel=told))


def _shipping(action: Prepare, backends: Backends) -> Shipping | None:
    """What the session needs to ship its own outbox; None if something else brings that home."""
    if action.uplink is not Uplink.STORE:
        return None
    shipping = shipping_to(backends.store(action.store), backends.folders.home / UPLINK)
    return replace(shipping, needed=action.fetches)


def shipping_to(store: Store, program: Path) -> Shipping:
    """What a session needs to ship to this store. `program` is the uplink as one zip application."""
    try:
        portable = carried(store)
    except Rejected as refusal:  # the platform decides whether it needs it
        return Shipping(program, refusal=str(refusal))
    return Shipping(program, wire.encode(portable), portable.this_machine)


def _fence_for(action: Prepare, store: Store) -> None:
    """Makes sure that no older session can publish any more before this one starts."""
    order = action.order
    fence = raise_fence(store, order.run, order.generation, action.adoptions)
    if fence > order.generation + _AHEAD_MAX:
        raise Rejected(
            f"the fence of {order.run} in the store is at {fence:,}, so that {order.session} could publish "
            f"nothing: `orchestrator adopt {action.store or 'STORE'} {order.run}` goes on above it"
        )
    if fence > order.generation:
        raise NameTaken(f"{order.run} is already at generation {fence}; {order.session} is an older one")


def _find_resume(action: Prepare, backends: Backends, store: Store, staged: Path | None) -> Failed | None:
    """Fetches the checkpoint to resume into `staged`, or looks whether the session can fetch it. If it is
    lost, reports what the store still has. Nothing starts over beside checkpoints that nobody judged."""
    order, name = action.order, action.store or backends.home_store
    if order.resume is None:
        newer = ""
        with contextlib.suppress(BackendError):  # a store that is away delays no first session
            newer = _unknown(store, action, backends)
        if newer:
            backends.ownership.falls_behind(name, order.run)
        return None
    try:
        if staged is not None:
            stored.fetch(store, order.run, order.resume, staged, order.resume_sha256, spare=True)
        elif action.thorough:
            stored.verify(store, order.run, order.resume, order.resume_sha256)
        else:
            stored.check(store, order.run, order.resume, order.resume_sha256)
    except NotFound:
        trouble, reason = Trouble.NOT_FOUND, "it is gone from the home store"
    except CorruptCheckpoint as error:
        trouble, reason = Trouble.CORRUPT, error.reason
    else:
        return None
    if staged is not None:
        _remove(staged)  # the next one needs an empty folder
    left = stored.present(store, order.run, sorted(action.accepted - {order.resume}))
    if not left and (newer := _unknown(store, action, backends)):
        backends.ownership.falls_behind(name, order.run)
        reason += f"; the store has {newer}, unknown to this ledger: was an old copy of the home restored?"
        return Failed(action, trouble, reason, checkpoint=order.resume, left=left, unknown=newer)
    doubt = "" if left else _doubt(store, gone=trouble is Trouble.NOT_FOUND)
    return Failed(action, trouble, reason + doubt, checkpoint=order.resume, left=left, doubtful=bool(doubt))


def _unknown(store: Store, action: Prepare, backends: Backends) -> str:
    """The newest checkpoint beyond the one to resume of which this ledger never heard, as after an old copy
    of the ledger was put back; empty if there is none."""
    order, heard = action.order, action.accepted | action.dropped
    beyond = [ref for ref in stored.names(store, order.run)
              if not ref.outputs and ref.name not in heard and ref.step > order.resume_step]  # fmt: skip
    if not beyond:
        return ""
    made = backends.ownership.made(order.run)
    unknown = [ref for ref in beyond if not made.knows(ref)]
    return max(unknown, key=lambda ref: ref.step).name if unknown else ""


def _doubt(store: Store, *, gone: bool) -> str:
    """Why the store as a whole may be the wrong one; empty if it looks right. `gone`: it has not even a
    damaged one of the run's checkpoints. An unmounted disk looks like an empty store, which is no longer
    empty once another run wrote there."""
    if deposits.is_empty(store):
        return "; the store is empty: is its disk there?"
    return "; the store has none of the run's checkpoints: is its disk there?" if gone else ""


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
        make_folder(path.parent)
        write_whole(path, text.encode(), sync=False)


def _collect(action: Collect, backends: Backends) -> Report:
    into = backends.folders.collected(action.run, action.session)
    make_folder(into)
    store = backends.store(action.store)
    found = Done(action)
    with snapshot(store):
        if action.last or action.uplink is Uplink.STORE:
            _check_ours(action, backends)
        for outbox in outboxes(
            action, store, lambda: backends.platform(action.platform).open(action.session)
        ):
            if isinstance(outbox, uplinked.StoreOutbox):
                found = look(action, store, outbox, into)
            else:
                found = bring(action, store, outbox, into, found, partial(_check_ours, action, backends))
        if found.checkpoints:  # what came while another took over is not accepted here
            backends.ownership.check(action.store or backends.home_store)
    return found


def _retire(action: Retire, backends: Backends) -> Report:
    """Deletes what this ledger made, and nothing else: another one may have accepted it."""
    store, ownership = backends.store(action.store), backends.ownership
    try:
        refs = ownership.there(action.store or backends.home_store, store, action.run, action.adoptions)
    except Superseded as error:
        return Done(action, notes=(str(error),))
    kept = [ref.step for ref in refs if ref.name in action.keep and not ref.outputs]
    newest_kept = max(kept, default=-1)

    def is_old(ref: CheckpointRef) -> bool:
        if ref.outputs:  # those of the newest generation may not be accepted yet
            return ref.generation < action.generation
        return ref.generation <= action.generation and ref.step <= newest_kept

    old = [ref for ref in refs if ref.name not in action.keep and is_old(ref)]
    if old:
        made = ownership.made(action.run)
        gone = [ref.name for ref in old if made.has(ref)]
        keep = ({ref.name for ref in refs} | action.keep) - set(gone)
        stored.retire(store, action.run, gone, keep=keep, older=made.has_lineage)
    return Done(action)
