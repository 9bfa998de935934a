"""A run's checkpoints in a store: publishes, finds, fetches, restores and retires them.

Decides what each key is for, and in which order keys are written and deleted. Must never know which store it
is, nor choose a checkpoint. Below `runs/<run>/`:

    checkpoints/<name>/manifest.json
    blobs/<lineage>/<sha256>             lineage: g<generation>-<incarnation>, the one agent that wrote them

Why a lineage (docs/decisions/006): if a whole run shared its blobs, they could not be swept safely without a
lock. A new session repeats the steps of a lost one bit for bit. So it could rely on a blob that a sweep of
the old one is about to delete. A lineage has one writer: whoever publishes its checkpoints also retires them,
one call at a time. After its generation is closed, nothing is added to a lineage, and anyone may retire its
checkpoints at any time.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from orchestrator.core import bounds
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, authenticate, decode
from orchestrator.errors import (
    CorruptCheckpoint,
    InputError,
    NoIdentity,
    NotFound,
    Rejected,
    SourceChanged,
    TooLarge,
)
from orchestrator.files import (
    check_room,
    draft_folder,
    make_folder,
    open_plain,
    remove_file,
    rename,
    sweep,
    sync_folder,
    write_whole,
    written,
)
from orchestrator.files.hashing import digest_file, hashed_copy
from orchestrator.stores.store import SHARED, Stat, Store, content, snapshot

_SHA256 = re.compile(r"[0-9a-f]{64}")
READINGS_MAX = 3  # of an object that fails its verification: the transport may have damaged it


def publish(
    store: Store,
    run: str,
    manifest: Manifest,
    folder: Path,
    sent: Callable[[int], None] = lambda _: None,
) -> bool:
    """Puts a checkpoint from `folder`, in outbox layout, into the store. The manifest comes last.

    Blobs that this lineage stored before are not read, and may be missing in the folder. The others are read
    once: the store verifies what it is sent. `sent` hears the size of each that the store took. Idempotent.

    Returns whether the store had a different manifest under this name, which is then replaced. Only the
    lineage's one agent can write the right one, so the other was damaged or forged. Raises CorruptCheckpoint
    if the folder's bytes do not match the manifest, and FileNotFoundError if a blob is missing.
    """
    with snapshot(store):
        return _publish(store, run, manifest, folder, sent)


def _publish(store: Store, run: str, manifest: Manifest, folder: Path, sent: Callable[[int], None]) -> bool:
    lineage = _lineage(manifest.ref)
    for sha256, size in manifest.blobs().items():
        key = _blob_key(run, lineage, sha256)
        there = store.stat(key)
        if there is not None and there.size != size:
            store.delete(key)  # the key names its bytes: another size is damage
        if there is None or there.size != size:
            source = folder / "blobs" / sha256
            if source.stat().st_size != size:  # such as one that grows without end
                raise CorruptCheckpoint(manifest.name, f"blob {sha256[:12]}… is of another size")
            _put(store, key, source, sha256, manifest.name)
            sent(size)
    path, key = folder / "checkpoints" / manifest.name / "manifest.json", manifest_key(run, manifest.name)
    foreign = _holds_other(store, run, manifest)
    if foreign:
        store.delete(key)
    _put(store, key, path, manifest.sha256, manifest.name)
    return foreign


def _holds_other(store: Store, run: str, manifest: Manifest) -> bool:
    try:
        read(store, run, manifest.name, manifest.sha256)
    except NotFound:
        return False
    except NoIdentity:  # an earlier uplink of this session put it: the size must do
        there = store.stat(manifest_key(run, manifest.name))
        return there is not None and there.size != len(manifest.encode())
    except CorruptCheckpoint:
        return True
    return False


def names(store: Store, run: str) -> tuple[CheckpointRef, ...]:
    """Every checkpoint with a manifest in the store, in the order of names; foreign names are ignored."""
    found = []
    for stat in store.list(f"runs/{run}/checkpoints/"):
        *_, name, file = stat.key.split("/")
        ref = CheckpointRef.parse(name)
        if ref is not None and stat.key == manifest_key(run, name) and file == "manifest.json":
            found.append(ref)
    return tuple(found)


def present(store: Store, run: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names for which the store has a manifest, without reading it. Looks up each key, because a listing
    may be out of date."""
    return tuple(name for name in names if store.stat(manifest_key(run, name)) is not None)


def read(store: Store, run: str, name: str, sha256: str | None = None) -> Manifest:
    """The checkpoint's manifest. Raises NotFound if it is missing, and CorruptCheckpoint if it is damaged or
    its bytes do not have this `sha256` (empty or None: accept any valid one)."""
    for reading in range(READINGS_MAX):
        try:
            data = content(store, manifest_key(run, name), bounds.MANIFEST_BYTES_MAX)
        except TooLarge as error:
            raise CorruptCheckpoint(name, f"the manifest is {error.reason}") from error
        try:
            authenticate(name, data, sha256)
            manifest = decode(name, data)
            break
        except CorruptCheckpoint:
            if reading == READINGS_MAX - 1:
                raise
    if manifest.run != run:
        raise CorruptCheckpoint(name, f"the manifest is of the run {manifest.run!r}")
    return manifest


