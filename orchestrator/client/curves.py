"""A run's curves, read from the progress.jsonl files that were collected from its sessions.

Keeps no file of its own. Knows from the ledger which step each session resumed from, and says which sessions'
reports are not here. Asks no platform and no store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import files
from orchestrator.client.sessions import SessionSummary, sessions
from orchestrator.core import bounds
from orchestrator.core.curves import METRICS_MAX, POINTS_MAX, Curve, Merging, Point, last_steps
from orchestrator.core.event import Adopted, Event
from orchestrator.core.wording import count_text
from orchestrator.files import Odd
from orchestrator.session.layout import PROGRESS

if TYPE_CHECKING:
    from orchestrator.client.client import Client

__all__ = ["Curve", "Curves", "Hop", "Point", "read"]

_CHUNK_BYTES = 1 << 20
_NAME_BYTES_MAX = bounds.METRIC_NAME_BYTES_MAX
_SAMPLES = 64  # places in a file that is not read whole
_SESSION = re.compile(r".*-s(\d{1,9})")


@dataclass(frozen=True)
class Hop:
    """One session in the curves. `from_step`: what it resumed from; None: the ledger no longer knows."""

    number: int
    name: str
    from_step: int | None
    here: bool


@dataclass(frozen=True)
class Curves:
    """The metrics of a run. `missing` says of each session whose reports are not here why, and `notes` what
    of the files was ignored; both are sentences for people. `left_out` are names of other metrics."""

    run: str
    metrics: tuple[Curve, ...]
    hops: tuple[Hop, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def absent(self) -> frozenset[int]:
        """Numbers of the sessions whose reports are not here."""
        return frozenset(hop.number for hop in self.hops if not hop.here)


def read(client: Client, run: str, names: Sequence[str], points: int | None, bytes_max: int | None) -> Curves:
    """The run's curves. Raises the same errors as reading the ledger."""
    with client.ledgers.runs() as ledger:
        history = [stored.event for stored in ledger.history(run)]
    return merged(run, client.home.folders.run(run), history, names, points, bytes_max)


