"""Copies one checkpoint of a run into a folder and verifies it.

Only checkpoints that the ledger accepted count, by the sha256 of their manifests; others in the store do not.
Talks only to the home store, so it works while the run runs, and long after its controller has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.client.checkpoints import best, gone, manifest
from orchestrator.client.naming import local_names
from orchestrator.clock import Clock
from orchestrator.core.checkpoint import Accepted, FileEntry, Manifest
from orchestrator.core.run import RunRecord
from orchestrator.errors import CorruptCheckpoint, InputError, NoRoom, NotFound
from orchestrator.files import (
    NO_ROOM,
    draft_folder,
    free_bytes,
    lacks_inodes,
    make_folder,
    room_text,
    shortage,
)
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store
from orchestrator.user import expanded

PROGRESS_SECONDS = 0.2
_HASH_BYTES = 1 << 20

Wanted = int | Literal["latest", "best"]
Progressed = Callable[[int, int], None]


@dataclass(frozen=True)
class Pulled:
    """A checkpoint in `folder`, every byte verified.

    `skipped`: newer ones that failed, with the reason. `renamed`: files that could not keep their names here,
    with the new ones. `authenticated` is False if an older version accepted it without recording a sha256.
    """

    run: str
    checkpoint: str
    step: int
    folder: Path
    skipped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    authenticated: bool = True


def wanted(record: RunRecord, step: Wanted) -> Accepted | None:
    """The requested checkpoint; None stands for the newest intact one. Raises InputError if there is no such
    checkpoint."""
    if step == "latest":
        return None
    if step == "best":
        rule = record.job.checkpoint.keep.best
        if rule is None:
            raise InputError(f"{record.run} keeps no best checkpoint: its job has no checkpoint.keep.best")
        found = best(record)
        if found is None:
            raise InputError(f"no checkpoint of {record.run} has the metric {rule.metric!r} (yet)")
        return found
    there = {c.ref.step: c for c in sorted(record.accepted, key=lambda c: c.ref.generation)}
    if step not in there:
        steps = ", ".join(str(each) for each in sorted(there)) or "none"
        raise InputError(f"{record.run} has no checkpoint at step {step}; it has: {steps}")
    return there[step]


def bring(
    store: Store,
    record: RunRecord,
    wanted: Accepted | None,
    target: Path | None,
    clock: Clock,
    progress: Progressed | None = None,
) -> Pulled:
    """Copies a checkpoint into `target`; with `wanted` None the newest intact one.

    A target that already holds exactly this checkpoint stays as it is. Raises InputError if it holds anything
    else or cannot be created, or if there is no checkpoint; CorruptCheckpoint if the wanted one, or every
    one, fails, with a note for each that failed before.
    """
    ordered = sorted(record.accepted, key=lambda c: (c.ref.step, c.ref.generation, c.name), reverse=True)
    candidates = [wanted] if wanted is not None else ordered
    if not candidates:
        raise InputError(_none(record))
    skipped: list[str] = []
    for candidate in candidates:
        folder = _place(target or Path(f"{record.run}-step-{candidate.ref.step}"))
        try:
            found = _bring_one(store, record.run, candidate, folder, clock, progress)
        except (CorruptCheckpoint, NotFound) as error:
            reason = error.reason if isinstance(error, CorruptCheckpoint) else gone(store)
            if candidate is candidates[-1]:
                raise _nothing_whole(store, record, candidate, reason, skipped) from error
            skipped.append(f"step {candidate.ref.step:,} ({candidate.name}) cannot be used: {reason}")
        else:
            ref, proved = candidate.ref, bool(candidate.sha256)
            return Pulled(record.run, ref.name, ref.step, folder, tuple(skipped), _renamed(found), proved)
    raise AssertionError("the last candidate is returned or raises")


def _none(record: RunRecord) -> str:
    if not record.phase.final:
        return f"{record.run} has no checkpoint yet"
    files = (
        f"; `orchestrator pull {record.run} --outputs` copies the files that it left"
        if record.outputs
        else ""
    )
    return f"{record.run} is {record.phase.value} and left no checkpoint{files}"


def check_target(target: Path) -> None:
    """Raises InputError if no checkpoint of a new run could be copied there: the folder exists, or cannot be
    created. Leaves nothing behind."""
    folder = _place(target)
    if os.path.lexists(folder):
        raise InputError(f"{folder} exists: give a folder that does not exist yet, or move it away")
    near = next(each for each in folder.parents if os.path.lexists(each))
    with _draft(folder, near):
        pass


def _place(target: Path) -> Path:
    try:
        return expanded(target).absolute()
    except ValueError as error:
        raise InputError(f"{target}: {error}") from error


@contextlib.contextmanager
def _draft(folder: Path, parent: Path) -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        with _creatable(folder):
            draft = stack.enter_context(draft_folder(parent, mode=0o700))
        yield draft


@contextlib.contextmanager
def _creatable(folder: Path) -> Iterator[None]:
    """Turns an error into one that names the folder as it was given, and not its draft."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise InputError(f"{folder} cannot be created ({error.strerror}): give another folder") from error