def blob(store: Store, run: str, ref: CheckpointRef, sha256: str, target: Path) -> None:
    """Writes one verified blob of a checkpoint to `target`. Raises CorruptCheckpoint if it is missing,
    damaged or larger than any blob can be. In the last case it does not fetch it."""
    _get(store, run, ref, sha256, bounds.PART_BYTES_MAX, target)


def blob_sizes(store: Store, run: str, ref: CheckpointRef) -> dict[str, int]:
    """sha256 → size of the blobs of a checkpoint's lineage. As late as the store's listings are."""
    prefix = _blob_key(run, _lineage(ref), "")
    found = islice(store.list(prefix), bounds.LISTED_MAX)
    return {stat.key.removeprefix(prefix): stat.size for stat in found}


def lacking(store: Store, run: str, manifest: Manifest, listed: Mapping[str, int]) -> str:
    """Why a checkpoint is incomplete, judged by the sizes of its blobs; else empty. Blobs that are `listed`
    with their right size are believed, others are looked up one by one."""
    for sha256, size in manifest.blobs().items():
        if listed.get(sha256) == size:
            continue
        there = store.stat(_blob_key(run, _lineage(manifest.ref), sha256))
        if there is None or there.size != size:
            return f"blob {sha256[:12]}… is {'missing' if there is None else 'of another size'}"
    return ""


def check(store: Store, run: str, name: str, sha256: str | None = None) -> None:
    """Reads a checkpoint's manifest and looks for its blobs, of which none is fetched. Raises what `fetch`
    raises."""
    manifest = read(store, run, name, sha256)
    with snapshot(store):
        reason = lacking(store, run, manifest, blob_sizes(store, run, manifest.ref))
    if reason:
        raise CorruptCheckpoint(name, reason)


def fetch(
    store: Store,
    run: str,
    name: str,
    into: Path,
    sha256: str | None = None,
    came: Callable[[int], None] = lambda _: None,
    *,
    spare: bool = False,
) -> Manifest:
    """Fetches a checkpoint into a folder, in outbox layout. Verifies every blob; the manifest comes last.
    `sha256` is the accepted manifest's, as in `read`. `came` hears the size of each blob that was fetched.
    `spare`: raises Lack, and fetches nothing, if it does not fit beside what stays free for others.

    Continues an interrupted fetch: valid blobs in the folder are not fetched again. Raises NotFound without a
    manifest, and CorruptCheckpoint if a blob is missing or damaged.
    """
    manifest = read(store, run, name, sha256)
    blobs = into / "blobs"
    home = into / "checkpoints" / name
    for folder in (blobs, home):
        make_folder(folder)
        sweep(folder)
    if spare:
        check_room(into, sum(manifest.blobs().values()), len(manifest.blobs()))
    for sha256, size in manifest.blobs().items():
        target = blobs / sha256
        if not _is_whole(target, sha256, size):
            _get(store, run, manifest.ref, sha256, size, target)
            came(size)
    write_whole(home / "manifest.json", manifest.encode(), mode=SHARED)
    return manifest


def restore(folder: Path, manifests: Iterable[Manifest], target: Path, *, consume: bool = False) -> None:
    """Writes the files of checkpoints as the training wrote them, from a folder in outbox layout. No two may
    have the same path. With `consume` it removes each blob there once nothing more needs it, so that both
    never take twice the room.

    The target appears complete, verified and durable, or not at all. Raises InputError if it exists, and
    CorruptCheckpoint if a blob is missing or damaged.
    """
    if target.exists():
        raise InputError(f"{target} already exists; name a folder that does not")
    make_folder(target.parent)
    sweep(target.parent)
    given = list(manifests)
    uses = Counter(part.sha256 for manifest in given for entry in manifest.files for part in entry.parts)
    with draft_folder(target.parent) as draft:
        for manifest in given:
            for entry in manifest.files:
                path = draft / entry.path
                make_folder(path.parent)
                for part in _assembled(folder / "blobs", entry, path, manifest.name):
                    uses[part] -= 1
                    if consume and not uses[part]:
                        remove_file(folder / "blobs" / part)
        for here, _, _ in os.walk(draft):
            sync_folder(Path(here))
        rename(draft, target)
        sync_folder(target.parent)


