"""Which files of an ended session come home as its outputs, and why others do not.

Looks at names, sizes and times only; `orchestrator.session.committing` reads and stores the files. Removes
files only where a session has taken the inodes of its disk. Decides nothing about checkpoints.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.files import remove_tree

_OWN = ".orchestrator"
CHECKPOINTS = f"{_OWN}/checkpoints"  # where people find what was saved and is no checkpoint
_NAMED_MAX = 3
_FEW_SHARE = 8  # of the files of a session that took a disk's inodes, 1 / 8 are brought home with ease
# Nobody asks for these: they can be made again.
USELESS = frozenset({
    "__pycache__", ".git", ".venv", "venv", "node_modules", ".cache", ".ipynb_checkpoints", ".pytest_cache",
    ".mypy_cache", ".ruff_cache",
})  # fmt: skip

Stamp = tuple[int, int]  # size, and when it was last written (ns)


@dataclass(frozen=True)
class Output:
    """A file to keep: `name` below `root`, and the `path` under which people find it."""

    root: Path
    name: str
    path: str
    size: int


@dataclass(frozen=True)
class Gathered:
    """`files`, smallest first, and a sentence for those that stay behind; empty if there are none."""

    files: tuple[Output, ...]
    left: str = ""


def asked_for(source: Path, patterns: Sequence[str]) -> Gathered:
    """What the job's `outputs` name in the working directory `source`."""
    is_wanted = matching(patterns)
    found = [Output(source, name, name, size) for name, (size, _) in files_in(source) if is_wanted(name)]
    return _within(found, bounds.OUTPUTS_BYTES_MAX, "")


def matching(patterns: Sequence[str]) -> Callable[[str], bool]:
    wanted = [re.compile(expression(pattern)) for pattern in patterns]
    return lambda name: any(each.match(name) for each in wanted)


def unasked(
    source: Path,
    checkpoints: Path,
    before: Mapping[str, Stamp],
    is_saved: Callable[[str], bool],
    bytes_max: int = bounds.UNASKED_BYTES_MAX,
) -> Gathered:
    """What a session wrote although the job names no outputs: new and changed files in the working directory,
    and what it saved in the checkpoint folder and is no checkpoint. `before`: what was there at its start.
    `is_saved`: whether what has this path for people is kept as a checkpoint already."""
    found = [
        Output(source, name, name, stamp[0])
        for name, stamp in files_in(source, USELESS)
        if before.get(name) != stamp
        and not name.endswith(".pyc")
        and name.split("/")[0] != _OWN  # no path may stand for two files
        and not is_saved(name)
    ]
    found += [
        Output(checkpoints, name, path, size)
        for name, (size, _) in files_in(checkpoints)
        if not is_saved(path := f"{CHECKPOINTS}/{name}")
    ]
    return _within(found, bytes_max, "; to keep them, name them under `outputs`")


def make_room(source: Path, before: Mapping[str, Stamp], is_wanted: Callable[[str], bool]) -> str:
    """On a disk that has no inodes left: removes the largest crowds of new files, so that few are left, and
    says what it removed. A crowd is a folder in the working directory, or its files with one ending.
    `is_wanted`: no crowd with such a file is removed."""
    wanted, crowds = set[str](), dict[str, list[str]]()
    for name, _ in files_in(source):
        top, _, below = name.partition("/")
        crowd = f"{top}/" if below else f"*{Path(top).suffix}"
        if name in before or is_wanted(name):
            wanted.add(crowd)
        crowds.setdefault(crowd, []).append(top)
    left = total = sum(map(len, crowds.values()))
    told = []
    for crowd, tops in sorted(crowds.items(), key=lambda each: -len(each[1])):
        if left > total // _FEW_SHARE and crowd not in wanted:
            for top in set(tops):
                with suppress(OSError):
                    remove_tree(source / top)
            told.append(f"{_shown(crowd)} ({len(tops):,} files)")
            left -= len(tops)
    return f"removed to make room, because the disk had no inodes left: {', '.join(told)}" if told else ""


def expression(pattern: str) -> str:
    """A glob as a regular expression, for `match`. `*` and `?` stay within a folder, `**` does not. A pattern
    that names a folder matches everything below it."""
    pieces = []
    once = re.sub(r"(\*\*/)+", "**/", pattern.rstrip("/"))  # the same, and matched at once
    for piece in re.split(r"(\*\*/|\*\*|\*|\?)", once):
        pieces.append({"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(piece, re.escape(piece)))
    return "".join(pieces) + r"(?:/|\Z)"


def files_in(root: Path, skipped: Iterable[str] = ()) -> Iterator[tuple[str, Stamp]]:
    """The plain files below a folder by relative path, at most LISTED_MAX. Follows no link. Leaves out
    folders that are called like one of `skipped`, and drafts."""
    count, skip = 0, frozenset(skipped)
    for here, folders, names in os.walk(root):
        folders[:] = sorted(each for each in folders if each not in skip)
        for name in sorted(names):
            path = Path(here, name)
            try:
                found = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                count += 1
                if count > bounds.LISTED_MAX:
                    return
                yield path.relative_to(root).as_posix(), (found.st_size, found.st_mtime_ns)


def _within(found: list[Output], bytes_max: int, advice: str) -> Gathered:
    """The smallest files that fit: what people look for is small, and a cached data set is not."""
    ordered = sorted(found, key=lambda each: (each.size, each.path))
    total, count = 0, 0
    for each in ordered[: bounds.FILES_MAX]:
        total += each.size
        if total > bytes_max:
            break
        count += 1
    left = ordered[count:]
    if not left:
        return Gathered(tuple(ordered))
    named = ", ".join(
        f"{_shown(each.path)} ({bounds.size_text(each.size)})"
        for each in sorted(left, key=_largest)[:_NAMED_MAX]
    )
    more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
    limit = f"{bounds.size_text(bytes_max)} or {bounds.FILES_MAX:,} files"
    return Gathered(
        tuple(ordered[:count]), f"not kept, because outputs are limited to {limit}: {named}{more}{advice}"
    )


def _shown(path: str) -> str:
    return path if path.isprintable() else ascii(path)


def _largest(output: Output) -> tuple[int, str]:
    return -output.size, output.path
