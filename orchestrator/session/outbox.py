"""The outbox protocol, and collecting: copies an outbox into a local folder, a page at a time.

Each place where an outbox can be has its own `Outbox`. The rules are here, and let nothing unverified in.
Must never know what a platform is, nor what happens to the checkpoints.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from orchestrator import files
from orchestrator.core import bounds
from orchestrator.core.checkpoint import CheckpointRef, Manifest, decode
from orchestrator.errors import CorruptCheckpoint, Transient
from orchestrator.files import (
    NO_ROOM,
    Odd,
    check_room,
    copy_open,
    draft_folder,
    make_folder,
    read_small,
    sync_folder,
    write_whole,
)
from orchestrator.session.layout import BLOBS, CHECKPOINTS, MANIFEST, WHOLE, blob_path, manifest_path
from orchestrator.session.mirror import mirror

REFUSED = "refused"  # marks an incomplete checkpoint in its folder here; one byte for each failed try
_CHUNK_BYTES = 1 << 20


class Outbox(Protocol):
    """How one session's outbox is read. The agent may delete superseded checkpoints between any two calls.

    Every verb blocks. It may raise Odd if it finds the wrong kind of thing, and the errors of the platform or
    store where the outbox is.
    """

    def small(self, name: str) -> bytes | None:
        """One of the files in `layout.WHOLE`; None if it is missing or cannot be read yet."""

    def checkpoints(self) -> Iterable[str]:
        """Names of the checkpoints there now."""

    def manifest(self, name: str) -> bytes | None:
        """The manifest's bytes, or None if it does not exist (any more)."""

    def blob(self, sha256: str, target: Path) -> bool:
        """Writes the blob's bytes to the new file `target`; False if there is no such blob."""

    def growing(self, here: Path, folder: Path) -> Growth:
        """Makes log and progress readable on this machine, if needed by copying them to `folder`, which is
        empty and temporary. Of the segments that `here` already has, only the last is needed again."""


@dataclass(frozen=True)
class Growth:
    """Where log and progress can be read. `notes`: what was left out. `more`: there is more to collect."""

    root: Path
    notes: tuple[str, ...] = ()
    more: bool = False


