"""An outbox as a value: opened by its platform or store, and brought into a local folder a page at a time.

Each place where an outbox may lie has its own `Outbox`; the rules are here, and let nothing unverified in.
Must never know what a platform is, nor what becomes of the checkpoints.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

from orchestrator import files
from orchestrator.core import bounds
from orchestrator.core.checkpoint import CheckpointRef, Manifest, decode
from orchestrator.errors import CorruptCheckpoint
from orchestrator.files import Odd, copy_open, draft_folder, read_small, sync_folder, write_whole
from orchestrator.session.layout import BLOBS, CHECKPOINTS, MANIFEST, WHOLE, blob_path, manifest_path
from orchestrator.session.mirror import mirror

REFUSED = "refused"  # in a checkpoint's folder here: it was not whole; a byte for each time it was found so
_CHUNK_BYTES = 1 << 20


class Outbox(Protocol):
    """How one session's outbox is read. The agent may delete superseded checkpoints between any two calls.

    Every verb blocks, may raise Odd where what lies there is not what belongs there, and the errors of the
    platform or store where it lies.
    """

    def small(self, name: str) -> bytes | None:
        """One of the files that `layout.WHOLE` names; None where there is none, or none can be read yet."""

    def checkpoints(self) -> Iterable[str]:
        """Names of the checkpoints there now."""

    def manifest(self, name: str) -> bytes | None:
        """The manifest's bytes, or None where there is none (any more)."""

    def blob(self, sha256: str, target: Path) -> bool:
        """Writes the blob's bytes to the new file `target`; False where there is no such blob."""

    def growing(self, here: Path, folder: Path) -> Growth:
        """Log and progress, made readable on this machine. Of what `here` has from before, only the last
        segment need come again; what comes is put into `folder`, which is empty and goes afterwards."""


@dataclass(frozen=True)
class Growth:
    """Where log and progress can be read; `notes`, of what was left out; `more`: it was not all."""

    root: Path
    notes: tuple[str, ...] = ()
    more: bool = False


