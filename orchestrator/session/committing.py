"""The agent's side of the outbox: commits checkpoints, manifest last, and removes superseded ones.

A commit can fail at any point (for example on a full disk) and be tried again. A checkpoint exists only once
its manifest does; earlier checkpoints stay. What does not fit on the disk, or is almost all holes, is refused
before any of it is read. Knows nothing about the training's process.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import IO

from orchestrator import files
from orchestrator.clock import Clock
from orchestrator.core import bounds
from orchestrator.core.checkpoint import (
    DETERMINISTIC,
    KEEP_OPEN_MIN,
    Accepted,
    CheckpointRef,
    FileEntry,
    Manifest,
    Part,
    safe_path,
    superseded_while_open,
)
from orchestrator.core.mask import Mask
from orchestrator.core.order import Order
from orchestrator.files import Odd, draft_file, sync_folder, write_whole
from orchestrator.session.layout import BLOBS, CHECKPOINTS, MANIFEST, Layout

_SAVED = re.compile(r"step-(\d{1,19})")
_CHUNK = 1024 * 1024
_FILES = 4  # a manifest, its folder and their drafts
_PIECE_BYTES_MIN = 4 * _CHUNK


class Unfit(Exception):
    """What the command saved can never be a checkpoint. Trying again does not help."""


class Hollow(Unfit):
    """It is almost all holes."""


class Outbox:
    """The checkpoints of one incarnation, oldest first in `manifests`."""

    def __init__(
        self,
        folder: Layout,
        order: Order,
        incarnation: str,
        environment: Mapping[str, str],
        clock: Clock,
        part_bytes: int,
        mask: Mask | None = None,
    ) -> None:
        self._folder = folder
        self._order = order
        self._incarnation = incarnation
        self._environment = environment
        self._clock = clock
        self._part_bytes = part_bytes
        self._mask = mask or Mask()
        self._blobs = folder.outbox / BLOBS
        self.manifests: tuple[Manifest, ...] = ()

    def commit(self, saved: Path, *, last: bool = False) -> Manifest | None:
        """Moves a saved `step-<n>` folder into the outbox and applies retention.

        None if a checkpoint of this step was committed before (it is immutable), or if newer ones supersede
        it already: then it is dropped. Raises Unfit, or OSError, after which the same call may succeed later:
        Lack if it does not fit beside the reserve, and then nothing of it was read. `last`: the command has
        ended, and what does not fit now is lost. Then such a save is moved piece by piece.
        """
        step = step_of(saved)
        if step is None:
            raise Unfit(f"{saved.name} was removed before it was committed")
        if bounds.step(step) is None:
            raise Unfit(f"the step of {saved.name} is larger than 2⁶³ − 1")
        ref = CheckpointRef(step, self._order.generation, self._incarnation)
        if any(manifest.ref == ref for manifest in self.manifests) or self.supersede(saved):
            remove(saved)
            return None
        try:
            stored = self._stored(saved, last=last)
            manifest = self._manifest(ref, stored, _metrics(saved, self._mask), _said(saved))
            self._put(manifest)
        except BaseException:
            self._drop_unreferenced()  # links into `saved` would keep its disk space in use
            raise
        self.manifests = tuple(sorted((*self.manifests, manifest), key=lambda m: m.ref.step))
        remove(saved)
        self._retain()
        return manifest

    def supersede(self, saved: Path, newer: Sequence[Path] = ()) -> bool:
        """Whether retention would remove this save at once, because of what was committed and of these."""
        if not self._may_go(saved, len(newer)):  # so that most answers cost no look at a file
            return False
        found = [self._as_committed(each) for each in (saved, *newer)]
        known = [*self._committed(), *(each for each in found if each is not None)]
        return found[0] is not None and found[0] in self._superseded(known)

    def _may_go(self, saved: Path, newer: int) -> bool:
        """Whether there are as many newer ones as stay in any case."""
        step, at = step_of(saved), max(KEEP_OPEN_MIN, self._order.keep.last) - newer
        if at <= 0 or step is None:
            return True
        return len(self.manifests) >= at and self.manifests[-at].ref.step > step

    def _as_committed(self, saved: Path) -> Accepted | None:
        step = bounds.step(step_of(saved))
        if step is None:
            return None
        ref = CheckpointRef(step, self._order.generation, self._incarnation)
        return Accepted(ref, 0, _metrics(saved, self._mask))

    def keep(
        self, step: int, found: Iterable[tuple[Path, str, str]], goes_on: Callable[[], bool] = lambda: True
    ) -> tuple[Manifest | None, tuple[str, ...]]:
        """Stores files as the session's outputs: (folder, name in it, path for people). Call it once, after
        the last commit. It is cut short when `goes_on` says so.

        Returns the manifest (None: there is nothing to keep), and why some files are not in it. Raises
        OSError, after which nothing is kept.
        """
        ref = CheckpointRef(step, self._order.generation, self._incarnation, outputs=True)
        entries: list[FileEntry] = []
        left: list[str] = []
        try:
            for root, name, path in found:
                if not goes_on():
                    left.append(f"{path!a} and what comes after it: there was no time left")
                    break
                try:
                    if not is_fit_name(path):
                        raise Unfit("its name cannot be stored")
                    self._judge(root, [name])
                    entries.append(replace(self._store(root, name), path=path))
                except Unfit as error:
                    left.append(f"{path!a}: {error}")
                except (PermissionError, FileNotFoundError, files.Lack) as error:  # of this file alone
                    left.append(f"{path!a}: {error.strerror}")
                except OSError as error:
                    if error.errno not in files.NO_ROOM:
                        raise
                    left.append(f"{path!a} and what comes after it: {error.strerror}")
                    break
            if not entries:
                return None, tuple(left)
            manifest = self._manifest(ref, tuple(sorted(entries, key=lambda each: each.path)), {}, {})
            self._put(manifest)
        except BaseException:
            self._drop_unreferenced()
            raise
        self.manifests = (*self.manifests, manifest)
        return manifest, tuple(left)

    def _put(self, manifest: Manifest) -> None:
        """The manifest comes last: its blobs are durable by now."""
        encoded = _within_bounds(manifest)
        target = self._folder.outbox / CHECKPOINTS / manifest.name
        files.make_folder(target, parents=False)
        sync_folder(self._blobs)
        write_whole(target / MANIFEST, encoded)
        sync_folder(target.parent)

    def _stored(self, saved: Path, *, last: bool) -> tuple[FileEntry, ...]:
        names = list(_contents(saved))
        if not names:
            raise Unfit(f"{saved.name} is empty")
        try:
            self._judge(saved, names)
        except files.Lack:
            free = files.free_bytes(self._blobs)
            if not (last and _is_alone(saved, names)) or (free is not None and free < 2 * _PIECE_BYTES_MIN):
                raise
            return self._moved(saved, names)
        return tuple(self._store(saved, name) for name in names)

    def _judge(self, root: Path, names: Iterable[str]) -> None:
        """Raises Unfit, Hollow or Lack before a byte of these files is read.

        What is linked takes no room here. But its holes do where it goes next, and so they count.
        """
        found = {name: (root / name).lstat() for name in names}
        size = sum(each.st_size for each in found.values())
        if size > bounds.CHECKPOINT_BYTES_MAX:
            raise Unfit(f"the checkpoint is larger than {bounds.size_text(bounds.CHECKPOINT_BYTES_MAX)}")
        if hollow := files.holes(root, found):
            raise Hollow(hollow)
        device, part = self._blobs.stat().st_dev, self._part_bytes
        there = parts = 0
        for each in found.values():
            if each.st_size <= part and each.st_dev == device:
                there += min(each.st_size, files.on_disk(each))
            else:
                parts += -(-each.st_size // part)
        files.check_room(self._blobs, size - there, parts + _FILES)

    def _moved(self, saved: Path, names: Iterable[str]) -> tuple[FileEntry, ...]:
        """Like `_store` for each, but frees what it has stored: only one piece at a time lies there twice."""
        try:
            return tuple(self._move(saved, name) for name in names)
        except BaseException:
            remove(saved)  # it is no longer whole, and nobody may take it for that
            raise

    def _move(self, saved: Path, name: str) -> FileEntry:
        with _opened(saved, name) as file:
            at = size = os.fstat(file.fileno()).st_size
            parts: list[Part] = []
            while at:
                free = files.free_bytes(self._blobs)
                piece = min(self._part_bytes, at, max(_PIECE_BYTES_MIN, at if free is None else free // 2))
                file.seek(at - piece)
                parts.append(self._slice(file, piece))
                at -= piece
                os.truncate(f"/proc/self/fd/{file.fileno()}", at)
        return FileEntry(name, size, tuple(reversed(parts)))

    def _manifest(
        self,
        ref: CheckpointRef,
        stored: tuple[FileEntry, ...],
        metrics: Mapping[str, float],
        said: Mapping[str, str],
    ) -> Manifest:
        return Manifest(
            run=self._order.run,
            ref=ref,
            global_batch=self._order.global_batch,
            files=stored,
            parent=self._order.resume,
            code=self._order.bundle,
            environment={**self._environment, **said},
            metrics=metrics,
            created_at=self._clock.now(),
        )

    def _store(self, saved: Path, name: str) -> FileEntry:
        with _opened(saved, name) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= self._part_bytes:
                digest = _digest(file, size)
                self._link(file, digest)
                return FileEntry(name, size, (Part(digest, size),) if size else ())
            sizes = [min(self._part_bytes, size - at) for at in range(0, size, self._part_bytes)]
            parts = []
            for part in sizes:
                files.check_room(self._blobs, part)  # others write there, too
                parts.append(self._slice(file, part))
            if file.read(1):
                raise Unfit("a file of the checkpoint grew while it was committed")
            return FileEntry(name, size, tuple(parts))

    def _link(self, file: FileIO, digest: str) -> None:
        """Makes the blob a hard link: nothing is copied, and a failed commit leaves the save complete."""
        if os.fstat(file.fileno()).st_size == 0 or (self._blobs / digest).exists():
            return
        os.fsync(file.fileno())
        try:
            linked = files.link(file, self._blobs / digest)
        except FileExistsError:
            return
        if not linked:
            file.seek(0)
            size = os.fstat(file.fileno()).st_size
            files.check_room(self._blobs, size)
            self._slice(file, size)

    def _slice(self, file: IO[bytes], size: int) -> Part:
        """Copies the next `size` bytes into a blob."""
        digest, left = hashlib.sha256(), size
        with draft_file(self._blobs) as draft:
            while left and (chunk := file.read(min(_CHUNK, left))):
                digest.update(chunk)
                draft.write(chunk)
                left -= len(chunk)
            if left:
                raise Unfit("a file of the checkpoint shrank while it was committed")
            draft.sync()  # its name is synced later with the others, before the manifest
            draft.replace(self._blobs / digest.hexdigest(), sync=False)
        return Part(digest.hexdigest(), size)

    def _retain(self) -> None:
        """Removes superseded checkpoints: manifests first, then the blobs that no manifest names."""
        gone = {c.name for c in self._superseded(self._committed())}
        if not gone:
            return
        self.manifests = tuple(m for m in self.manifests if m.name not in gone)
        for name in gone:
            folder = self._folder.outbox / CHECKPOINTS / name
            with suppress(OSError):
                files.remove_file(folder / MANIFEST)
                files.remove_empty(folder)
        self._drop_unreferenced()

    def _committed(self) -> list[Accepted]:
        return [Accepted(each.ref, each.size, each.metrics) for each in self.manifests]

    def _superseded(self, known: Iterable[Accepted]) -> tuple[Accepted, ...]:
        keep = self._order.keep
        best = None if keep.best is None else (keep.best.metric, keep.best.mode)
        return superseded_while_open(known, last=keep.last, best=best, pinned=frozenset())

    def _drop_unreferenced(self) -> None:
        named = {sha256 for manifest in self.manifests for sha256 in manifest.blobs()}
        for blob in self._blobs.iterdir():
            if blob.name not in named:
                with suppress(OSError):
                    files.remove_file(blob)


def step_of(saved: Path) -> int | None:
    """The step of a folder that the command has renamed into place; None for any other."""
    match = _SAVED.fullmatch(saved.name)
    return int(match[1]) if match and saved.is_dir() and not saved.is_symlink() else None


def saved_in(checkpoints: Path) -> dict[tuple[int, int], Path]:
    """The saved folders by step and inode. A folder of the same step with another inode is another save."""
    found = {}
    with suppress(FileNotFoundError):  # the command may remove what it saved, even this folder
        for path in checkpoints.iterdir():
            step = step_of(path)
            if step is not None:
                with suppress(FileNotFoundError):
                    found[step, path.stat().st_ino] = path
    return found


def remove(saved: Path) -> None:
    """Renames a saved folder away before it is removed, so that the command can save this step again."""
    aside = saved.with_name(f".tmp-gone-{saved.name}")
    with suppress(OSError):
        files.rename(saved, aside)
    with suppress(OSError):
        files.remove_tree(aside)


@contextmanager
def _opened(saved: Path, name: str) -> Iterator[FileIO]:
    try:
        with files.opened(saved, name) as file:
            if file is None:
                raise Unfit(f"{name} of {saved.name} was removed before it was committed")
            yield file
    except Odd as odd:
        raise Unfit(f"{saved.name} cannot be committed: {odd}") from odd


def _is_alone(saved: Path, names: Iterable[str]) -> bool:
    """Whether no file of it has another name: the command's own file must not be cut short."""
    return all((saved / name).lstat().st_nlink == 1 for name in names)


