"""How each action is carried out: the verbs of one platform, the home store, and this machine's folders.

Runs in workers, never in the engine's thread. Turns every error of a backend into a report of what to do
next. Decides nothing, journals nothing.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import inputs
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
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    CorruptCheckpoint,
    InputError,
    NotFound,
    QuotaExhausted,
    Rejected,
    Transient,
)
from orchestrator.platforms.platform import Materials, Platform
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store


@dataclass(frozen=True)
class Folders:
    """Where things lie on this machine, below `$ORCHESTRATOR_HOME`."""

    home: Path

    def bundle(self, sha256: str) -> Path:
        return self.home / "bundles" / f"{sha256}.tar.gz"

    @property
    def agent(self) -> Path:
        return self.home / "agent.pyz"

    def staged(self, session: str) -> Path:
        """The resume checkpoint on its way into a session."""
        return self.home / "staged" / session

    def image(self, sha256: str) -> Path:
        """The frozen folders an image is built from."""
        return self.home / "images" / f"{sha256}.tar.gz"

    @property
    def inputs(self) -> Path:
        """Verified copies of jobs' inputs, by their content."""
        return self.home / "inputs"

    def run(self, run: str) -> Path:
        return self.home / "runs" / run

    def collected(self, run: str, session: str) -> Path:
        """What was brought of a session's outbox; checkpoints leave again once they are in the store."""
        return self.run(run) / session

    def live(self, run: str) -> Path:
        """The newest reading of the run's session, for viewers; volatile."""
        return self.run(run) / "live.json"

    def preparing(self, run: str) -> Path:
        """What is being done for the run's next session, for viewers; volatile."""
        return self.run(run) / "preparing"


@dataclass(frozen=True)
class Backends:
    """The instances a user configured, and how a secret's name becomes its value."""

    platforms: Mapping[str, Platform]
    store: Store
    folders: Folders
    secret: Callable[[str], str]

    def platform(self, name: str) -> Platform:
        """Raises Rejected for one that the user has taken out of the config since a session began there."""
        if name not in self.platforms:
            raise Rejected(f"the platform {name} is not in the config any more: put it back", backend=name)
        return self.platforms[name]


def perform(action: Action, backends: Backends) -> Report:
    """Carries one action out; blocks; never raises a backend's error but reports it, without the secrets."""
    report = _reported(action, backends)
    if isinstance(report, Failed):
        return replace(report, message=_mask(action, backends).text(report.message))
    return report


def _mask(action: Action, backends: Backends) -> Mask:
    """The secrets that this action sends somewhere, whose answer may repeat them."""
    if not isinstance(action, Prepare | Launch):
        return Mask()
    values = []
    for name in action.order.secrets:
        with contextlib.suppress(AccessDenied):  # it is not there: nothing was sent
            values.append(backends.secret(name))
    return Mask(values)


def _reported(action: Action, backends: Backends) -> Report:
    try:
        return _perform(action, backends)
    except CorruptCheckpoint as error:
        return Failed(action, Trouble.CORRUPT, error.reason, checkpoint=error.name)
    except NotFound as error:
        return Failed(action, Trouble.NOT_FOUND, str(error))
    except QuotaExhausted as error:
        return Failed(action, Trouble.QUOTA, str(error), until=error.until)
    except AccessDenied as error:
        return Failed(action, Trouble.DENIED, str(error))
    except (Rejected, InputError) as error:
        return Failed(action, Trouble.REJECTED, str(error))
    except (Transient, BackendError) as error:
        return Failed(action, Trouble.TRANSIENT, str(error))
    except OSError as error:  # this machine's own disk: full, read-only, gone
        return Failed(action, Trouble.TRANSIENT, f"{error.strerror or error} ({error.filename or 'no file'})")


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
            shutil.rmtree(backends.folders.staged(session), ignore_errors=True)
            backends.platform(platform).discard(session)
            return Done(action)
        case Retire():
            return _retire(action, backends)


