"""A kernel's output as an outbox, and what its log shows before there is any output.

Everything is downloaded from listed, signed URLs, which are requested again when they have expired. Files
larger than the agent makes them are left out, and no name can lead outside the target folder.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.errors import NotFound, Transient
from orchestrator.files import Odd, make_folder
from orchestrator.files.hashing import digest_file
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.downloads import TooLarge, download
from orchestrator.session.layout import (
    CHECKPOINTS,
    LOG,
    MANIFEST,
    OUTBOX,
    PROGRESS,
    SEGMENT,
    STATUS,
    WHOLE,
    blob_path,
    manifest_path,
)
from orchestrator.session.outbox import Growth

_LOG = re.compile(rf"{LOG}/{SEGMENT.pattern}")
_MANIFEST = re.compile(rf"{CHECKPOINTS}/([^/]+)/{re.escape(MANIFEST)}")


@dataclass(frozen=True)
class SpokenOutbox:
    """The outbox of a running kernel: only what its log says can be read, the agent's `status`."""

    status: str

    def small(self, name: str) -> bytes | None:
        return self.status.encode() if name == STATUS else None

    def checkpoints(self) -> Iterable[str]:
        return ()

    def manifest(self, name: str) -> bytes | None:
        del name
        return None

    def blob(self, sha256: str, target: Path) -> bool:
        del sha256, target
        return False

    def growing(self, here: Path, folder: Path) -> Growth:
        del here
        return Growth(folder)


class KernelOutbox:
    """The output of one kernel, listed once on creation. Raises NotFound if the kernel does not exist.

    `log` is the kernel's own log, which may come later than the files (docs/references/kaggle.md#log). The
    list may be incomplete, and a later one shorter: a file that was once listed is there, and an agent lists
    no checkpoint before its blobs. Asking for a file that is not listed, but must be there, raises Transient.
    """

    log = ""

    def __init__(self, client: KaggleClient, slug: str) -> None:
        self._client = client
        self._slug = slug
        self._urls = self._listed()

    def _listed(self) -> dict[str, str]:
        output = self._client.output(self._slug)
        if output is None:
            raise NotFound(f"no kernel {self._slug}", operation="collect")
        self.log = output.log
        prefix = f"{OUTBOX}/"
        ours = (each for each in output.files if each.name.startswith(prefix))
        return {each.name.removeprefix(prefix): each.url for each in islice(ours, bounds.LISTED_MAX)}

    @property
    def names(self) -> frozenset[str]:
        """The files that are listed."""
        return frozenset(self._urls)

    def small(self, name: str) -> bytes | None:
        return self._content(name, WHOLE[name])

    def checkpoints(self) -> list[str]:
        return [match[1] for name in self._urls if (match := _MANIFEST.fullmatch(name))]

    def manifest(self, name: str) -> bytes | None:
        return self._content(manifest_path(name), bounds.MANIFEST_BYTES_MAX)

    def blob(self, sha256: str, target: Path) -> bool:
        name = blob_path(sha256)
        if name not in self._urls:
            raise Transient(f"the output of {self._slug} is not complete yet", operation="collect")
        there = self._bring(name, target, bounds.PART_BYTES_MAX)
        if there and digest_file(target) != sha256:  # once more: resumed pieces may not match
            self._bring(name, target, bounds.PART_BYTES_MAX)
        return there

    def growing(self, here: Path, folder: Path) -> Growth:
        del here
        make_folder(folder / LOG)
        notes: list[str] = []
        left = bounds.COLLECT_LOG_BYTES_MAX
        segments = [name for name in self._urls if _LOG.fullmatch(name)]
        for name in segments[: bounds.COLLECT_LOG_SEGMENTS_MAX]:
            if left <= 0:
                notes.append(f"{OUTBOX}/{LOG} is too large: not all of it was copied")
                break
            try:
                if self._bring(name, folder / name, bounds.LOG_SEGMENT_BYTES_MAX):
                    left -= (folder / name).stat().st_size
            except Odd:
                continue
        try:
            self._bring(PROGRESS, folder / PROGRESS, bounds.SESSION_PROGRESS_BYTES_MAX)
        except Odd as odd:
            notes.append(f"{odd}: it was not read")
        return Growth(folder, tuple(notes))

    def _content(self, name: str, size_max: int) -> bytes | None:
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            target = Path(folder, "file")
            return target.read_bytes() if self._bring(name, target, size_max) else None

    def _bring(self, name: str, target: Path, size_max: int) -> bool:
        """False if it is not listed. Raises Odd for a file larger than the agent can have made it."""
        url = self._urls.get(name)
        if url is None:
            return False
        try:
            download(self._client, url, target, size_max=size_max, renew=lambda: self._renewed(name))
        except TooLarge as error:
            raise Odd(f"{OUTBOX}/{name} is larger than {bounds.size_text(size_max)}") from error
        except NotFound as error:  # must not pass: for an outbox it means that nothing was left
            raise Transient(f"{self._slug} lists a missing file: {error}", operation="collect") from error
        return True

    def _renewed(self, name: str) -> str:
        """Raises NotFound."""
        urls = self._listed()
        self._urls |= urls
        if name not in urls:
            raise NotFound(f"{self._slug} no longer lists {name}", operation="collect")
        return urls[name]
