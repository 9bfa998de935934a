"""What matches the pattern of a job's own saves right now: its files, and why it can never be a checkpoint.

Looks at names, sizes and times only. Decides neither when something is taken nor how.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.core.save_pattern import Saved, SavePattern
from orchestrator.session.committing import is_fit_name

# Of each file: path, size, when it was last changed (ns), inode. A script may set the time when it was last
# written, but not this one.
Signature = tuple[tuple[str, int, int, int], ...]


@dataclass
class Candidate:
    """Something that matches the pattern, as it was last seen; unchanged since `since`. `odd`: why it can
    never be a checkpoint. `replaced`: it was put in the place of another file, in one piece. `restless`:
    since when it has changed again and again without being taken."""

    path: str
    saved: Saved
    signature: Signature
    odd: str = ""
    since: float = 0.0
    restless: float = 0.0
    replaced: bool = False
    order: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        number = self.saved.step if self.saved.step is not None else self.saved.epoch
        self.order = (
            -1 if number is None else number,
            changed_ns(self.signature),
        )

    @property
    def is_file(self) -> bool:
        return [name for name, *_ in self.signature] == [self.path]

    @property
    def size(self) -> int:
        return sum(size for _, size, _, _ in self.signature)


def changed_ns(signature: Signature) -> int:
    """When the newest of the files was last changed; 0 without files."""
    return max((at for _, _, at, _ in signature), default=0)


def candidates(root: Path, pattern: SavePattern) -> Iterator[Candidate]:
    """Everything below `root` that matches and has a file in it. Follows no link."""
    for path in _matching(root, pattern, 0):
        name = path.relative_to(root).as_posix()
        saved = pattern.match(name)
        if saved is None:
            continue
        signature, odd = signed(root, path)
        if signature or odd:
            yield Candidate(name, saved, signature, odd)


def _matching(folder: Path, pattern: SavePattern, depth: int) -> Iterator[Path]:
    try:
        entries = list(islice(folder.iterdir(), bounds.LISTED_MAX))
    except OSError:
        return
    for entry in entries:
        if not pattern.pieces[depth].fullmatch(entry.name) or entry.is_symlink():
            continue
        if depth + 1 == len(pattern.pieces):
            yield entry
        elif entry.is_dir():
            yield from _matching(entry, pattern, depth + 1)


def signed(root: Path, path: Path) -> tuple[Signature, str]:
    """The files of what was saved (empty if there are none, or it is gone), and what is odd about it."""
    try:
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            return _checked(root, [path])
        return _checked(root, _inside(path)) if stat.S_ISDIR(found.st_mode) else ((), "")
    except FileNotFoundError:
        return (), ""
    except OSError as error:
        return (), f"it cannot be read: {error.strerror or error}"
    except RecursionError:
        return (), "its folders are nested too deeply"


def _inside(folder: Path) -> Iterator[Path]:
    """Everything in it, at any depth, that is no folder. Raises OSError if a folder cannot be read."""
    for here, folders, names in os.walk(folder, onerror=_raise):
        yield from (Path(here, name) for name in names)
        yield from (path for path in (Path(here, name) for name in folders) if path.is_symlink())


def _raise(error: OSError) -> None:
    raise error


def _checked(root: Path, paths: Iterator[Path] | list[Path]) -> tuple[Signature, str]:
    stamps, total = [], 0
    for path in paths:
        found, name = path.lstat(), path.relative_to(root).as_posix()
        if not stat.S_ISREG(found.st_mode):
            return (), f"{name!a} is neither a file nor a folder"
        if not is_fit_name(name):
            return (), f"it has a file with an unusable name: {name[:200]!a}"
        stamps.append((name, found.st_size, found.st_ctime_ns, found.st_ino))
        total += found.st_size
        if len(stamps) > bounds.FILES_MAX:
            return (), f"it has more than {bounds.FILES_MAX:,} files"
    if total > bounds.CHECKPOINT_BYTES_MAX:
        return (), f"it is larger than {bounds.size_text(bounds.CHECKPOINT_BYTES_MAX)}"
    return tuple(sorted(stamps)), ""
