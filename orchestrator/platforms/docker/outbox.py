"""A container's outbox for `orchestrator.platforms.outbox.bring`: running, paused or ended, all the same.

Reads by archives, so that the engine may be anywhere. Manifests come in one call, blobs one by one. Nothing
comes that is beyond `orchestrator.core.bounds`: whoever trains may write here too.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import docker

from orchestrator.core import bounds
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.mirror import SEGMENT, WHOLE, bring_files, newest_segment, segment_number
from orchestrator.platforms.platform import Collected

_LISTED_BYTES_MAX = 128 * bounds.MIB  # of all manifests together, which are held in memory
_MANIFEST = re.compile(r"[^/]+/manifest\.json")


class ContainerOutbox:
    """The outbox of one container, by its id. `notes`: what was left out."""

    def __init__(self, client: docker.DockerClient, container: str) -> None:
        self._client = client
        self._container = container
        self._listed: dict[str, bytes] = {}
        self.notes: list[str] = []

    def checkpoints(self) -> Iterable[str]:
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            whole = containers.bring(
                self._client, self._container, "outbox/checkpoints", Path(folder), bounds.MANIFEST_BYTES_MAX,
                total_max=_LISTED_BYTES_MAX, wanted=lambda name: _MANIFEST.fullmatch(name) is not None,
            )  # fmt: skip
            found = Path(folder).glob("*/manifest.json")
            self._listed = {path.parent.name: path.read_bytes() for path in found}
        if not whole:
            self.notes.append("outbox/checkpoints holds too much: not all of it was looked at")
        return list(self._listed)

    def manifest(self, name: str) -> bytes | None:
        """As it was listed the first time it is asked for; then as it is now: it may be superseded."""
        listed = self._listed.pop(name, None)
        return listed or containers.read(
            self._client, self._container, f"outbox/checkpoints/{name}/manifest.json",
            bounds.MANIFEST_BYTES_MAX,
        )  # fmt: skip

    def blob(self, sha256: str, target: Path) -> bool:
        return self._file(f"blobs/{sha256}", target, bounds.PART_BYTES_MAX) or False

    def files(self, into: Path, *, ended: bool) -> Collected:
        """Log, progress, status and result; of the log, what is not there already."""
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            here = Path(folder)
            more = self._log(here / "log", newest_segment(into / "log"), ended)
            progress_max = bounds.SESSION_PROGRESS_BYTES_MAX if ended else bounds.COLLECT_PROGRESS_BYTES_MAX
            self._file("progress.jsonl", here / "progress.jsonl", progress_max)
            for name, size_max in WHOLE.items():
                self._file(name, here / name, size_max)
            return Collected(notes=tuple(self.notes), more=more).joined(bring_files(here, into))

    def _file(self, name: str, target: Path, size_max: int) -> bool | None:
        path = f"outbox/{name}"
        return containers.bring_file(self._client, self._container, path, target, size_max)

    def _log(self, here: Path, newest: int, ended: bool) -> bool:
        """From the newest segment on that was brought before. Once the session has ended all at once, which
        finds them beyond any gap; before, and behind what is too large for that, one by one. Returns whether
        there may be more than fits into this collect."""
        here.mkdir()
        if ended and self._whole_log(here, newest):
            return False
        first = max(newest, newest_segment(here) + 1, 1)
        left = bounds.COLLECT_LOG_BYTES_MAX
        for number in range(first, first + bounds.COLLECT_LOG_SEGMENTS_MAX):
            target = here / f"{number:06d}.log"
            taken = self._file(f"log/{target.name}", target, bounds.LOG_SEGMENT_BYTES_MAX)
            if taken is None:
                return False
            if not taken:
                limit = bounds.size_text(bounds.LOG_SEGMENT_BYTES_MAX)
                self.notes.append(
                    f"a segment of the log is larger than {limit}, or no file: it was not brought"
                )
            left -= (target.stat().st_size if taken else bounds.LOG_SEGMENT_BYTES_MAX) + 1
            if left <= 0:
                break
        return newest_segment(here) > newest  # else another collect would get no further

    def _whole_log(self, here: Path, newest: int) -> bool:
        """As much as the agent keeps at most, for `bring_files` to take a piece of at a time. False: it holds
        more, or something too large."""
        whole = containers.bring(
            self._client, self._container, "outbox/log", here, bounds.LOG_SEGMENT_BYTES_MAX,
            total_max=bounds.SESSION_LOG_BYTES_MAX,
            wanted=lambda name: SEGMENT.fullmatch(name) is not None and segment_number(name) >= newest,
        )  # fmt: skip
        if not whole:
            self.notes.append("outbox/log holds too much: not all of it was brought")
        return whole
