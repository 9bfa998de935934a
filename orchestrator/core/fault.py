"""A run's fault: why it waits for a person where it stands. Record × reason → Decision.

Pure. The run keeps all it has; what runs goes on running, nothing is stopped or deleted.
Must never look at what was met: it is what decide could not do.
"""

from __future__ import annotations

from orchestrator.core.draft import Decision, Draft, Inputs
from orchestrator.core.event import Cancelled, Wish
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord

_NOTHING_LAUNCHED = frozenset({Phase.QUEUED, Phase.HELD})


def faulted(record: RunRecord, reason: str, now: float, missing: tuple[str, ...] = ()) -> Decision:
    """Holds the run where it stands, for want of what is `missing` in the config, if that is why. One that
    its user has cancelled, and that has nothing anywhere, is cancelled: nothing keeps a run that
    nobody wants."""
    draft = Draft(record, Inputs(now))
    if record.phase.final:  # no person could release it: what is left of it is still to be cleaned up
        return Decision(record, (), ())
    if record.wish is Wish.CANCEL and record.phase in _NOTHING_LAUNCHED:
        draft.emit(Cancelled(now, "cancelled"))
    else:
        draft.fault(reason, missing)
    return Decision(draft.record, tuple(draft.events), ())
