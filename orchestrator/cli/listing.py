"""`ps`: the runs, each in a line. Starts fast: reads the ledger's columns and the newest readings only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli import live
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.live import Live, Progress
from orchestrator.cli.output import clock_text, number_text
from orchestrator.clock import utc_text
from orchestrator.core.lifecycle import FINAL, Phase

if TYPE_CHECKING:
    from orchestrator.ledger import RunSummary

REASON_CHARACTERS = 80


def ps(call: Call) -> int:
    """Lists the runs that are not over, with --all every run; newest first."""
    phases = None if call.options.all else [phase for phase in Phase if phase not in FINAL]
    ledger = call.home.existing_ledger()
    found: tuple[RunSummary, ...] = ()
    hidden = False
    if ledger is not None:
        with ledger:
            found = ledger.summaries(phases)
            hidden = not found and phases is not None and bool(ledger.summaries(limit=1))
    readings = {summary.run: _reading(call, summary) for summary in found}
    rows = [(each, live.progress(each.steps_total, each.accepted_step, readings[each.run])) for each in found]
    now = call.clock.now()
    call.out.document({"runs": [
        {**vars(summary), "step": progress.step, "steps_per_second": progress.steps_per_second,
         "loss": progress.loss, "seconds_left": progress.seconds_left,
         "trouble": _trouble(readings[summary.run])}
        for summary, progress in rows
    ]})  # fmt: skip
    if not rows:
        more = f"; `{call.command('ps', '--all')}` also lists those that are over" if hidden else ""
        call.out.say(f"no run is under way{more}" if hidden else "there are no runs yet")
        return Exit.OK
    headers = ("RUN", "PHASE", "STEP", "", "STEPS/S", "LOSS", "LEFT", "WHERE", "NOTE")
    call.out.table(
        headers,
        [_row(*row, _note(row[0], readings[row[0].run], now)) for row in rows],
        right=frozenset({2, 3, 4, 5, 6}),
    )
    return Exit.OK


def _reading(call: Call, summary: RunSummary) -> Live | None:
    if summary.phase not in (Phase.RUNNING, Phase.STOPPING):
        return None
    return live.read(call.home.folders, summary.run, summary.session)


def _trouble(reading: Live | None) -> str | None:
    return reading.trouble or None if reading is not None else None


def _row(summary: RunSummary, progress: Progress, note: str) -> tuple[str, ...]:
    where = f"{summary.platform}/{summary.accelerator}" if summary.platform else "–"
    return (
        summary.run,
        summary.phase.value,
        f"{progress.step:,}/{progress.total:,}",
        f"{progress.share:.0%}",
        number_text(progress.steps_per_second),
        number_text(progress.loss),
        "–" if progress.seconds_left is None else clock_text(progress.seconds_left),
        where,
        note,
    )


def _note(summary: RunSummary, reading: Live | None, now: float) -> str:
    if (trouble := _trouble(reading)) is not None:
        return _short(f"no answer: {trouble}")
    if summary.phase is Phase.QUEUED and summary.until is not None and summary.until > now:
        return f"waits until {utc_text(summary.until)}"
    if summary.phase not in (Phase.QUEUED, Phase.HELD, Phase.FAILED):  # else it is why it was put there
        return ""
    return _short(summary.reason)


def _short(reason: str) -> str:
    line = reason.partition("\n")[0]
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 1] + "…"
