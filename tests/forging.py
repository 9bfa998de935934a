"""What an attacker with write access to checkpoints does: changes the content and seals a manifest for it.

The result is consistent. Only a reader that knows the sha256 of the accepted manifest notices the change.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part, decode

FORGED = b"something that was never trained"


def forge(folder: Path, name: str) -> Manifest:
    """Replaces a checkpoint in an outbox layout, or in a run's folder of a folder store; returns the forged
    manifest."""
    path = folder / "checkpoints" / name / "manifest.json"
    manifest = decode(name, path.read_bytes())
    first, *others = manifest.files
    sha256 = hashlib.sha256(FORGED).hexdigest()
    files = (FileEntry(first.path, len(FORGED), (Part(sha256, len(FORGED)),)), *others)
    forged = replace(manifest, files=files)
    blobs = folder / "blobs"
    lineage = blobs / f"g{manifest.ref.generation:02d}-{manifest.ref.incarnation}"
    write(lineage / sha256 if lineage.is_dir() else blobs / sha256, FORGED)
    write(path, forged.encode())
    return forged


def write(path: Path, data: bytes) -> None:
    """Creates a new file under the name, so that files linked to the old one keep their content."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def newest(folder: Path) -> str:
    """The name of the checkpoint with the highest step."""
    refs = (CheckpointRef.parse(path.name) for path in (folder / "checkpoints").iterdir())
    return max((ref for ref in refs if ref is not None), key=lambda ref: ref.step).name
