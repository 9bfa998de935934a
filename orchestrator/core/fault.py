"""Holds a run for a person in the phase it is in: record × reason → Decision.

Pure. The run keeps everything: nothing is stopped or deleted, and its session goes on. Must never look at
what went wrong, because decide itself may have failed on it.
"""

from __future__ import annotations

from orchestrator.core.draft import Decision, Draft, Inputs
from orchestrator.core.event import Cancelled
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.run import RunRecord

_NOTHING_LAUNCHED = frozenset({Phase.QUEUED, Phase.HELD})


def faulted(record: RunRecord, reason: str, now: float, missing: tuple[str, ...] = ()) -> Decision:
    """Holds the run in its phase. `missing`: what the config lacks, if that is the reason.

    A run that its user cancelled, and that has nothing on any platform, is cancelled instead.
    """
    draft = Draft(record, Inputs(now))
    if record.phase.final:  # nobody could release it, and its remains must still be cleaned up
        return Decision(record, (), ())
    if record.wish is Wish.CANCEL and record.phase in _NOTHING_LAUNCHED:
        draft.emit(Cancelled(now, "cancelled"))
    else:
        draft.fault(reason, missing)
    return Decision(draft.record, tuple(draft.events), ())
