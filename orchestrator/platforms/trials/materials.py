"""What a trial's session gets, and what is read of what it left: the same on every platform.

Must never know a platform, nor judge what was read.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from orchestrator.core.checkpoint import Manifest
from orchestrator.platforms.trials import training
from orchestrator.session.layout import blob_path


def bundle(scratch: Path) -> Path:
    """The training's source, packed into this folder once."""
    script = Path(training.__file__)
    path = scratch / f"{script.name}.tar.gz"
    if not path.exists():
        data = script.read_bytes()
        with tarfile.open(path, "w:gz") as archive:
            member = tarfile.TarInfo(script.name)
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    return path


def content(output: Path, manifest: Manifest, name: str) -> dict[str, Any]:
    """A JSON file of a checkpoint that was collected into `output`."""
    [entry] = [each for each in manifest.files if each.path == name]
    parts = (output / blob_path(part.sha256) for part in entry.parts)
    found = json.loads(b"".join(part.read_bytes() for part in parts))
    assert isinstance(found, dict)
    return found
