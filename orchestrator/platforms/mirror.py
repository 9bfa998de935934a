"""Mirrors the small and the growing files of an outbox into a local folder: log, progress, status, result.

Of what grows only the growth comes, a bounded piece at a time. Nothing of it is trusted: a link, a folder or
a flood in its place costs that file and a note. Must never know what a platform is. Layout:
docs/session-folder.md.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.files import write_whole
from orchestrator.platforms.platform import Collected
from orchestrator.session import files
from orchestrator.session.files import Odd

SEGMENT = re.compile(r"[0-9]{1,9}\.log")
# The result comes last, as it was written.
WHOLE = {
    "incarnation": bounds.INCARNATION_BYTES_MAX,
    "status.json": bounds.STATUS_BYTES_MAX,
    "result.json": bounds.RESULT_BYTES_MAX,
}
_PROGRESS = "progress.jsonl"


def bring_files(outbox: Path, into: Path) -> Collected:
    """Mirrors what is new; the answer holds no checkpoint, but notes, and whether more is to come."""
    into.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    more_log = more_progress = False
    try:
        _replace(outbox, "incarnation", into)
    except Odd as odd:
        notes.append(_unread(odd))
    try:
        more_log, note = _log(outbox, into / "log")
        notes += note
    except Odd as odd:
        notes.append(_unread(odd))
    try:
        more_progress, note = _progress(outbox, into)
        notes += note
    except Odd as odd:
        notes.append(_unread(odd))
    for name in ("status.json", "result.json"):
        try:
            _replace(outbox, name, into)
        except Odd as odd:
            notes.append(_unread(odd))
    return Collected(notes=tuple(notes), more=more_log or more_progress)


def _unread(odd: Odd) -> str:
    return f"{odd}: it was not read"


def _replace(outbox: Path, name: str, into: Path) -> None:
    data = files.read(outbox, name, WHOLE[name])
    if data is not None:
        write_whole(into / name, data, sync=False)


# --- What grows -------------------------------------------------------------------------------------------


def _progress(outbox: Path, into: Path) -> tuple[bool, list[str]]:
    """Whether there is more of it, and what is said of it."""
    behind = _grow(
        outbox, _PROGRESS, into / _PROGRESS,
        bounds.SESSION_PROGRESS_BYTES_MAX, bounds.COLLECT_PROGRESS_BYTES_MAX,
    )[1]  # fmt: skip
    if behind and _size(into / _PROGRESS) >= bounds.SESSION_PROGRESS_BYTES_MAX:
        limit = bounds.size_text(bounds.SESSION_PROGRESS_BYTES_MAX)
        return False, [f"{_PROGRESS} is larger than {limit}: its rest was not brought"]
    return behind, []


def newest_segment(folder: Path) -> int:
    """The number of the newest segment of a log that lies in the folder; 0 for none."""
    return max((segment_number(path.name) for path in _segments(folder)), default=0)


def segment_number(name: str) -> int:
    """The number of a segment, by a name that SEGMENT fits."""
    return int(name.partition(".")[0])


def _log(outbox: Path, into: Path) -> tuple[bool, list[str]]:
    """From the newest segment on that is here already, as far as one collect goes. Returns whether another
    brings more, and what is said of it."""
    listed = files.names(outbox, "log")
    there = [name for name in listed if SEGMENT.fullmatch(name)]
    notes = [*files.cut_short(listed, "outbox/log")]
    if not there:
        return False, notes
    into.mkdir(exist_ok=True)
    newest = newest_segment(into)
    fresh = sorted((name for name in there if segment_number(name) >= newest), key=segment_number)
    left = bounds.COLLECT_LOG_BYTES_MAX
    more = len(fresh) > bounds.COLLECT_LOG_SEGMENTS_MAX
    for name in fresh[: bounds.COLLECT_LOG_SEGMENTS_MAX]:
        if left <= 0:
            more = True
            break
        try:
            grown, behind = _grow(outbox, f"log/{name}", into / name, bounds.LOG_SEGMENT_BYTES_MAX, left)
        except Odd as odd:
            notes.append(_unread(odd))
            continue
        left -= grown
        if behind and _size(into / name) >= bounds.LOG_SEGMENT_BYTES_MAX:
            limit = bounds.size_text(bounds.LOG_SEGMENT_BYTES_MAX)
            notes.append(f"a segment of the log is larger than {limit}: its rest was not brought")
        else:
            more |= behind
    if more and left == bounds.COLLECT_LOG_BYTES_MAX and newest_segment(into) == newest:
        more = False  # nothing came of so many: another collect would get no further
        notes.append("the log holds too many segments that cannot be read: not all of it was brought")
    return more, [*dict.fromkeys(notes), *_thin_out(into)]


def _thin_out(folder: Path) -> list[str]:
    """Keeps how the log began and its newest segments, as the agent does with its own."""
    kept = _segments(folder)
    size = sum(_size(path) for path in kept)
    if size <= bounds.SESSION_LOG_BYTES_MAX:
        return []
    at, began = 0, 0
    while at < len(kept) - 2 and began + _size(kept[at]) <= bounds.SESSION_LOG_BYTES_MAX // 8:
        began += _size(kept[at])
        at += 1
    for gone in kept[at:-1]:
        if size <= bounds.SESSION_LOG_BYTES_MAX:
            break
        size -= _size(gone)
        gone.unlink(missing_ok=True)
    limit = bounds.size_text(bounds.SESSION_LOG_BYTES_MAX)
    return [f"its log is longer than {limit}: the middle of it is left out"]


def _grow(outbox: Path, name: str, target: Path, total_max: int, left: int) -> tuple[int, bool]:
    """Continues a file; returns by how many bytes, and whether there are more. Begins anew where the file
    has become shorter."""
    with files.opened(outbox, name) as source:
        if source is None:
            return 0, False
        found = os.fstat(source.fileno())
        if files.is_sparse(found.st_size, files.on_disk(found)):
            raise Odd(f"{name} is all holes: hardly a byte of it is on the disk")
        have = _size(target)
        if found.st_size < have:
            have = 0
        wanted = max(0, min(found.st_size - have, total_max - have, left))
        try:
            source.seek(have)
            with target.open("r+b" if have else "wb") as writer:
                writer.seek(have)
                grown = files.copy(source, writer, wanted)
        except IsADirectoryError as error:
            raise Odd(f"{name} cannot be kept here: {error.strerror}") from error
        return grown, have + grown < found.st_size


def _segments(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        found = [path for path in folder.iterdir() if SEGMENT.fullmatch(path.name)]
        return sorted(found, key=lambda path: segment_number(path.name))
    return []


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
