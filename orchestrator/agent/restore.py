"""Prepares the command's files before it starts: unpacks the source, lays out the checkpoint to resume from.

Trusts nothing that was staged: every byte is checked against the order and the manifest. Decides nothing
about how the command runs.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import zlib
from pathlib import Path

from orchestrator.agent.folder import Folder
from orchestrator.core import bounds, checkpoint
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest
from orchestrator.core.order import Order
from orchestrator.core.save_pattern import SavePattern
from orchestrator.errors import CorruptCheckpoint, InputError
from orchestrator.files import (
    check_room,
    make_folder,
    open_own,
    open_plain,
    place,
    read_own,
    remove_file,
    remove_tree,
    rename,
    written,
)
from orchestrator.session.layout import BLOBS, manifest_path

_CHUNK = 1024 * 1024
_DAMAGED = (  # the bundle is damaged; other errors, such as a full disk, have another cause
    FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, gzip.BadGzipFile, EOFError,
    zlib.error, tarfile.TarError,
)  # fmt: skip


class CorruptBundle(Exception):
    """The staged source is damaged, is not the one in the order, or would write outside its folder."""


def unpack(folder: Folder, order: Order) -> None:
    """Unpacks the bundle into work/source. Raises CorruptBundle."""
    try:
        with open_plain(folder.bundle) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != order.bundle:
            raise CorruptBundle(
                f"the staged bundle is {found[:12]}…, but the order names {order.bundle[:12]}…"
            )
        with tarfile.open(folder.bundle, "r:gz") as archive:
            _unpack(archive, folder.source)
    except _DAMAGED as error:
        raise CorruptBundle(f"the staged bundle cannot be unpacked: {error}") from error


def _unpack(archive: tarfile.TarFile, target: Path) -> None:
    """Unpacks by hand, because `filter="data"` came with Python 3.11.4 and Debian 12 has 3.11.2. Creates the
    links last, so that nothing is ever written through one."""
    links = []
    for member in archive:
        name = member.name.removeprefix("./").rstrip("/")
        if member.isdir() and name in ("", "."):
            continue
        if not checkpoint.safe_path(name):
            raise CorruptBundle(f"the bundle holds {member.name!r}, which is outside its folder")
        path = target / name
        if member.isdir():
            make_folder(path)
        elif member.isreg():
            make_folder(path.parent)
            content = archive.extractfile(member)
            assert content is not None
            with content, written(path) as file:
                shutil.copyfileobj(content, file, _CHUNK)
                os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)
        elif member.issym():
            links.append((path, member.linkname))
        else:
            raise CorruptBundle(
                f"the bundle holds {member.name!r}, which is not a file, folder or symbolic link"
            )
    for path, link in links:
        make_folder(path.parent)
        with place(path) as (there, name):
            os.symlink(link, name, dir_fd=there)
    root = target.resolve()
    for path, link in links:
        if not path.resolve().is_relative_to(root):
            raise CorruptBundle(f"the bundle's link {path.name!r} points outside, to {link!r}")


def lay_out_resume(folder: Folder, order: Order) -> Path | None:
    """Copies the staged checkpoint to work/resume/step-<n>, and verifies it in the same pass.

    Returns the folder, or None where the order does not resume. Raises CorruptCheckpoint, and Lack if it
    does not fit.
    """
    if order.resume is None:
        return None
    manifest = _staged_manifest(folder, order.resume, order)
    target = folder.work / "resume" / f"step-{manifest.ref.step}"
    check_room(folder.work, manifest.size, len(manifest.files))
    for entry in manifest.files:
        _assemble(folder.staged / BLOBS, manifest, entry, target / entry.path)
    return target


def put_back(folder: Folder, order: Order, laid_out: Path) -> Path:
    """Moves what the script had saved by itself back to where it was, and returns its path there. A
    checkpoint that the contract's folder held stays where it is laid out."""
    if order.watch is None:
        return laid_out
    pattern = SavePattern.parse(order.watch)
    files = [path.relative_to(laid_out).as_posix() for path in laid_out.rglob("*") if path.is_file()]
    root = pattern.root(files)
    if root is None:
        return laid_out
    target = (folder.checkpoints if pattern.in_checkpoints else folder.source) / root
    for path in (*reversed(target.parents), target):  # the source may have a file of that name
        if path.is_relative_to(folder.work) and (path.is_symlink() or path.is_file()):
            remove_file(path)
    if target.exists():
        remove_tree(target)
    make_folder(target.parent)
    rename(laid_out / root, target)
    return target


def _staged_manifest(folder: Folder, name: str, order: Order) -> Manifest:
    if CheckpointRef.parse(name) is None:
        raise CorruptCheckpoint(name, "that is not a checkpoint name")
    try:
        # A platform may have it behind links, such as Kaggle in an input: every byte is checked.
        data = read_own(folder.staged / manifest_path(name), bounds.MANIFEST_BYTES_MAX)
    except (OSError, InputError) as error:
        raise CorruptCheckpoint(
            name, f"its manifest was not staged ({getattr(error, 'strerror', None) or error})"
        ) from error
    checkpoint.authenticate(name, data, order.resume_sha256)
    manifest = checkpoint.decode(name, data)
    if manifest.run != order.run:
        raise CorruptCheckpoint(name, f"it belongs to run {manifest.run}")
    return manifest


def _assemble(blobs: Path, manifest: Manifest, entry: FileEntry, target: Path) -> None:
    """Copies and never links, because the staged blob may share its bytes with a store."""
    make_folder(target.parent)
    with written(target) as file:
        for part in entry.parts:
            digest, size = hashlib.sha256(), 0
            try:
                blob = open_own(blobs / part.sha256)
            except (OSError, InputError) as error:
                raise CorruptCheckpoint(manifest.name, f"blob {part.sha256[:12]}… was not staged") from error
            with blob:
                while chunk := blob.read(_CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
            if size != part.size or digest.hexdigest() != part.sha256:
                raise CorruptCheckpoint(manifest.name, f"blob {part.sha256[:12]}… was changed on the way")