def _prepare(action: Prepare, backends: Backends) -> Report:
    order, folders = action.order, backends.folders
    staged: Path | None = None
    if order.resume is not None:
        staged = folders.staged(order.session)
        stored.fetch(backends.store, order.run, order.resume, staged)
    image = frozen_image(order.image)
    mask = _mask(action, backends)
    materials = Materials(
        bundle=folders.bundle(order.bundle),
        agent=folders.agent,
        resume=staged,
        inputs=inputs.stage(order.inputs, folders.inputs),
        image=None if image is None else folders.image(image),
        secrets={name: backends.secret(name) for name in order.secrets},
        say=lambda text: _tell(folders.preparing(order.run), mask.text(text)),
    )
    try:
        pinned = backends.platform(order.platform).prepare(order, materials)
    finally:
        folders.preparing(order.run).unlink(missing_ok=True)
    if staged is not None:
        shutil.rmtree(staged, ignore_errors=True)
    return Done(action, image=pinned)


def _tell(path: Path, text: str) -> None:
    """A line for viewers; a disk that is full costs only that."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(".tmp-preparing")
        draft.write_text(text)
        draft.replace(path)


def _collect(action: Collect, backends: Backends) -> Report:
    into = backends.folders.collected(action.run, action.session)
    into.mkdir(parents=True, exist_ok=True)
    collected = backends.platform(action.platform).collect(action.session, into)
    accepted, corrupt = [], list(collected.corrupt)
    for ref in _brought(into):
        if not _wanted(action, ref):
            continue
        try:
            manifest = _publish(backends.store, action.run, ref, into)
        except CorruptCheckpoint as error:
            corrupt.append((ref.name, error.reason))
            shutil.rmtree(into / "checkpoints" / ref.name)  # so that it is brought again
        else:
            accepted += [_accepted(manifest, action.metric)] if manifest is not None else []
    _drop_blobs(into)
    return Done(action, checkpoints=tuple(accepted), corrupt=tuple(corrupt))


def _brought(into: Path) -> list[CheckpointRef]:
    """Every checkpoint ever brought here, oldest first, also by a controller that died meanwhile."""
    folder = into / "checkpoints"
    found = [CheckpointRef.parse(entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted((ref for ref in found if ref is not None), key=lambda ref: ref.name)


def _publish(store: Store, run: str, ref: CheckpointRef, into: Path) -> Manifest | None:
    """The manifest once it is in the home store; None where retention has deleted it since."""
    folder = into / "checkpoints" / ref.name
    published = folder / "published"
    try:
        return stored.read(store, run, ref.name)
    except NotFound:
        if published.exists():
            return None
    try:
        manifest = decode(ref.name, (folder / "manifest.json").read_bytes())
        stored.publish(store, run, manifest, into)
    except FileNotFoundError as error:  # cut off while it was brought: away with it, so that it comes again
        shutil.rmtree(folder)
        raise Transient(f"{ref.name} was brought in part") from error
    published.touch()
    return manifest


def _wanted(action: Collect, ref: CheckpointRef) -> bool:
    if ref.generation != action.generation or ref.name in action.known:
        return False
    return action.incarnation is None or ref.incarnation == action.incarnation


def _accepted(manifest: Manifest, metric: str | None) -> Accepted:
    metrics = {metric: manifest.metrics[metric]} if metric in manifest.metrics and metric else {}
    return Accepted(manifest.ref, manifest.size, metrics, manifest.created_at)


def _drop_blobs(into: Path) -> None:
    """What is in the home store need not lie here as well; manifests stay, so nothing is brought twice."""
    blobs = into / "blobs"
    if blobs.is_dir():
        for blob in blobs.iterdir():
            blob.unlink(missing_ok=True)


def _retire(action: Retire, backends: Backends) -> Report:
    refs = stored.names(backends.store, action.run)
    kept = [ref.step for ref in refs if ref.name in action.keep]
    newest_kept = max(kept, default=-1)
    gone = [
        ref.name
        for ref in refs
        if ref.name not in action.keep
        and ref.generation <= action.generation
        and not (ref.generation == action.live and ref.step > newest_kept)
    ]
    if gone:
        listed = {ref.name for ref in refs}
        stored.retire(backends.store, action.run, gone, keep=(listed | action.keep) - set(gone))
    return Done(action)