@dataclass(frozen=True)
class Collected:
    """The result of one collect.

    `manifests`: those whose blobs are all here and verified, oldest first. `corrupt`: names of checkpoints
    that failed, each with its reason. `notes`: what was not copied because it was too large or malformed.
    `more`: there is more to collect. `lack`: why the rest does not fit on this machine's disk.
    """

    manifests: tuple[Manifest, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    more: bool = False
    lack: OSError | None = None


def collect(
    outbox: Outbox,
    into: Path,
    known: Set[str] = frozenset(),
    *,
    last: bool = False,
    sync: bool = True,
    verify: bool = True,
    copies: int = 1,
) -> Collected:
    """Copies checkpoints, then log, progress and status, and the result last. All of it is bounded and
    incremental. `known`, `last`, `sync`, `verify` and `copies` as in `bring`."""
    found = bring(outbox, into, known, last=last, sync=sync, verify=verify, copies=copies)
    told: tuple[str, ...] = ()
    more, lack = False, found.lack
    try:
        told, more = listen(outbox, into)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        lack = lack or error
    notes = tuple(dict.fromkeys((*found.notes, *told)))
    return Collected(found.manifests, found.corrupt, notes, found.more or more, lack)


def listen(outbox: Outbox, into: Path) -> tuple[tuple[str, ...], bool]:
    """Copies what an outbox says: log, progress and status, and the result last. Returns notes, and whether
    there is more to copy."""
    make_folder(into)
    with draft_folder(into, 0o700) as folder:
        try:
            growth = outbox.growing(into, folder)
        except Odd as odd:
            growth = Growth(folder, (f"{odd}: neither log nor progress was read",))
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
    return (*notes, *grown), growth.more or more


def bring(
    outbox: Outbox,
    into: Path,
    known: Set[str] = frozenset(),
    *,
    last: bool = False,
    sync: bool = True,
    verify: bool = True,
    copies: int = 1,
) -> Collected:
    """Copies a page of new checkpoints to `into`. Returns every checkpoint whose blobs are all there and
    verified.

    A checkpoint that is `known`, or whose manifest is already in `into`, is not copied again and costs no
    request, even if its blobs are gone. New checkpoints come first, oldest first, then those that failed
    before. Those are tried only a few times, and twice more in the `last` look. `more` says that some were
    not tried yet; in the last look also those that failed before. `sync=False` skips the fsyncs if `into`
    does not have to survive a power loss. `verify=False` only compares the sizes of blobs: for a caller that
    passes them to a store, which verifies what it is sent. `copies`: how often what is copied will lie on
    this disk for a while (0: they are links). What does not fit waits, and delays no other.
    """
    blobs, checkpoints = into / BLOBS, into / CHECKPOINTS
    make_folder(blobs)
    make_folder(checkpoints)
    try:
        there = list(outbox.checkpoints())
    except Odd as odd:
        return Collected(notes=(f"no checkpoint was copied: {odd}",))
    listed = {name for name in there if CheckpointRef.parse(name)}
    brought, refused = found_here(checkpoints)
    seen = brought | refused.keys() | (listed & known)
    fresh, notes = within_limit(listed - seen, len(seen))
    again = [
        name
        for name in sorted((listed & refused.keys()) - known, key=lambda name: (refused[name].at, name))
        if refused[name].times < bounds.CHECKPOINT_TRIES_MAX + (bounds.LAST_TRIES_MAX if last else 0)
    ]
    manifests, corrupt = _brought_before(into, brought)
    waiting = (*fresh, *again)
    lack: OSError | None = None
    size, looked, taken = 0, 0, 0
    for name in waiting:
        if taken >= bounds.COLLECT_CHECKPOINTS_MAX or size >= bounds.COLLECT_CHECKPOINT_BYTES_MAX:
            break
        looked += 1
        try:
            manifest = _fetch(outbox, into, name, sync, verify, copies)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            lack = error
            continue
        except CorruptCheckpoint as error:
            refuse(checkpoints / name)
            corrupt.append((name, error.reason))
        else:
            if manifest is None:
                continue  # a folder without a manifest must not keep the others waiting
            manifests.append(manifest)
            size += manifest.size
        taken += 1
    cut = files.cut_short(there, "outbox/checkpoints")
    ordered = tuple(sorted(manifests, key=lambda manifest: manifest.name))
    more = looked < len(waiting if last else fresh)
    return Collected(ordered, tuple(corrupt), (*cut, *notes), more, lack)


def within_limit(names: set[str], known: int) -> tuple[list[str], tuple[str, ...]]:
    """The new checkpoints to copy, oldest first; only the newest if the session has too many."""
    fresh, room = sorted(names), max(0, bounds.SESSION_CHECKPOINTS_MAX - known)
    if len(fresh) <= room:
        return fresh, ()
    note = f"it has more than {bounds.SESSION_CHECKPOINTS_MAX:,} checkpoints: only the newest is copied"
    return fresh[:room] or fresh[-1:], (note,)


class Refused(NamedTuple):
    """When a checkpoint was last found incomplete, and how often."""

    at: int
    times: int


def found_here(checkpoints: Path) -> tuple[set[str], dict[str, Refused]]:
    """The checkpoints here: the copied ones, and the refused ones."""
    brought, refused = set(), {}
    for entry in checkpoints.iterdir():
        if CheckpointRef.parse(entry.name) is None:
            continue
        if (entry / MANIFEST).exists():
            brought.add(entry.name)
            continue
        with suppress(FileNotFoundError):
            mark = (entry / REFUSED).stat()
            refused[entry.name] = Refused(mark.st_mtime_ns, mark.st_size)
    return brought, refused


def refuse(folder: Path) -> None:
    """Marks the checkpoint in this folder to be copied again, after all new ones, so that one that is never
    complete does not block the others."""
    make_folder(folder, parents=False)
    files.append(folder / REFUSED, b".")
    files.remove_tree(folder / MANIFEST)


def _brought_before(into: Path, names: set[str]) -> tuple[list[Manifest], list[tuple[str, str]]]:
    """Earlier checkpoints whose blobs are still here, and those whose manifest is damaged."""
    manifests: list[Manifest] = []
    corrupt: list[tuple[str, str]] = []
    if not any((into / BLOBS).iterdir()):
        return manifests, corrupt  # the usual case: no need to read every manifest
    for name in sorted(names):
        try:
            manifest = decode(name, files.read_plain(into / manifest_path(name)))
        except CorruptCheckpoint as error:
            corrupt.append((name, error.reason))
            continue
        if all(_size(into / BLOBS / sha256) == size for sha256, size in manifest.blobs().items()):
            manifests.append(manifest)
    return manifests, corrupt


def _fetch(outbox: Outbox, into: Path, name: str, sync: bool, verify: bool, copies: int) -> Manifest | None:
    """Copies one new checkpoint: its blobs, then its manifest. None if it was superseded. Raises Lack before
    it copies anything that would not fit."""
    try:
        data = outbox.manifest(name)
        if data is None:
            return None
        manifest = decode(name, data)
        missing = [size for sha256, size in manifest.blobs().items() if _size(into / BLOBS / sha256) != size]
        check_room(into, copies * sum(missing), copies * len(missing) + 2)
        with draft_folder(into / BLOBS, 0o700) as draft:
            for sha256, size in manifest.blobs().items():
                if _size(into / BLOBS / sha256) != size:
                    _fetch_blob(outbox, draft / sha256, size, name, verify)
                    if sync:
                        _sync(draft / sha256)
                    files.rename(draft / sha256, into / BLOBS / sha256)
    except (CorruptCheckpoint, Odd) as error:
        with suppress(Odd):
            if outbox.manifest(name) is None:
                return None
        if isinstance(error, Odd):
            raise CorruptCheckpoint(name, str(error)) from error
        raise
    folder = into / CHECKPOINTS / name
    make_folder(folder, parents=False)
    if sync:
        sync_folder(into / BLOBS)
        sync_folder(folder.parent)
    write_whole(folder / MANIFEST, data, sync=sync)
    return manifest


def _fetch_blob(outbox: Outbox, target: Path, size: int, name: str, verify: bool) -> None:
    """Copies a blob to the draft folder of its checkpoint. Raises CorruptCheckpoint if it is not the right
    one, as far as it is verified."""
    if not outbox.blob(target.name, target):
        raise CorruptCheckpoint(name, f"blob {target.name[:12]}… is missing")
    if _size(target) != size if not verify else _digest(target, size) != target.name:
        raise CorruptCheckpoint(name, f"blob {target.name[:12]}… is altered")


class FolderOutbox:
    """An outbox in a folder that this machine can read. Blobs are copied: their writer may still have them
    open and could change them after they were verified. `links`: they are hard links if possible, which cost
    nothing, for a caller that verifies what it reads when it reads it."""

    def __init__(self, folder: Path, *, links: bool = False) -> None:
        self._folder = folder
        self._links = links
        self._size = self._on_disk = 0  # of the blobs requested since the last manifest

    def small(self, name: str) -> bytes | None:
        """Names in errors begin with the name of the outbox."""
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
                raise Odd("its blobs are sparse files with almost no data")
            if not (self._links and files.link(file, target)):
                copy_open(file.fileno(), target, found.st_size)
        return True

    def growing(self, here: Path, folder: Path) -> Growth:
        del here, folder
        return Growth(self._folder)


class Forgone:
    """Another outbox, of which the user gave up what does not come: a blob that may come later is missing."""

    def __init__(self, inner: Outbox) -> None:
        self._inner = inner
        self.small, self.checkpoints = inner.small, inner.checkpoints
        self.manifest, self.growing = inner.manifest, inner.growing

    def blob(self, sha256: str, target: Path) -> bool:
        try:
            return self._inner.blob(sha256, target)
        except Transient:
            files.remove_tree(target)
            return False


def _digest(path: Path, size: int) -> str:
    """The sha256 of a file's first bytes. The file may still grow while its writer has it open."""
    found, left = hashlib.sha256(), size + 1
    with files.open_plain(path) as file:
        while left and (chunk := file.read(min(_CHUNK_BYTES, left))):
            found.update(chunk)
            left -= len(chunk)
    return found.hexdigest()


def _sync(path: Path) -> None:
    with files.open_plain(path) as file:
        os.fsync(file.fileno())


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
