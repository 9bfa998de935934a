"""Brings a session's outbox into a local folder, piece by piece, and lets nothing unverified in.

Serves every platform: each says by an `Outbox` how it reads its own, the rules are here. Must never know
what a platform is, nor what becomes of the checkpoints. Layout: docs/session-folder.md.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from orchestrator.core.checkpoint import PART_BYTES_MAX, CheckpointRef, Manifest, decode
from orchestrator.errors import CorruptCheckpoint
from orchestrator.files import copy_file, sync_folder, write_whole
from orchestrator.platforms.platform import Collected

_CHUNK_BYTES = 1 << 20
# Not there, or a link, a pipe, a folder; or larger than any blob is.
_NO_BLOB = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EFBIG})


class Outbox(Protocol):
    """How one session's outbox is read. The agent may delete superseded checkpoints between any two calls."""

    def checkpoints(self) -> Iterable[str]:
        """Names of the checkpoints there now."""

    def manifest(self, name: str) -> bytes | None:
        """The manifest's bytes, or None where there is none (any more)."""

    def blob(self, sha256: str, target: Path) -> bool:
        """Writes the blob's bytes to the new file `target`; False where there is no such blob."""


def bring(outbox: Outbox, into: Path, *, sync: bool = True) -> Collected:
    """Copies what is new into `into`; returns every checkpoint whose blobs all lie there, verified.

    A checkpoint whose manifest is in `into` already is not brought again, whether or not its blobs still
    are. `sync` False spares the fsyncs where `into` need not survive a loss of power.
    """
    blobs, checkpoints = into / "blobs", into / "checkpoints"
    blobs.mkdir(parents=True, exist_ok=True)
    checkpoints.mkdir(parents=True, exist_ok=True)
    names = {name for name in outbox.checkpoints() if CheckpointRef.parse(name)}
    names |= {entry.name for entry in checkpoints.iterdir() if CheckpointRef.parse(entry.name)}
    manifests, corrupt = [], []
    for name in sorted(names):
        try:
            manifest = _local(into, name) if _brought(into, name) else _fetch(outbox, into, name, sync)
        except CorruptCheckpoint as error:
            corrupt.append((name, error.reason))
        else:
            if manifest is not None:
                manifests.append(manifest)
    return Collected(tuple(manifests), tuple(corrupt))


def _brought(into: Path, name: str) -> bool:
    return (into / "checkpoints" / name / "manifest.json").exists()


def _local(into: Path, name: str) -> Manifest | None:
    """A checkpoint brought earlier, if its blobs have not been taken away since."""
    if not any((into / "blobs").iterdir()):
        return None  # the usual case: spares reading every manifest there ever was
    manifest = decode(name, (into / "checkpoints" / name / "manifest.json").read_bytes())
    there = all(_size(into / "blobs" / sha256) == size for sha256, size in manifest.blobs().items())
    return manifest if there else None


def _fetch(outbox: Outbox, into: Path, name: str, sync: bool) -> Manifest | None:
    """One new checkpoint: its blobs, each verified, then its manifest. None: superseded meanwhile."""
    data = outbox.manifest(name)
    if data is None:
        return None
    manifest = decode(name, data)
    try:
        for sha256, size in manifest.blobs().items():
            if _size(into / "blobs" / sha256) != size:
                _fetch_blob(outbox, into / "blobs" / sha256, name, sync)
    except CorruptCheckpoint:
        if outbox.manifest(name) is None:
            return None
        raise
    folder = into / "checkpoints" / name
    folder.mkdir(exist_ok=True)
    if sync:
        sync_folder(into / "blobs")
        sync_folder(folder.parent)
    write_whole(folder / "manifest.json", data, sync=sync)
    return manifest


def _fetch_blob(outbox: Outbox, target: Path, name: str, sync: bool) -> None:
    temporary = target.parent / f".tmp-{target.name}-{os.getpid()}-{threading.get_ident()}"
    temporary.unlink(missing_ok=True)
    try:
        if not outbox.blob(target.name, temporary):
            raise CorruptCheckpoint(name, f"blob {target.name[:12]}… is missing")
        if digest(temporary) != target.name:
            raise CorruptCheckpoint(name, f"blob {target.name[:12]}… is altered")
        if sync:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


class FolderOutbox:
    """An outbox that lies in a folder this machine can read. Blobs are copied: who wrote one may have it open
    still, and would change under a second name what was verified."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def checkpoints(self) -> Iterable[str]:
        try:
            return [entry.name for entry in (self._folder / "checkpoints").iterdir()]
        except FileNotFoundError:
            return []

    def manifest(self, name: str) -> bytes | None:
        try:
            return (self._folder / "checkpoints" / name / "manifest.json").read_bytes()
        except FileNotFoundError:
            return None

    def blob(self, sha256: str, target: Path) -> bool:
        try:
            copy_file(self._folder / "blobs" / sha256, target, bytes_max=PART_BYTES_MAX)
        except OSError as error:
            if error.errno not in _NO_BLOB:
                raise
            return False
        return True


def bring_files(outbox: Path, into: Path) -> None:
    """Mirrors incarnation, log, progress, status and result; of files that only grow, only the growth.

    The result comes last, as it was written.
    """
    into.mkdir(parents=True, exist_ok=True)
    _replace(outbox / "incarnation", into / "incarnation")
    if (outbox / "log").is_dir():
        (into / "log").mkdir(exist_ok=True)
        for segment in sorted((outbox / "log").glob("*.log")):
            _grow(segment, into / "log" / segment.name)
    _grow(outbox / "progress.jsonl", into / "progress.jsonl")
    _replace(outbox / "status.json", into / "status.json")
    _replace(outbox / "result.json", into / "result.json")


def _grow(source: Path, target: Path) -> None:
    have = _size(target) or 0
    try:
        with source.open("rb") as reader:
            if os.fstat(reader.fileno()).st_size < have:
                have = 0
            reader.seek(have)
            with target.open("r+b" if have else "wb") as writer:
                writer.seek(have)
                shutil.copyfileobj(reader, writer, _CHUNK_BYTES)
    except FileNotFoundError:
        return


def _replace(source: Path, target: Path) -> None:
    try:
        data = source.read_bytes()
    except FileNotFoundError:
        return
    write_whole(target, data, sync=False)


def digest(path: Path) -> str:
    """The sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
