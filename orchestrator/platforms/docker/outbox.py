"""A container's outbox for `orchestrator.platforms.outbox.bring`: running, paused or ended, all the same.

Reads by archives, so that the engine may be anywhere. Manifests come in one call, blobs one by one. Nothing
comes that is larger than the agent makes it: whoever trains may write here too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import docker

from orchestrator.core.checkpoint import PART_BYTES_MAX
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.outbox import bring_files

_MANIFEST_BYTES_MAX = 64 << 20
_LOG_BYTES_MAX = 64 << 20  # of one segment, which the agent ends after 1 MiB and the line it is in
_FILES = {"incarnation": 1 << 20, "progress.jsonl": 1 << 30, "status.json": 16 << 20, "result.json": 16 << 20}


class ContainerOutbox:
    """The outbox of one container, by its id."""

    def __init__(self, client: docker.DockerClient, container: str) -> None:
        self._client = client
        self._container = container
        self._listed: dict[str, bytes] = {}

    def checkpoints(self) -> Iterable[str]:
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            containers.bring(
                self._client, self._container, "outbox/checkpoints", Path(folder), _MANIFEST_BYTES_MAX
            )
            found = Path(folder).glob("*/manifest.json")
            self._listed = {path.parent.name: path.read_bytes() for path in found}
        return list(self._listed)

    def manifest(self, name: str) -> bytes | None:
        """As it was listed the first time it is asked for; then as it is now: it may be superseded."""
        listed = self._listed.pop(name, None)
        return listed or containers.read(
            self._client, self._container, f"outbox/checkpoints/{name}/manifest.json", _MANIFEST_BYTES_MAX
        )

    def blob(self, sha256: str, target: Path) -> bool:
        path = f"outbox/blobs/{sha256}"
        return containers.bring_file(self._client, self._container, path, target, PART_BYTES_MAX)

    def files(self, into: Path, *, ended: bool) -> None:
        """Log, progress, status and result; of a log that still grows, what has grown."""
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            here = Path(folder)
            self._log(here / "log", into / "log", ended)
            for name, size_max in _FILES.items():
                containers.bring_file(self._client, self._container, f"outbox/{name}", here / name, size_max)
            bring_files(here, into)

    def _log(self, here: Path, there: Path, ended: bool) -> None:
        """Whole once the session has ended; before, from the newest segment on that is there already."""
        here.mkdir()
        if ended:
            containers.bring(self._client, self._container, "outbox/log", here, _LOG_BYTES_MAX)
            return
        have = [int(path.stem) for path in there.glob("*.log") if path.stem.isdecimal()]
        segment = max(have, default=1)
        while containers.bring_file(
            self._client,
            self._container,
            f"outbox/log/{segment:06d}.log",
            here / f"{segment:06d}.log",
            _LOG_BYTES_MAX,
        ):
            segment += 1