def retire(
    store: Store,
    run: str,
    names: Iterable[str],
    keep: Iterable[str],
    *,
    older: Callable[[str], bool] = lambda _incarnation: False,
    known: Mapping[str, Manifest] = MappingProxyType({}),
) -> None:
    """Deletes checkpoints: first their manifests, then the blobs that no remaining manifest needs.

    `keep` names every accepted checkpoint that stays. So a checkpoint that `list` does not show yet loses
    nothing. Sweeps the lineages of `names` and, of `older` generations, those of these incarnations: they are
    closed but may have remains of an interrupted call. Others may be of another ledger, and stay. For a
    generation that still publishes, only its publisher may call this. A lineage with an unreadable manifest
    is not swept; `known` manifests are not read. Idempotent.
    """
    gone, kept = _refs(names), _refs(keep)
    if not gone:
        return
    assert not gone & kept, "a checkpoint cannot both go and stay"
    closed_below = max(ref.generation for ref in gone | kept)
    lineages = {_lineage(ref) for ref in gone}

    def is_swept(lineage: str, generation: int) -> bool:
        return lineage in lineages or (generation < closed_below and older(_incarnation(lineage)))

    with snapshot(store):
        for ref in sorted(gone, key=lambda ref: ref.name):
            store.delete(manifest_key(run, ref.name))
        for stat in _unneeded(store, run, gone, kept, is_swept, known):
            store.delete(stat.key)


def sizes(store: Store, enough: Callable[[], bool] = lambda: False) -> Iterator[tuple[str, int]]:
    """(run, bytes) for every object of every run in the store, in the order of runs, until `enough`."""
    for stat in store.list("runs/"):
        if enough():
            return
        _, run, *_ = stat.key.split("/")
        yield run, stat.size


def orphans(
    store: Store,
    run: str,
    keep: Iterable[str],
    gone: Iterable[str] = (),
    of: Callable[[str], bool] = lambda _incarnation: True,
) -> tuple[Stat, ...]:
    """Blobs of these incarnations that no manifest needs, except the manifests of `gone`. Changes nothing.

    Only for a run whose generations are all closed. Nothing is added to it any more, so an orphan stays one
    and may be deleted by its key. `keep` as in `retire`.
    """
    return tuple(
        _unneeded(store, run, _refs(gone), _refs(keep), lambda lineage, _: of(_incarnation(lineage)))
    )


def lacks(store: Store, run: str, name: str) -> str:
    """Why a checkpoint is incomplete, judged by its manifest and the sizes of its blobs; else empty."""
    try:
        manifest = read(store, run, name)
    except NotFound:
        return "it has no manifest"
    except CorruptCheckpoint as error:
        return error.reason
    return lacking(store, run, manifest, {})


def verify(store: Store, run: str, name: str, sha256: str | None = None) -> Manifest:
    """Reads and verifies every byte of a checkpoint, and keeps none. `sha256` is the accepted manifest's, as
    in `read`. Returns its manifest.

    Needs disk space for one blob at a time. Raises NotFound without a manifest, and CorruptCheckpoint if the
    manifest or a blob is damaged.
    """
    manifest = read(store, run, name, sha256)
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        target = Path(folder) / "blob"
        for blob, size in manifest.blobs().items():
            _get(store, run, manifest.ref, blob, size, target)
            remove_file(target)
    return manifest


def sweep_orphans(
    store: Store,
    run: str,
    keep: Iterable[str],
    closed_below: int,
    of: Callable[[str], bool] = lambda _incarnation: True,
) -> int:
    """Deletes what these dead publishers left of the run: blobs that no manifest of their lineage names, in
    generations below `closed_below`, in which nothing can be published any more. Returns how many.

    `keep` names the accepted checkpoints. A lineage is left alone if one of their manifests is missing, or
    any manifest is unreadable: the blobs may be all that is left. Idempotent.
    """
    count = 0
    with snapshot(store):
        kept = _refs(keep)
        for stat in _unneeded(
            store, run, set(), kept, lambda lineage, gen: gen < closed_below and of(_incarnation(lineage))
        ):
            store.delete(stat.key)
            count += 1
    return count


def sweep_lineage(
    store: Store, run: str, ref: CheckpointRef, keep: Iterable[str], known: Mapping[str, Manifest]
) -> int:
    """Deletes the blobs of one lineage that no manifest needs. Returns how many. For a generation that still
    publishes, only its publisher may call this. `keep` and `known` as in `retire`; what is half sent belongs
    to both."""
    lineage, count = _lineage(ref), 0
    for stat in _unneeded(store, run, set(), _refs(keep), lambda each, _: each == lineage, known):
        store.delete(stat.key)
        count += 1
    return count


