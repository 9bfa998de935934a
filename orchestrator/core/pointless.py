"""What a schedule says without any effect: recurrence × its fires × offers → warnings.

Pure, and knows no time zone. What would do harm is refused where the job is read; this is only in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.core.fit import fit_on
from orchestrator.core.job import CatchUp, Job, Mode, Overlap, Recurrence
from orchestrator.core.offer import Offer
from orchestrator.core.schedule import Planned
from orchestrator.core.slices import SESSION_SECONDS_MIN, needed_seconds
from orchestrator.core.wording import span

FIRES = 14  # looked at: a line that differs by weekday has each of them
DAY_SECONDS = 86400.0


def pointless(job: Job, fires: Sequence[Planned], offers: Iterable[Offer]) -> tuple[str, ...]:
    """Warnings, in sentences. `fires`: the next FIRES ones. `offers`: also those that are closed now."""
    if job.schedule is None:
        return ()
    found = (_overlap(job.schedule), _catch_up(job.schedule), _too_small(job, job.schedule, fires, offers))
    return tuple(each for each in found if each)


def _overlap(given: Recurrence) -> str:
    if given.mode is Mode.FRESH or given.overlap is Overlap.SKIP:
        return ""
    return (
        f"schedule.overlap: {given.overlap.value} has no effect with mode: continue, whose one run goes on "
        "with each fire"
    )


def _catch_up(given: Recurrence) -> str:
    if given.catch_up is not CatchUp.ALL:
        return ""
    if given.mode is Mode.CONTINUE:
        return "schedule.catch_up: all is as one with mode: continue, because several missed slices are one"
    if given.overlap is Overlap.QUEUE:
        return ""
    why = (
        "the others are skipped while its run is under way"
        if given.overlap is Overlap.SKIP
        else "each would replace the run of the one before"
    )
    return (
        f"schedule.catch_up: all makes up for one fire only with overlap: {given.overlap.value}, because "
        f"{why}; overlap: queue makes up for each"
    )


def _too_small(job: Job, given: Recurrence, fires: Sequence[Planned], offers: Iterable[Offer]) -> str:
    """A window that never has room for a session."""
    window = given.window
    if window is None or not fires:
        return ""
    longest = max(0.0 if each.closes is None else each.closes - each.at for each in fires)
    if given.mode is Mode.FRESH:  # its run goes on when the window opens next
        whole = (window.closes - window.opens) * 60.0 % DAY_SECONDS or DAY_SECONDS
        longest = max(longest, whole)
    fit = [each for each in offers if not isinstance(fit_on(job, each, {}), str)]
    best = min(fit, key=needed_seconds, default=None)
    needed = SESSION_SECONDS_MIN if best is None else needed_seconds(best)
    if longest > needed:  # a fire takes a moment
        return ""
    where = "anywhere" if best is None else f"on {best.platform}/{best.accelerator}"
    left = f"at most {span(longest)} of its window" + (
        " are left when it fires" if given.mode is Mode.CONTINUE else ""
    )
    return (
        f"this schedule will never train: {left}, and set-up, some training and a save take at least "
        f"{span(needed)} {where}. Widen schedule.window, or let it fire nearer to the window's opening"
    )
