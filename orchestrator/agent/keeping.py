"""Takes what the command left for people into the outbox, once it has ended, as long as there is time.

Decides which sessions keep what; `gathering` finds the files, and the outbox stores them. A file that cannot
be kept costs a warning and nothing else.
"""

from __future__ import annotations

import threading
from collections import deque

from orchestrator.agent import gathering
from orchestrator.agent.gathering import Gathered
from orchestrator.agent.monitor import Monitor
from orchestrator.core import notebook
from orchestrator.core.order import Outcome, Result
from orchestrator.session.committing import Unfit

_NAMED_MAX = 3
# The others go on elsewhere, from their checkpoints.
_OVER = frozenset({
    Outcome.COMPLETED, Outcome.CRASHED, Outcome.STALLED, Outcome.OUT_OF_MEMORY, Outcome.DIVERGED,
})  # fmt: skip


def keep(monitor: Monitor, result: Result) -> None:
    """Call it after `Monitor.conclude`."""
    gathered = _gathered(monitor, result)
    if gathered is None or monitor.committer.is_alive():
        return
    over, notes = threading.Event(), deque[str]()
    step = max(monitor.progress.step or 0, result.step or 0, monitor.order.resume_step)
    thread = threading.Thread(
        target=_keep, args=(monitor, gathered, step, over, notes), name="outputs", daemon=True
    )
    thread.start()
    while thread.is_alive():
        monitor.report.beat("keeping outputs")
        if monitor.out_of_budget():
            over.set()
        thread.join(monitor.settings.tick)
    for note in notes:
        monitor.warn(note)


def _gathered(monitor: Monitor, result: Result) -> Gathered | None:
    """The outputs that the job names, or else what a session that failed or was the last one left. The
    executed copy of a notebook is always among them, unless the job wants no outputs."""
    source, asked = monitor.folder.source, monitor.order.outputs
    ran = notebook.of_command(monitor.order.command, shell=monitor.order.shell)
    executed = () if ran is None else (notebook.executed_copy(ran),)
    if asked is not None:
        return gathering.asked_for(source, (*asked, *executed)) if asked else None
    if result.outcome not in _OVER:
        return gathering.asked_for(source, executed) if executed else None
    return gathering.unasked(source, monitor.folder.checkpoints, monitor.before, monitor.is_saved)


def _keep(monitor: Monitor, gathered: Gathered, step: int, over: threading.Event, notes: deque[str]) -> None:
    files = [(each.root, each.name, each.path) for each in gathered.files]
    try:
        kept, left = monitor.outbox.keep(step, files, lambda: not over.is_set())
    except (OSError, Unfit) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        notes.append(f"the outputs could not be kept: {why}")
        return
    if kept is not None:
        monitor.log.say(
            f"kept {len(kept.files)} output{'' if len(kept.files) == 1 else 's'}, {kept.size / 1e6:.1f} MB"
        )
    if gathered.left:
        notes.append(gathered.left)
    if left:
        more = f" and {len(left) - _NAMED_MAX} more" if len(left) > _NAMED_MAX else ""
        notes.append(f"not kept of the outputs: {'; '.join(left[-_NAMED_MAX:])}{more}")
