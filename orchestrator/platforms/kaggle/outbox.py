"""A kernel's output as the outbox that `orchestrator.platforms.outbox.bring` reads.

Everything comes through listed, signed addresses, which are asked for anew when they have run out. Nothing
comes that is larger than the agent makes it, and no name leads anywhere but where it should.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.errors import NotFound, Transient
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.downloads import TooLarge, download
from orchestrator.platforms.mirror import SEGMENT, WHOLE, bring_files
from orchestrator.platforms.outbox import digest
from orchestrator.platforms.platform import Collected

FOLDER = "outbox"
MARKER, STATUS, INCARNATION = "result.json", "status.json", "incarnation"
_SIZES = {**WHOLE, "progress.jsonl": bounds.SESSION_PROGRESS_BYTES_MAX}
_LOG = re.compile(rf"log/{SEGMENT.pattern}")
_MANIFEST = re.compile(r"checkpoints/([^/]+)/manifest\.json")


class KernelOutbox:
    """What one kernel has left; listed once, when it is made. Raises NotFound where there is no kernel.

    `log` is the kernel's own, which may come later than the files (facts/kaggle.md §6.10).
    """

    log = ""

    def __init__(self, client: KaggleClient, slug: str) -> None:
        self._client = client
        self._slug = slug
        self._urls = self._listed()
        self.notes: list[str] = []  # what was left out
        self.lacked = False  # a blob of a manifest that is there: outputs may be listed in part (§6.10)

    def _listed(self) -> dict[str, str]:
        output = self._client.output(self._slug)
        if output is None:
            raise NotFound(f"no kernel {self._slug}", operation="collect")
        self.log = output.log
        prefix = f"{FOLDER}/"
        listed = (each for each in output.files[: bounds.LISTED_MAX] if each.name.startswith(prefix))
        return {each.name.removeprefix(prefix): each.url for each in listed}

    @property
    def empty(self) -> bool:
        return not self._urls

    def __contains__(self, name: str) -> bool:
        return name in self._urls

    def read(self, name: str) -> bytes | None:
        """One of the small files; None where there is none."""
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            target = Path(folder, "file")
            return target.read_bytes() if self._bring(name, target, _SIZES[name]) else None

    def checkpoints(self) -> Iterable[str]:
        return [match[1] for name in self._urls if (match := _MANIFEST.fullmatch(name))]

    def manifest(self, name: str) -> bytes | None:
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            target = Path(folder, "manifest.json")
            there = self._bring(f"checkpoints/{name}/manifest.json", target, bounds.MANIFEST_BYTES_MAX)
            return target.read_bytes() if there else None

    def blob(self, sha256: str, target: Path) -> bool:
        self.lacked |= f"blobs/{sha256}" not in self._urls
        there = self._bring(f"blobs/{sha256}", target, bounds.PART_BYTES_MAX)
        if there and digest(target) != sha256:  # once more: what came in pieces may not fit together
            self._bring(f"blobs/{sha256}", target, bounds.PART_BYTES_MAX)
        return there

    def files(self, into: Path) -> Collected:
        """Log, progress, status and, as the last, the result."""
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            here = Path(folder)
            (here / "log").mkdir()
            left = bounds.COLLECT_LOG_BYTES_MAX
            for name in [name for name in self._urls if _LOG.fullmatch(name)][
                : bounds.COLLECT_LOG_SEGMENTS_MAX
            ]:
                if left <= 0:
                    self.notes.append("outbox/log holds too much: not all of it was brought")
                    break
                if self._bring(name, here / name, bounds.LOG_SEGMENT_BYTES_MAX):
                    left -= (here / name).stat().st_size
            for name, size_max in _SIZES.items():
                self._bring(name, here / name, size_max)
            return Collected(notes=tuple(self.notes)).joined(bring_files(here, into))

    def _bring(self, name: str, target: Path, size_max: int) -> bool:
        """False where there is none, or none that the agent can have written."""
        url = self._urls.get(name)
        if url is None:
            return False
        try:
            download(self._client, url, target, size_max=size_max, renew=lambda: self._renewed(name))
        except TooLarge:
            if name in _SIZES:
                self.notes.append(
                    f"outbox/{name} is larger than {bounds.size_text(size_max)}: it was not read"
                )
            return False
        except NotFound as error:  # which of an outbox says that nothing was left, and ends the search for it
            raise Transient(f"{self._slug} lists what does not come: {error}", operation="collect") from error
        return True

    def _renewed(self, name: str) -> str:
        """Raises NotFound."""
        self._urls = self._listed()
        if name not in self._urls:
            raise NotFound(f"{self._slug} has no {name} any more", operation="collect")
        return self._urls[name]
