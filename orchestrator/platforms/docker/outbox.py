"""The outbox of a container, whether it runs, is paused or has ended.

Reads it as archives, so it works with remote engines too. Manifests come in one call, blobs one by one.
Whatever exceeds `orchestrator.core.bounds` is left out: the training can write here too.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.files import Odd, make_folder
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.docker.connection import Connection
from orchestrator.session.layout import (
    CHECKPOINTS,
    INCARNATION,
    LOG,
    MANIFEST,
    OUTBOX,
    PROGRESS,
    RESULT,
    SEGMENT,
    WHOLE,
    blob_path,
    manifest_path,
    segment_number,
)
from orchestrator.session.mirror import newest_segment
from orchestrator.session.outbox import Growth

_LISTED_BYTES_MAX = 128 * bounds.MIB  # for all manifests together, which are kept in memory
_MANIFEST = re.compile(rf"[^/]+/{re.escape(MANIFEST)}")
# Errors that the files of one container can cause; the engine itself is fine.
_UNREADABLE = (tarfile.TarError, ValueError, KeyError, TypeError, ArithmeticError)


class ContainerOutbox:
    """The outbox of one container, by its id.

    A container that is `alive` has no result yet: it ends right after it wrote one. `incarnations` is a
    cache, read and filled here: container id → the incarnation file, which never changes.
    """

    def __init__(
        self, connection: Connection, container: str, *, alive: bool, incarnations: dict[str, bytes]
    ) -> None:
        self._connection = connection
        self._client = connection.client("collect")
        self._container = container
        self._alive = alive
        self._incarnations = incarnations
        self._listed: dict[str, bytes] = {}
        self._more = False  # whether there are more checkpoints than were listed

    def small(self, name: str) -> bytes | None:
        if name == RESULT and self._alive:
            return None
        if name == INCARNATION and self._container in self._incarnations:
            return self._incarnations[self._container]
        data = self._read(name, WHOLE[name])
        if name == INCARNATION and data is not None:
            self._incarnations[self._container] = data
        return data

    def checkpoints(self) -> Iterable[str]:
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder, self._reading(CHECKPOINTS):
            whole = containers.bring(
                self._client, self._container, f"{OUTBOX}/{CHECKPOINTS}", Path(folder),
                bounds.MANIFEST_BYTES_MAX, total_max=_LISTED_BYTES_MAX,
                wanted=lambda name: _MANIFEST.fullmatch(name) is not None,
            )  # fmt: skip
            found = Path(folder).glob(f"*/{MANIFEST}")
            self._listed = {path.parent.name: path.read_bytes() for path in found}
            self._more = not whole
        return list(self._listed)

    def manifest(self, name: str) -> bytes | None:
        """The first call returns it as listed; later calls read it again, because it may be superseded."""
        listed = self._listed.pop(name, None)
        return listed or self._read(manifest_path(name), bounds.MANIFEST_BYTES_MAX)

    def blob(self, sha256: str, target: Path) -> bool:
        return self._file(blob_path(sha256), target, bounds.PART_BYTES_MAX) or False

    def growing(self, here: Path, folder: Path) -> Growth:
        notes = [f"{OUTBOX}/{CHECKPOINTS} is too large: not all of it was listed"] if self._more else []
        make_folder(folder / LOG)
        newest = newest_segment(here / LOG)
        if self._alive:
            progress_max, whole = bounds.COLLECT_PROGRESS_BYTES_MAX, False
        else:
            progress_max = bounds.SESSION_PROGRESS_BYTES_MAX
            whole = self._whole_log(folder / LOG, newest)
            if not whole:
                notes.append(f"{OUTBOX}/{LOG} is too large: not all of it was copied")
        more = not whole and self._log(folder / LOG, newest, notes)
        self._file(PROGRESS, folder / PROGRESS, progress_max)
        return Growth(folder, tuple(notes), more)

    def _log(self, into: Path, newest: int, notes: list[str]) -> bool:
        """Copies segments one by one, from the newest one that is here already.

        Returns whether there may be more than fits into this collect.
        """
        first = max(newest, newest_segment(into) + 1, 1)
        left = bounds.COLLECT_LOG_BYTES_MAX
        for number in range(first, first + bounds.COLLECT_LOG_SEGMENTS_MAX):
            target = into / f"{number:06d}.log"
            taken = self._file(f"{LOG}/{target.name}", target, bounds.LOG_SEGMENT_BYTES_MAX)
            if taken is None:
                return False
            if not taken:
                limit = bounds.size_text(bounds.LOG_SEGMENT_BYTES_MAX)
                notes.append(f"a log segment was not copied: larger than {limit}, or not a regular file")
            left -= (target.stat().st_size if taken else bounds.LOG_SEGMENT_BYTES_MAX) + 1
            if left <= 0:
                break
        return newest_segment(into) > newest  # otherwise the next collect would make no progress

    def _whole_log(self, into: Path, newest: int) -> bool:
        """Copies all segments at once, so gaps do not matter, up to the most that the agent keeps.

        False if there is more, or something is too large.
        """
        with self._reading(LOG):
            return containers.bring(
                self._client, self._container, f"{OUTBOX}/{LOG}", into, bounds.LOG_SEGMENT_BYTES_MAX,
                total_max=bounds.SESSION_LOG_BYTES_MAX,
                wanted=lambda name: SEGMENT.fullmatch(name) is not None and segment_number(name) >= newest,
            )  # fmt: skip

    def _read(self, name: str, size_max: int) -> bytes | None:
        with self._reading(name):
            return containers.read(self._client, self._container, f"{OUTBOX}/{name}", size_max)

    def _file(self, name: str, target: Path, size_max: int) -> bool | None:
        with self._reading(name):
            return containers.bring_file(self._client, self._container, f"{OUTBOX}/{name}", target, size_max)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turns the engine's errors into ours, and errors caused by the files into Odd."""
        with self._connection.told("collect"):
            try:
                yield
            except _UNREADABLE as error:
                raise Odd(f"{OUTBOX}/{name} {error}") from error