def merged(
    run: str,
    folder: Path,
    history: Iterable[Event],
    names: Sequence[str] = (),
    points: int | None = None,
    bytes_max: int | None = None,
) -> Curves:
    """The same from a run's folder in the home and its history."""
    events = list(history)
    ran = {_number(each.name): each for each in sessions(events) if not each.withdrawn}
    there = {_number(name): name for name in _folders(folder)}
    numbers = sorted({*ran, *there} - {0})
    reported = {number for number in numbers if _size(folder, there.get(number)) is not None}
    counts = last_steps(
        [(number, each.from_step) for number, each in ran.items()
         if number in reported or each.started_at is not None or each.outcome is not None]
        + _elsewhere(events)
    )  # fmt: skip
    merging = Merging(names, POINTS_MAX if points is None else points)
    share = None if bytes_max is None else max(_CHUNK_BYTES // 8, bytes_max // max(1, len(reported)))
    notes: list[str] = []
    for number in sorted(reported):
        notes += _take(merging, folder / there[number], number, counts.get(number), share)
    hops = tuple(_hop(number, ran.get(number), there, number in reported) for number in numbers)
    return Curves(
        run,
        merging.curves(),
        hops,
        (*_missing(hops, ran, there), *_missing_elsewhere(events, numbers)),
        (*notes, *_remarks(merging, names)),
        merging.left_out,
    )


def _number(session: str) -> int:
    """The session's number in the run; 0 if the name is not of a session."""
    match = _SESSION.fullmatch(session)
    return int(match[1]) if match else 0


def _folders(folder: Path) -> list[str]:
    with suppress(OSError):
        return [entry.name for entry in folder.iterdir() if _SESSION.fullmatch(entry.name)]
    return []


def _size(folder: Path, session: str | None) -> int | None:
    """How large its reports are; None if there are none here."""
    if session is None:
        return None
    with suppress(OSError):
        return (folder / session / PROGRESS).lstat().st_size
    return None


def _hop(number: int, ran: SessionSummary | None, there: dict[int, str], here: bool) -> Hop:
    name = ran.name if ran is not None else there[number]
    return Hop(number, name, None if ran is None else ran.from_step, here)


# --- What is not here -------------------------------------------------------------------------------------


def _missing(hops: Sequence[Hop], ran: dict[int, SessionSummary], there: dict[int, str]) -> Iterator[str]:
    for hop in hops:
        session = ran.get(hop.number)
        if hop.here:
            continue
        if session is not None and session.started_at is None and session.outcome is None:
            yield f"s{hop.number:02d} has not started yet"
        elif session is not None and session.over_at is None:
            yield f"nothing that s{hop.number:02d} reports has been collected yet; it still runs"
        elif hop.number in there:
            yield f"s{hop.number:02d} reported nothing"
        else:
            yield f"nothing of s{hop.number:02d} is kept here: it left nothing, or `prune` has removed it"


def _elsewhere(events: Iterable[Event]) -> list[tuple[int, int]]:
    """The sessions that another ledger had, as (a number, the step that the first of them resumed from)."""
    known, found = 0, []
    for event in events:
        order = getattr(event, "order", None)
        known = max(known, 0 if order is None else order.generation)
        if isinstance(event, Adopted):
            ours = [each.ref.step for each in event.accepted if each.ref.generation <= known]
            theirs = [each.ref.generation for each in event.accepted if each.ref.generation > known]
            if ours and theirs:
                found.append((min(theirs), max(ours)))
    return found


def _missing_elsewhere(events: Iterable[Event], numbers: Sequence[int]) -> Iterator[str]:
    """Says so if checkpoints were adopted whose sessions this ledger never had."""
    for event in events:
        if isinstance(event, Adopted):
            theirs = [each.ref for each in event.accepted if each.ref.generation not in numbers]
            if theirs:
                step = max(ref.step for ref in theirs)
                yield (
                    f"another ledger had this run up to step {step:,}: what its sessions reported is not here"
                )


def _remarks(merging: Merging, names: Sequence[str]) -> Iterator[str]:
    if merging.malformed:
        yield f"ignored {count_text(merging.malformed, 'malformed line')} in {PROGRESS}"
    long = [name for name in merging.left_out if len(name.encode(errors="replace")) >= _NAME_BYTES_MAX]
    if long and not names:
        yield f"left out {count_text(len(long), 'metric')} with a name of more than {_NAME_BYTES_MAX} bytes"
    if len(merging.left_out) > len(long) and not names:
        yield f"only the first {METRICS_MAX} metrics are read; --metric NAME reads any other"


# --- The files --------------------------------------------------------------------------------------------


def _take(
    merging: Merging, folder: Path, number: int, last_step: int | None, bytes_max: int | None
) -> Iterator[str]:
    """Takes a session's reports. Yields notes on what could not be read."""
    try:
        with files.opened(folder, PROGRESS) as file:
            if file is None:
                return
            size = os.fstat(file.fileno()).st_size
            for line in _lines(file, min(size, bounds.SESSION_PROGRESS_BYTES_MAX), bytes_max):
                merging.take(line, number, last_step)
    except (OSError, Odd) as error:
        yield f"the reports of s{number:02d} cannot be read: {error}"
        return
    if size >= bounds.RELAYED_PROGRESS_BYTES_MAX:
        limit = bounds.size_text(bounds.RELAYED_PROGRESS_BYTES_MAX)
        yield f"s{number:02d} reported more than {limit}, which is all that is kept of a session"


def _lines(file: FileIO, size: int, bytes_max: int | None) -> Iterator[bytes]:
    """The file's whole lines; of a file above `bytes_max`, those at places all over it, with its end."""
    if bytes_max is None or size <= bytes_max:
        yield from _stretch(file, 0, size)
        return
    length = max(1, bytes_max // _SAMPLES)
    for sample in range(_SAMPLES):
        yield from _stretch(file, (size - length) * sample // (_SAMPLES - 1), length)


def _stretch(file: FileIO, start: int, length: int) -> Iterator[bytes]:
    """The whole lines in a stretch of the file. Of an endless line no more than its beginning is held."""
    file.seek(max(0, start - 1))
    left, held, skips = length + min(1, start), b"", start > 0
    while left > 0 and (data := file.read(min(_CHUNK_BYTES, left))):
        left -= len(data)
        *lines, held = (held + data).split(b"\n")
        for line in lines:
            if not skips and line.strip():
                yield line
            skips = False
        if len(held) > bounds.PROGRESS_LINE_BYTES_MAX:
            yield from () if skips else (held,)  # too long: counted as malformed, once
            held, skips = b"", True
