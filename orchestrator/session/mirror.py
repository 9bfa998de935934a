"""Mirrors the growing files of an outbox, log and progress, into a local folder. Copies only what is new.

Trusts nothing: a link, a folder or an endless file only costs that file, with a note. Must never know what a
platform is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from orchestrator import files
from orchestrator.core import bounds
from orchestrator.files import Odd
from orchestrator.session.layout import LOG, OUTBOX, PROGRESS, SEGMENT, segment_number


def mirror(outbox: Path, into: Path) -> tuple[tuple[str, ...], bool]:
    """Continues the copies in `into`. Returns notes on what was not copied, and whether there is more."""
    files.make_folder(into)
    notes: list[str] = []
    more_log = more_progress = False
    try:
        more_log, note = _log(outbox, into / LOG)
        notes += note
    except Odd as odd:
        notes.append(_unread(odd))
    try:
        more_progress, note = _progress(outbox, into)
        notes += note
    except Odd as odd:
        notes.append(_unread(odd))
    return tuple(notes), more_log or more_progress


def _unread(odd: Odd) -> str:
    return f"{odd}: it was not read"


def _progress(outbox: Path, into: Path) -> tuple[bool, list[str]]:
    """Whether there is more of it, and notes."""
    behind = _grow(
        outbox, PROGRESS, into / PROGRESS,
        bounds.SESSION_PROGRESS_BYTES_MAX, bounds.COLLECT_PROGRESS_BYTES_MAX,
    )[1]  # fmt: skip
    if behind and _size(into / PROGRESS) >= bounds.SESSION_PROGRESS_BYTES_MAX:
        limit = bounds.size_text(bounds.SESSION_PROGRESS_BYTES_MAX)
        return False, [f"{PROGRESS} is larger than {limit}: the rest was not copied"]
    return behind, []


def newest_segment(folder: Path) -> int:
    """The number of the newest log segment in the folder; 0 if there is none."""
    return max((segment_number(path.name) for path in _segments(folder)), default=0)


def _log(outbox: Path, into: Path) -> tuple[bool, list[str]]:
    """Copies from the newest segment that is here already, up to the limit of one collect. Returns whether
    another collect would bring more, and notes."""
    listed = files.names(outbox, LOG)
    there = [name for name in listed if SEGMENT.fullmatch(name)]
    notes = [*files.cut_short(listed, f"{OUTBOX}/{LOG}")]
    if not there:
        return False, notes
    files.make_folder(into, parents=False)
    newest = newest_segment(into)
    fresh = sorted((name for name in there if segment_number(name) >= newest), key=segment_number)
    left = bounds.COLLECT_LOG_BYTES_MAX
    more = len(fresh) > bounds.COLLECT_LOG_SEGMENTS_MAX
    for name in fresh[: bounds.COLLECT_LOG_SEGMENTS_MAX]:
        if left <= 0:
            more = True
            break
        try:
            grown, behind = _grow(outbox, f"{LOG}/{name}", into / name, bounds.LOG_SEGMENT_BYTES_MAX, left)
        except Odd as odd:
            notes.append(_unread(odd))
            continue
        left -= grown
        if behind and _size(into / name) >= bounds.LOG_SEGMENT_BYTES_MAX:
            limit = bounds.size_text(bounds.LOG_SEGMENT_BYTES_MAX)
            notes.append(f"a log segment is larger than {limit}: the rest was not copied")
        else:
            more |= behind
    if more and left == bounds.COLLECT_LOG_BYTES_MAX and newest_segment(into) == newest:
        more = False  # none of them could be read: another collect would make no progress
        notes.append("the log has too many unreadable segments: not all of it was copied")
    return more, [*dict.fromkeys(notes), *_thin_out(into)]


def _thin_out(folder: Path) -> list[str]:
    """Keeps the beginning of the log and its newest segments, like the agent does with its own."""
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
        files.remove_tree(gone)
    limit = bounds.size_text(bounds.SESSION_LOG_BYTES_MAX)
    return [f"its log is longer than {limit}: the middle of it is left out"]


def _grow(outbox: Path, name: str, target: Path, total_max: int, left: int) -> tuple[int, bool]:
    """Continues the copy of a file. Returns how many bytes it added, and whether there are more. Starts again
    if the file has become shorter."""
    with files.opened(outbox, name) as source:
        if source is None:
            return 0, False
        found = os.fstat(source.fileno())
        if files.is_sparse(found.st_size, files.on_disk(found)):
            raise Odd(f"{name} is a sparse file with almost no data")
        have = _size(target)
        if found.st_size < have:
            have = 0
        wanted = max(0, min(found.st_size - have, total_max - have, left))
        files.check_room(target.parent, wanted, 0 if target.exists() else 1)
        try:
            source.seek(have)
            with files.written(target, anew=not have) as writer:
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