@dataclass(frozen=True)
class Collected:
    """What one collect brought: manifests whose blobs are all there and verified, oldest first, and the
    names of checkpoints that were there but failed, each with its reason. `notes`: what was beyond a bound
    or in the wrong shape, and so was not brought; `more`: there is more than one collect brings."""

    manifests: tuple[Manifest, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    more: bool = False


def collect(
    outbox: Outbox, into: Path, known: Set[str] = frozenset(), *, last: bool = False, sync: bool = True
) -> Collected:
    """Brings checkpoints, then log, progress and status, and the result as the last; all of it bounded and
    incremental. `known`, `last` and `sync` as in `bring`."""
    found = bring(outbox, into, known, last=last, sync=sync)
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        try:
            growth = outbox.growing(into, Path(folder))
        except Odd as odd:
            growth = Growth(Path(folder), (f"{odd}: neither log nor progress was read",))
        grown, more = mirror(growth.root, into)
    notes = growth.notes
    for name in WHOLE:
        try:
            data = outbox.small(name)
        except Odd as odd:
            notes += (f"{odd}: it was not read",)
        else:
            if data is not None and read_small(into / name, len(data)) != data:
                write_whole(into / name, data, sync=False)
    told = tuple(dict.fromkeys((*found.notes, *notes, *grown)))
    return Collected(found.manifests, found.corrupt, told, found.more or growth.more or more)


def bring(
    outbox: Outbox, into: Path, known: Set[str] = frozenset(), *, last: bool = False, sync: bool = True
) -> Collected:
    """Copies a page of what is new into `into`; returns every checkpoint whose blobs all lie there, verified.

    A checkpoint that is `known`, or whose manifest is in `into` already, is not brought again, whether or
    not its blobs still are; it costs no request. Of what is new the oldest come first, and before those that
    were tried in vain. Those are tried a few times only, and again in the `last` look. `more` says that some
    were not tried yet. `sync` False spares the fsyncs where `into` need not survive a loss of power.
    """
    blobs, checkpoints = into / BLOBS, into / CHECKPOINTS
    blobs.mkdir(parents=True, exist_ok=True)
    checkpoints.mkdir(parents=True, exist_ok=True)
    try:
        there = list(outbox.checkpoints())
    except Odd as odd:
        return Collected(notes=(f"no checkpoint was brought: {odd}",))
    listed = {name for name in there if CheckpointRef.parse(name)}
    brought, refused = _found(checkpoints)
    seen = brought | refused.keys() | (listed & known)
    fresh, notes = _new(listed - seen, len(seen))
    again = [
        name
        for name in sorted((listed & refused.keys()) - known, key=lambda name: (refused[name].at, name))
        if last or refused[name].times < bounds.CHECKPOINT_TRIES_MAX
    ]
    manifests, corrupt = _brought_before(into, brought)
    size, tried = 0, 0
    for name in (*fresh, *again)[: bounds.COLLECT_CHECKPOINTS_MAX]:
        if size >= bounds.COLLECT_CHECKPOINT_BYTES_MAX:
            break
        tried += 1
        try:
            manifest = _fetch(outbox, into, name, sync)
        except CorruptCheckpoint as error:
            refuse(checkpoints / name)
            corrupt.append((name, error.reason))
            continue
        if manifest is not None:
            manifests.append(manifest)
            size += manifest.size
    cut = files.cut_short(there, "outbox/checkpoints")
    ordered = tuple(sorted(manifests, key=lambda manifest: manifest.name))
    return Collected(ordered, tuple(corrupt), (*cut, *notes), more=tried < len(fresh))


def _new(names: set[str], known: int) -> tuple[list[str], tuple[str, ...]]:
    """What to bring of checkpoints never seen before, oldest first; beyond a session's bound the newest."""
    fresh, room = sorted(names), max(0, bounds.SESSION_CHECKPOINTS_MAX - known)
    if len(fresh) <= room:
        return fresh, ()
    note = f"it leaves more than {bounds.SESSION_CHECKPOINTS_MAX:,} checkpoints: only the newest is brought"
    return fresh[:room] or fresh[-1:], (note,)


class _Refused(NamedTuple):
    """When a checkpoint was last found not to be whole, and how often it was."""

    at: int
    times: int


def _found(checkpoints: Path) -> tuple[set[str], dict[str, _Refused]]:
    """What lies here: what was brought, and what was refused."""
    brought, refused = set(), {}
    for entry in checkpoints.iterdir():
        if CheckpointRef.parse(entry.name) is None:
            continue
        if (entry / MANIFEST).exists():
            brought.add(entry.name)
            continue
        with suppress(FileNotFoundError):
            mark = (entry / REFUSED).stat()
            refused[entry.name] = _Refused(mark.st_mtime_ns, mark.st_size)
    return brought, refused


def refuse(folder: Path) -> None:
    """The checkpoint in this folder comes again, after all that is new: one that is never whole must not keep
    the others waiting."""
    folder.mkdir(exist_ok=True)
    with (folder / REFUSED).open("ab") as mark:
        mark.write(b".")
    (folder / MANIFEST).unlink(missing_ok=True)


def _brought_before(into: Path, names: set[str]) -> tuple[list[Manifest], list[tuple[str, str]]]:
    """Those whose blobs have not been taken away since, and those whose manifest is no longer whole."""
    manifests: list[Manifest] = []
    corrupt: list[tuple[str, str]] = []
    if not any((into / BLOBS).iterdir()):
        return manifests, corrupt  # the usual case: spares reading every manifest there ever was
    for name in sorted(names):
        try:
            manifest = decode(name, (into / manifest_path(name)).read_bytes())
        except CorruptCheckpoint as error:
            corrupt.append((name, error.reason))
            continue
        if all(_size(into / BLOBS / sha256) == size for sha256, size in manifest.blobs().items()):
            manifests.append(manifest)
    return manifests, corrupt


def _fetch(outbox: Outbox, into: Path, name: str, sync: bool) -> Manifest | None:
    """One new checkpoint: its blobs, each verified, then its manifest. None: superseded meanwhile."""
    try:
        data = outbox.manifest(name)
        if data is None:
            return None
        manifest = decode(name, data)
        with draft_folder(into / BLOBS, 0o700) as draft:
            for sha256, size in manifest.blobs().items():
                if _size(into / BLOBS / sha256) != size:
                    _fetch_blob(outbox, draft / sha256, size, name, sync)
                    (draft / sha256).replace(into / BLOBS / sha256)
    except (CorruptCheckpoint, Odd) as error:
        with suppress(Odd):
            if outbox.manifest(name) is None:
                return None
        if isinstance(error, Odd):
            raise CorruptCheckpoint(name, str(error)) from error
        raise
    folder = into / CHECKPOINTS / name
    folder.mkdir(exist_ok=True)
    if sync:
        sync_folder(into / BLOBS)
        sync_folder(folder.parent)
    write_whole(folder / MANIFEST, data, sync=sync)
    return manifest


def _fetch_blob(outbox: Outbox, target: Path, size: int, name: str, sync: bool) -> None:
    """Brings a blob into the draft folder of its checkpoint, and verifies it. Raises CorruptCheckpoint."""
    if not outbox.blob(target.name, target):
        raise CorruptCheckpoint(name, f"blob {target.name[:12]}… is missing")
    if _digest(target, size) != target.name:
        raise CorruptCheckpoint(name, f"blob {target.name[:12]}… is altered")
    if sync:
        with target.open("rb") as file:
            os.fsync(file.fileno())


class FolderOutbox:
    """An outbox that lies in a folder this machine can read. Blobs are copied: who wrote one may have it open
    still, and would change under a second name what was verified."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size = self._on_disk = 0  # of the blobs that were asked for since the last manifest

    def small(self, name: str) -> bytes | None:
        """The names in what may be odd begin with the outbox's own."""
        return files.read(self._folder.parent, f"{self._folder.name}/{name}", WHOLE[name])

    def checkpoints(self) -> Iterable[str]:
        return files.names(self._folder, CHECKPOINTS)

    def manifest(self, name: str) -> bytes | None:
        self._size = self._on_disk = 0
        return files.read(self._folder, manifest_path(name), bounds.MANIFEST_BYTES_MAX)

    def blob(self, sha256: str, target: Path) -> bool:
        name = blob_path(sha256)
        with files.opened(self._folder, name) as file:
            if file is None:
                return False
            found = os.fstat(file.fileno())
            self._size += found.st_size
            self._on_disk += files.on_disk(found)
            if found.st_size > bounds.PART_BYTES_MAX:
                raise Odd(f"{name} is larger than {bounds.size_text(bounds.PART_BYTES_MAX)}")
            if files.is_sparse(self._size, self._on_disk):
                raise Odd("its blobs are holes: hardly a byte of them is on the disk")
            copy_open(file.fileno(), target, found.st_size)  # a link would stay open to the session
        return True

    def growing(self, here: Path, folder: Path) -> Growth:
        del here, folder
        return Growth(self._folder)


def _digest(path: Path, size: int) -> str:
    """The sha256 of a file that may still grow under the hands of who wrote it: of its first bytes only."""
    found, left = hashlib.sha256(), size + 1
    with path.open("rb") as file:
        while left and (chunk := file.read(min(_CHUNK_BYTES, left))):
            found.update(chunk)
            left -= len(chunk)
    return found.hexdigest()


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