def _nothing_whole(
    store: Store, record: RunRecord, tried: Accepted, reason: str, skipped: list[str]
) -> CorruptCheckpoint:
    """The error, with the steps that have a valid manifest at least."""
    there = (c for c in record.accepted if isinstance(manifest(store, record.run, c), Manifest))
    steps = ", ".join(str(step) for step in sorted({c.ref.step for c in there} - {tried.ref.step}))
    error = CorruptCheckpoint(tried.name, f"{reason}; other steps in the store: {steps or 'none'}")
    for each in skipped:
        error.add_note(each)
    return error


def _bring_one(
    store: Store, run: str, wanted: Accepted, folder: Path, clock: Clock, progress: Progressed | None
) -> Manifest:
    """Copies one checkpoint, unless the folder holds it already; returns its manifest."""
    if os.path.lexists(folder):
        found = stored.read(store, run, wanted.name, wanted.sha256)
        if _is_same(folder, _here(found).files):
            return found
        raise InputError(f"{folder} exists and holds something else; give another folder, or move it away")
    with _creatable(folder):
        make_folder(folder.parent)
    needed = _needed([stored.read(store, run, wanted.name, wanted.sha256)])
    with _roomy(folder, needed), _draft(folder, folder.parent) as parts, \
            _told(parts, wanted.size, clock, progress):  # fmt: skip
        found = stored.fetch(store, run, wanted.name, parts, wanted.sha256)
        stored.restore(parts, [_here(found)], folder, consume=True)
    return found


def _needed(manifests: Sequence[Manifest]) -> int:
    """The bytes that a copy of these takes at most: the blobs, and besides them the parts of the file that is
    being put together."""
    parts = [part for each in manifests for entry in each.files for part in entry.parts]
    blobs = {part.sha256: part.size for part in parts}
    return sum(part.size for part in parts) + max(blobs.values(), default=0)


@contextlib.contextmanager
def _roomy(folder: Path, needed: int) -> Iterator[None]:
    """Raises NoRoom, with the disk and the need, before anything is copied and if the disk fills up
    meanwhile."""
    free = free_bytes(folder.parent)
    if free is not None and free < needed:
        raise _no_room(folder, needed)
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise _no_room(folder, needed) from error


def _no_room(folder: Path, needed: int) -> NoRoom:
    where, do = f"on {room_text(folder.parent, needed)}", "free some space"
    if lacks_inodes(folder.parent):
        what, do = shortage(folder.parent)
        where = f"there: {what}"
    return NoRoom(
        f"{folder} does not fit {where}, and nothing was copied: {do} there, or give a folder on another "
        "disk with -o"
    )


def bring_all(
    store: Store,
    run: str,
    manifests: Sequence[Manifest],
    target: Path,
    clock: Clock,
    progress: Progressed | None,
) -> Path:
    """Copies the files of several manifests, of which no two share a path, into one folder, and returns it.

    A folder that already holds exactly these stays as it is. Raises InputError if it holds anything else or
    cannot be created, and CorruptCheckpoint if a blob is missing or damaged.
    """
    folder, files = _place(target), [entry for each in manifests for entry in each.files]
    if os.path.lexists(folder):
        if _is_same(folder, files):
            return folder
        raise InputError(f"{folder} exists and holds something else; give another folder, or move it away")
    with _creatable(folder):
        make_folder(folder.parent)
    size = sum(each.size for each in manifests)
    needed = _needed(manifests)
    with _roomy(folder, needed), _draft(folder, folder.parent) as parts, \
            _told(parts, size, clock, progress):  # fmt: skip
        blobs = parts / "blobs"
        make_folder(blobs)
        for manifest in manifests:
            for sha256 in manifest.blobs():
                if not (blobs / sha256).exists():
                    stored.blob(store, run, manifest.ref, sha256, blobs / sha256)
        stored.restore(parts, manifests, folder, consume=True)
    return folder


def _here(manifest: Manifest) -> Manifest:
    """The manifest with its files' names on this machine."""
    names = local_names(entry.path for entry in manifest.files)
    return replace(manifest, files=tuple(replace(each, path=names[each.path]) for each in manifest.files))


def _renamed(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    names = local_names(entry.path for entry in manifest.files)
    return tuple((given, name) for given, name in names.items() if given != name)


def _is_same(folder: Path, files: Sequence[FileEntry]) -> bool:
    """Whether the folder holds exactly these files."""
    if not folder.is_dir():
        return False
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    if set(found) != {entry.path for entry in files}:
        return False
    return all(_holds(found[entry.path], entry) for entry in files)


def _holds(path: Path, entry: FileEntry) -> bool:
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    with path.open("rb") as stream:
        for part in entry.parts:
            digest, left = hashlib.sha256(), part.size
            while left and (data := stream.read(min(left, _HASH_BYTES))):
                digest.update(data)
                left -= len(data)
            if digest.hexdigest() != part.sha256:
                return False
    return True


@contextlib.contextmanager
def _told(parts: Path, size: int, clock: Clock, progress: Progressed | None) -> Iterator[None]:
    """Calls `progress` every PROGRESS_SECONDS, from its own thread, with the bytes copied so far."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def look() -> None:
        most = 0  # blobs go while files are put together
        while not clock.wait(over, PROGRESS_SECONDS):
            most = max(most, min(_bytes_in(parts / "blobs"), size))
            progress(most, size)

    progress(0, size)
    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    progress(size, size)


def _bytes_in(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(entry.stat().st_size for entry in folder.iterdir())
    return 0
