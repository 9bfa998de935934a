"""The table of runs that `ps` shows: a row for each, and the notes below it.

Values in, texts out. Must never ask the ledger, nor know whether the output is a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.cli.output import clock_text
from orchestrator.client.attendance import Attendance, old_seconds
from orchestrator.client.status import RunStatus
from orchestrator.clock import utc_text
from orchestrator.core.lifecycle import FINAL, Phase
from orchestrator.core.wording import count_text, number_text, span

ASLEEP = "asleep"  # how the reason of a run begins that waits for its schedule


@dataclass(frozen=True)
class Table:
    """`right` and `spare` as for `Output.table`. `notes` are runs and what there is to say of them."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int]
    spare: tuple[int, ...]
    notes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Column:
    """`spared`: narrow terminals leave out the column with the lowest number first; 0: never."""

    header: str
    right: bool = False
    spared: int = 0


_COLUMNS: tuple[_Column, ...] = (
    _Column("RUN"),
    _Column("PHASE"),
    _Column("STEP", right=True),
    _Column("", right=True, spared=6),
    _Column("STEPS/S", right=True, spared=4),
    _Column("LOSS", right=True, spared=5),
    _Column("AGE", right=True, spared=2),
    _Column("TOOK", right=True, spared=3),
    _Column("SESSION", right=True, spared=1),
    _Column("LEFT", right=True, spared=8),
    _Column("WHERE", spared=7),
)
_READ = _Column("READ")  # only if numbers are old


def table(runs: Sequence[RunStatus], attended: Attendance, now: float) -> Table:
    """The table of these runs. AGE: since they were submitted; TOOK: until they were over, or now; SESSION:
    since the launch of the present one."""
    ages = [old_seconds(each.read_at, now, attended=attended.is_attended) for each in runs]
    rows = [_row(each, attended, now) for each in runs]
    columns = _COLUMNS
    if any(age is not None for age in ages):
        columns = (*_COLUMNS[:2], _READ, *_COLUMNS[2:])
        told = ("" if age is None else f"{span(age)} ago" for age in ages)
        rows = [(*row[:2], text, *row[2:]) for row, text in zip(rows, told, strict=True)]
    spared = sorted((column.spared, place) for place, column in enumerate(columns) if column.spared)
    return Table(
        tuple(column.header for column in columns),
        tuple(rows),
        frozenset(place for place, column in enumerate(columns) if column.right),
        tuple(place for _, place in spared),
        tuple((each.run, note) for each in runs if (note := _note(each, attended, now))),
    )


def _row(status: RunStatus, attended: Attendance, now: float) -> tuple[str, ...]:
    if status.unreadable:  # nothing in its row can be relied on
        return (status.run, "unreadable", *("–",) * (len(_COLUMNS) - 2))
    over, saves = status.phase in FINAL, count_text(status.step, "save")
    until = status.ended_at if over and status.ended_at is not None else now
    return (
        status.run,
        status.phase.value,
        saves if status.saves_counted else f"{number_text(status.step)}/{number_text(status.steps_total)}",
        f"{status.progress.share:.0%}",
        number_text(status.steps_per_second),
        number_text(status.loss),
        span(max(0.0, now - status.submitted_at)),
        clock_text(until - status.submitted_at),
        "–" if status.launched_at is None else clock_text(now - status.launched_at),
        _left(status, attended, now),
        f"{status.platform}/{status.accelerator}" if status.platform else "–",
    )


def _left(status: RunStatus, attended: Attendance, now: float) -> str:
    if status.in_slices:
        return "in slices"
    if old_seconds(status.read_at, now, attended=attended.is_attended) is not None:
        return "–"  # nobody knows whether it has moved since
    left = status.seconds_left if status.forecast is None else status.forecast.end - now
    return "–" if left is None else clock_text(left)


# --- The notes --------------------------------------------------------------------------------------------


def _note(status: RunStatus, attended: Attendance, now: float) -> str:
    if status.unreadable:
        return f"damaged: {status.unreadable}"
    if status.trouble:
        return _whole(status, f"no answer: {status.trouble}")
    if status.failing is not None:
        from orchestrator.cli.story import event_text  # slow to import, and few lists need it

        return _whole(status, event_text(status.failing))
    if status.waits_since is not None:
        from orchestrator.cli.story import waiting_text  # slow to import, and few lists need it

        return waiting_text(status.waits_since)
    if status.stalled_seconds is not None:
        still = status.stalled_seconds
        if attended.is_attended and status.read_at is not None:
            still += max(0.0, now - status.read_at)
        return f"no step for {span(still)}: it stands at step {number_text(status.step)}"
    if status.phase is Phase.QUEUED and status.reason.startswith(ASLEEP):
        return _whole(status, status.reason)
    if status.phase is Phase.QUEUED and status.until is not None and status.until > now:
        return f"waits until {utc_text(status.until)}"
    if status.phase is Phase.DONE and status.step >= status.steps_total:
        return ""
    if status.phase not in (Phase.QUEUED, Phase.HELD, Phase.FAILED, Phase.DONE):  # only these keep a reason
        return ""
    return _whole(status, status.reason)


def _whole(status: RunStatus, reason: str) -> str:
    """The whole of its first line. What follows, such as the end of a log, is for `why`."""
    line, _, more = reason.partition("\n")
    return f"{line} (`orchestrator why {status.run}` has the rest)" if more.strip() else line
