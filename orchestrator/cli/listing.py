"""`ps`: the runs, each in a line. Starts fast: reads the ledger's columns and the newest readings only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli import health
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import clock_text, number_text
from orchestrator.client import live
from orchestrator.client.live import Live, Progress
from orchestrator.clock import utc_text
from orchestrator.core.lifecycle import FINAL, Phase

if TYPE_CHECKING:
    from orchestrator.ledger import RunSummary
    from orchestrator.ledger.takeover import Owner

REASON_CHARACTERS = 80
LAUNCHED = frozenset({Phase.LAUNCHING, Phase.RUNNING, Phase.STOPPING})
AT_REST = FINAL | {Phase.HELD}  # no controller needs to run


def ps(call: Call) -> int:
    """Lists the runs that are not over, with --all every run; newest first."""
    phases = None if call.options.all else [phase for phase in Phase if phase not in FINAL]
    ledger = call.home.existing_ledger()
    found: tuple[RunSummary, ...] = ()
    hidden = False
    owner: Owner | None = None
    if ledger is not None:
        with ledger:
            found = ledger.summaries(phases)
            owner = ledger.owner()
            hidden = not found and phases is not None and bool(ledger.summaries(limit=1))
    looks = [_look(call, summary) for summary in found]
    call.out.document({"runs": [
        {**vars(summary), "phase": None if summary.unreadable else summary.phase,
         "step": progress.step, "steps_per_second": progress.steps_per_second, "loss": progress.loss,
         "seconds_left": progress.seconds_left, "trouble": reading.trouble or None if reading else None,
         "waits_since": reading.waits_since if reading else None,
         "unreadable": summary.unreadable or None}
        for summary, progress, reading in looks
    ]})  # fmt: skip
    if not looks:
        more = f"; `{call.command('ps', '--all')}` also lists those that are over" if hidden else ""
        call.out.say(f"no run is under way{more}" if hidden else "there are no runs yet")
        return Exit.OK
    headers = ("RUN", "PHASE", "STEP", "", "STEPS/S", "LOSS", "LEFT", "WHERE", "NOTE")
    now = call.clock.now()
    rows = [_row(summary, progress, _note(summary, reading, now)) for summary, progress, reading in looks]
    call.out.table(headers, rows, right=frozenset({2, 3, 4, 5, 6}))
    if any(summary.phase not in AT_REST for summary in found):
        health.tell_absence(call, owner)
    return Exit.OK


def _look(call: Call, summary: RunSummary) -> tuple[RunSummary, Progress, Live | None]:
    """The run, how far it is, and what was seen of its session last."""
    reading = None
    if summary.phase in LAUNCHED:
        reading = live.read(call.home.folders, summary.run, summary.session)
    progress = live.progress(summary.steps_total, summary.accepted_step, reading)
    return summary, progress, reading


def _row(summary: RunSummary, progress: Progress, note: str) -> tuple[str, ...]:
    where = f"{summary.platform}/{summary.accelerator}" if summary.platform else "–"
    return (
        summary.run,
        "unreadable" if summary.unreadable else summary.phase.value,
        f"{progress.step:,}/{progress.total:,}",
        f"{progress.share:.0%}",
        number_text(progress.steps_per_second),
        number_text(progress.loss),
        "–" if progress.seconds_left is None else clock_text(progress.seconds_left),
        where,
        note,
    )


def _note(summary: RunSummary, reading: Live | None, now: float) -> str:
    if summary.unreadable:
        return _short(summary.unreadable)
    if reading is not None and reading.trouble:
        return _short(f"no answer: {reading.trouble}")
    if reading is not None and reading.waiting:
        return reading.waiting
    if summary.phase is Phase.QUEUED and summary.until is not None and summary.until > now:
        return f"waits until {utc_text(summary.until)}"
    if summary.phase not in (Phase.QUEUED, Phase.HELD, Phase.FAILED):  # else it is why it was put there
        return ""
    return _short(summary.reason)


def _short(reason: str) -> str:
    line = reason.partition("\n")[0]
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 1] + "…"