def _unneeded(
    store: Store,
    run: str,
    gone: set[CheckpointRef],
    kept: set[CheckpointRef],
    is_swept: Callable[[str, int], bool],
    known: Mapping[str, Manifest] = MappingProxyType({}),
) -> Iterator[Stat]:
    """The run's blobs that no remaining checkpoint needs, in lineages for which `is_swept(name, generation)`
    is true. Skips lineages with an unreadable manifest, and everything that is not named like a blob.

    Lists the blobs before it reads the manifests, so that a checkpoint published in between is safe.
    """
    root = f"runs/{run}/blobs/"
    there = []
    for stat in store.list(root):
        lineage, _, sha256 = stat.key.removeprefix(root).partition("/")
        generation = _generation(lineage)
        if generation is not None and _SHA256.fullmatch(sha256) and is_swept(lineage, generation):
            there.append((stat, lineage, sha256))
    lineages = {lineage for _, lineage, _ in there}
    with snapshot(store):  # a new one: its listing of manifests must not be older than that of the blobs
        needed = _needed(store, run, gone, kept, lineages, known) if there else {}
    for stat, lineage, sha256 in there:
        blobs = needed.get(lineage, frozenset())
        if blobs is not None and sha256 not in blobs:
            yield stat


def _needed(
    store: Store,
    run: str,
    gone: set[CheckpointRef],
    kept: set[CheckpointRef],
    lineages: set[str],
    known: Mapping[str, Manifest],
) -> dict[str, frozenset[str] | None]:
    """Lineage → the blobs that its remaining checkpoints need; None if one of them cannot be read."""
    needed: dict[str, frozenset[str] | None] = {}
    for ref in (set(names(store, run)) | kept) - gone:
        lineage = _lineage(ref)
        if lineage not in lineages:
            continue
        before = needed.get(lineage, frozenset())
        try:
            blobs = frozenset((known.get(ref.name) or read(store, run, ref.name)).blobs())
            needed[lineage] = None if before is None else before | blobs
        except (CorruptCheckpoint, NoIdentity):
            needed[lineage] = None
        except NotFound:  # retired by another caller meanwhile, unless it is one to keep
            needed[lineage] = None if ref in kept else before
    return needed


def _refs(names: Iterable[str]) -> set[CheckpointRef]:
    refs = {name: CheckpointRef.parse(name) for name in names}
    foreign = [name for name, ref in refs.items() if ref is None]
    if foreign:
        raise Rejected(f"not the name of a checkpoint: {', '.join(map(repr, foreign))}", operation="retire")
    return {ref for ref in refs.values() if ref is not None}


def manifest_key(run: str, name: str) -> str:
    """Where a checkpoint's manifest lies in the store."""
    return f"runs/{run}/checkpoints/{name}/manifest.json"


def _blob_key(run: str, lineage: str, sha256: str) -> str:
    return f"runs/{run}/blobs/{lineage}/{sha256}"


def _lineage(ref: CheckpointRef) -> str:
    return f"g{ref.generation:02d}-{ref.incarnation}"


def _incarnation(lineage: str) -> str:
    return lineage.partition("-")[2]


def _generation(lineage: str) -> int | None:
    """The generation in a lineage's name, or None for a folder that is not ours."""
    ref = CheckpointRef.parse(f"{0:010d}-{lineage}")
    return None if ref is None else ref.generation


def _put(store: Store, key: str, source: Path, sha256: str, name: str) -> None:
    try:
        store.put(key, source, sha256)
    except SourceChanged as error:
        raise CorruptCheckpoint(name, f"{source.name} was altered before it was published") from error


def _get(store: Store, run: str, ref: CheckpointRef, sha256: str, bytes_max: int, target: Path) -> None:
    key = _blob_key(run, _lineage(ref), sha256)
    for reading in range(READINGS_MAX):
        try:
            store.get(key, target, sha256, bytes_max=bytes_max)
            return
        except NotFound as error:
            raise CorruptCheckpoint(ref.name, f"blob {sha256[:12]}… is missing") from error
        except TooLarge as error:
            raise CorruptCheckpoint(ref.name, f"blob {sha256[:12]}… is {error.reason}") from error
        except CorruptCheckpoint as error:
            if reading == READINGS_MAX - 1:
                raise CorruptCheckpoint(ref.name, f"blob {sha256[:12]}… is altered") from error


def _is_whole(path: Path, sha256: str, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size and digest_file(path) == sha256


def _assembled(blobs: Path, entry: FileEntry, path: Path, name: str) -> Iterator[str]:
    """Writes one file into a draft folder, which is renamed once it is complete. Yields each blob that is in
    the file."""
    with written(path) as file:
        for part in entry.parts:
            try:
                with open_plain(blobs / part.sha256) as stream:
                    found = hashed_copy(stream.readinto, file.fileno())
            except FileNotFoundError as error:
                raise CorruptCheckpoint(name, f"blob {part.sha256[:12]}… is missing") from error
            if found != part.sha256:
                raise CorruptCheckpoint(name, f"blob {part.sha256[:12]}… is altered")
            yield part.sha256
        os.fsync(file.fileno())
