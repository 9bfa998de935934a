"""What was fetched, by its sha256, in one cache folder for all homes of a user.

    blobs/<sha256>        a file or a folder, read-only
    sources/<key>.json    what a source had when it was last fetched; the key is a hash, as it may be secret
    parts/<key>           what has arrived so far

Decides what is removed when it grows too large. Must never give out what no longer has its sha256.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from orchestrator import user
from orchestrator.clock import Clock
from orchestrator.errors import InputError
from orchestrator.fetching.transfer import Version
from orchestrator.files import flock, open_log, read_small, remove_tree, sync_folder, write_whole
from orchestrator.files.hashing import digest

BYTES_MAX = 100_000_000_000
SPARED_SECONDS = 24 * 3600.0  # what was used so lately stays, however full it is
PART_SECONDS = 7 * 86400.0  # older parts are given up
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Kept:
    """What a source had: its sha256 and bytes, of so many files, and the server's version of it.
    `pinned`: the source with its version or commit. `at`: when it was fetched, in unix seconds."""

    source: str
    pinned: str
    sha256: str
    size: int
    files: int = 1
    version: Version = field(default_factory=Version)
    at: float = 0.0


def folder() -> Path:
    """The cache of this user."""
    return user.cache("orchestrator") / "inputs"


def blob(sha256: str) -> Path:
    """Where content of this sha256 lies if it was fetched on this machine."""
    return folder() / "blobs" / sha256


class Cache:
    """Each method may be called by several programs at once."""

    def __init__(self, place: Path, clock: Clock, bytes_max: int = BYTES_MAX) -> None:
        self._place = place
        self._clock = clock
        self._bytes_max = bytes_max

    @staticmethod
    def key(source: str) -> str:
        return hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Of several programs that want the same, one fetches it and the others wait."""
        self._make()
        path = self._place / "parts" / f"{key}.lock"
        with os.fdopen(open_log(path), "a") as lock:
            flock(lock.fileno(), fcntl.LOCK_EX, path, "XDG_CACHE_HOME")
            yield

    def part(self, key: str) -> Path:
        return self._place / "parts" / key

    def blob(self, sha256: str) -> Path:
        return self._place / "blobs" / sha256

    def find(self, key: str) -> Kept | None:
        """What a source had, if that is still here. Does not read the content."""
        found = _read(self._note(key))
        return found if found is not None and os.path.lexists(self.blob(found.sha256)) else None

    def find_content(self, sha256: str) -> Kept | None:
        """The first source that had this content, if that is still here."""
        if not os.path.lexists(self.blob(sha256)):
            return None
        return next((each for each in self._notes().values() if each.sha256 == sha256), None)

    def whole(self, sha256: str) -> bool:
        """Whether the content is here and still has its sha256. Reads it; what has changed is removed."""
        if not _SHA256.fullmatch(sha256):  # it may be a server's word, and would be a path
            return False
        path = self.blob(sha256)
        try:
            if digest(path) == sha256:
                return True
            self._remove(path)
        except OSError:
            pass
        return False

    def keep(self, key: str, path: Path, kept: Kept) -> None:
        """Moves a file or folder, whose sha256 is known, to its place, and notes where it came from."""
        target = self.blob(kept.sha256)
        _shut(path)
        if not self.whole(kept.sha256):  # a damaged copy may be there, of another source with this content
            try:
                path.rename(target)
            except OSError:  # another program was faster
                if not os.path.lexists(target):
                    raise
            sync_folder(target.parent)
        self._remove(path)
        self.note(key, kept)

    def note(self, key: str, kept: Kept) -> None:
        """Says what the source has, and that it is in use."""
        write_whole(self._note(key), json.dumps(asdict(kept)).encode(), sync=False)

    def drop_part(self, key: str) -> None:
        for each in self._place.glob(f"parts/{key}*"):
            if not each.name.endswith(".lock"):
                self._remove(each)

    def tidy(self, spared: str = "") -> tuple[Kept, ...]:
        """Removes parts that nobody went on with, and of the content what was used longest ago, till it fits.
        Returns what was removed."""
        now = self._clock.now()
        for each in self._place.glob("parts/*"):
            if _age(each, now) > PART_SECONDS and not each.name.endswith(".lock"):
                self._remove(each)
        notes = sorted(self._notes().items(), key=lambda item: -_age(item[0], now))
        total = sum({kept.sha256: kept.size for _, kept in notes}.values())
        gone = []
        for path, kept in notes:
            if total <= self._bytes_max or _age(path, now) < SPARED_SECONDS:
                break
            path.unlink(missing_ok=True)
            if kept.sha256 != spared and not any(n.sha256 == kept.sha256 for n in self._notes().values()):
                self._remove(self.blob(kept.sha256))
                total -= kept.size
                gone.append(kept)
        return tuple(gone)

    def _make(self) -> None:
        place = self._place
        try:
            for each in ("blobs", "sources", "parts"):
                (place / each).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{place}: the cache of inputs cannot be made ({error.strerror}); set XDG_CACHE_HOME to "
                "a folder that you may write"
            ) from error

    def _note(self, key: str) -> Path:
        return self._place / "sources" / f"{key}.json"

    def _notes(self) -> dict[Path, Kept]:
        found = ((path, _read(path)) for path in sorted(self._place.glob("sources/*.json")))
        return {path: kept for path, kept in found if kept is not None}

    def _remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()


def _shut(path: Path) -> None:
    """Read-only, in case somebody opens it in the wrong mode."""
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if each.is_file():
            each.chmod(0o400)


def _age(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path) -> Kept | None:
    """What a note says; None if it is damaged."""
    try:
        found = json.loads(read_small(path, 1 << 16) or b"")
        version = Version(**found.pop("version"))
        kept = Kept(**found, version=version)
        ok = _SHA256.fullmatch(kept.sha256) and isinstance(kept.source, str) and isinstance(kept.pinned, str)
        ok = ok and isinstance(version.tag, str) and isinstance(version.modified, str)
        return replace(kept, size=int(kept.size), files=int(kept.files), at=float(kept.at)) if ok else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
