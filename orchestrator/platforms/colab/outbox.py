"""A session's outbox on its machine, read by Jupyter's contents API.

Every request is a process of the command line, so files are read together where that is possible. The
checkpoints are in the home store, normally: these here are the rescue if the uplink did not get through.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.errors import NotFound, Rejected, Transient
from orchestrator.files import Odd, append, make_folder
from orchestrator.platforms.colab.boot import SAVES
from orchestrator.platforms.colab.machine import file_of, files_of, listed, path_of
from orchestrator.platforms.colab.runner import Cli
from orchestrator.session.layout import (
    LOG,
    OUTBOX,
    PROGRESS,
    SEGMENT,
    WHOLE,
    blob_path,
    manifest_path,
    segment_number,
)
from orchestrator.session.mirror import newest_segment
from orchestrator.session.outbox import Growth

PART_BYTES = 64 << 20  # of a checkpoint: a machine sends files whole and as text
_SEGMENT_BYTES, _SEGMENTS = 1 << 20, 16  # of an agent's log, and how many of those in one answer


class ContentsOutbox:
    """Implements `orchestrator.session.outbox.Outbox`. `small` is what a look has already read, by path; what
    it lacks was not there. None: nothing was read yet."""

    def __init__(self, cli: Cli, session: str, small: Mapping[str, bytes] | None = None) -> None:
        self._cli = cli
        self._session = session
        self._small = small

    def _path(self, name: str) -> str:
        return path_of(self._session, f"{OUTBOX}/{name}")

    def small(self, name: str) -> bytes | None:
        if self._small is None:
            return self._content(name, WHOLE[name])
        data = self._small.get(self._path(name))
        if data is not None and len(data) > WHOLE[name]:
            raise self._too_large(name, WHOLE[name])
        return data

    def checkpoints(self) -> list[str]:
        found = listed(self._cli, self._session, path_of(self._session, SAVES))
        return [each.name for each in found if each.is_folder][: bounds.LISTED_MAX]

    def manifest(self, name: str) -> bytes | None:
        return self._content(manifest_path(name), bounds.MANIFEST_BYTES_MAX)

    def blob(self, sha256: str, target: Path) -> bool:
        return self._bring(blob_path(sha256), target, bounds.PART_BYTES_MAX)

    def growing(self, here: Path, folder: Path) -> Growth:
        make_folder(folder / LOG)
        newest = newest_segment(here / LOG)
        sizes = {
            each.name: each.size or 0
            for each in listed(self._cli, self._session, self._path(LOG))
            if SEGMENT.fullmatch(each.name) and segment_number(each.name) >= newest
        }
        wanted, bytes_max = page(sizes)
        paths = {self._path(f"{LOG}/{name}"): name for name in wanted}
        found = files_of(self._cli, self._session, tuple(paths), bytes_max)
        for path, data in found.files.items():
            append(folder / LOG / paths[path], data)
        notes = [
            f"{self._too_large(f'{LOG}/{paths[path]}', bytes_max)}: it was not read"
            for path in found.too_large
        ]
        try:
            self._bring(PROGRESS, folder / PROGRESS, bounds.RELAYED_PROGRESS_BYTES_MAX)
        except Odd as odd:
            notes.append(f"{odd}: it was not read")
        is_new = any(segment_number(paths[path]) > newest for path in found.files)
        return Growth(folder, tuple(notes), more=is_new and len(wanted) < len(sizes))

    def _content(self, name: str, bytes_max: int) -> bytes | None:
        data, is_too_large = file_of(self._cli, self._session, self._path(name), bytes_max)
        if is_too_large:
            raise self._too_large(name, bytes_max)
        return data

    def _bring(self, name: str, target: Path, bytes_max: int) -> bool:
        try:
            return self._cli.download(self._session, self._path(name), target, bytes_max=bytes_max)
        except NotFound as error:  # must not pass: for an outbox it means that nothing was left
            raise Transient(str(error), operation="collect", retried=True) from error
        except Rejected as error:
            raise self._too_large(name, bytes_max) from error

    def _too_large(self, name: str, bytes_max: int) -> Odd:
        return Odd(f"{OUTBOX}/{name} is larger than {bounds.size_text(bytes_max)}")


def page(sizes: Mapping[str, int]) -> tuple[list[str], int]:
    """The log segments to read next, and how many bytes each may have, so that one answer stays small.
    `sizes` are what the machine says: it may be wrong. The first one may be the newest that is here already,
    so there are two if there can be."""
    names = sorted(sizes, key=segment_number)
    usual = list(takewhile(lambda name: sizes[name] <= _SEGMENT_BYTES, names[:_SEGMENTS]))
    if len(usual) < 2:
        return names[:2], bounds.LOG_SEGMENT_BYTES_MAX
    return usual, _SEGMENT_BYTES