def _digest(file: FileIO, size: int) -> str:
    """The sha256 of a file that must have this size and keep it."""
    digest, left = hashlib.sha256(), size
    while left and (chunk := file.read(min(_CHUNK, left))):
        digest.update(chunk)
        left -= len(chunk)
    if left or file.read(1):
        raise Unfit("a file of the checkpoint changed while it was committed")
    return digest.hexdigest()


def _within_bounds(manifest: Manifest) -> bytes:
    """The manifest's bytes. Raises Unfit if the checkpoint is larger than a reader accepts."""
    if manifest.size > bounds.CHECKPOINT_BYTES_MAX:
        raise Unfit(f"the checkpoint is larger than {bounds.size_text(bounds.CHECKPOINT_BYTES_MAX)}")
    data = manifest.encode()
    if len(data) > bounds.MANIFEST_BYTES_MAX:
        raise Unfit(f"the checkpoint's manifest is larger than {bounds.size_text(bounds.MANIFEST_BYTES_MAX)}")
    return data


def _contents(saved: Path) -> Iterator[str]:
    """The relative path of every file below the folder, in order."""
    try:
        found = list(islice(saved.rglob("*"), 2 * bounds.FILES_MAX + 1))
    except (RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            raise
        raise Unfit(f"the folders of {saved.name} are nested too deeply") from None
    if len(found) > 2 * bounds.FILES_MAX:
        raise Unfit(f"{saved.name} has more than {bounds.FILES_MAX:,} files")
    for path in sorted(found):
        name = path.relative_to(saved).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Unfit(f"{saved.name} contains {name!r}, which is neither a file nor a folder")
        if path.is_file():
            if not is_fit_name(name):
                raise Unfit(f"{saved.name} contains a file with an unusable name: {name[:200]!r}")
            yield name


def is_fit_name(name: str) -> bool:
    """Whether a manifest can hold this path."""
    return safe_path(name) and _is_text(name) and len(name.encode()) <= bounds.PATH_BYTES_MAX


def _is_text(name: str) -> bool:
    """Whether a manifest, which is UTF-8, can contain it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _said(saved: Path) -> dict[str, str]:
    """What only the training knows of its environment: environment.json may say `{"deterministic": true}`."""
    try:
        document = json.loads(files.read(saved, "environment.json", bounds.ENVIRONMENT_BYTES_MAX) or b"")
    except (OSError, Odd, ValueError, RecursionError):
        return {}
    said = isinstance(document, dict) and document.get(DETERMINISTIC) is True
    return {DETERMINISTIC: "true"} if said else {}


def _metrics(saved: Path, mask: Mask) -> dict[str, float]:
    """The finite numbers in metrics.json, by masked name. Ignores anything else in it."""
    try:
        document = json.loads(files.read(saved, "metrics.json", bounds.METRICS_BYTES_MAX) or b"")
        pairs = document.items()
    except (OSError, Odd, ValueError, AttributeError, RecursionError):
        return {}
    finite = (
        (mask.text(name), float(value))
        for name, value in pairs
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        and bounds.text(name, bounds.METRIC_NAME_BYTES_MAX) == name
    )  # fmt: skip
    return dict(islice(finite, bounds.METRICS_MAX))
