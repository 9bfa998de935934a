"""What follows when another ledger has adopted a run: it is held here, and nothing more is done for it.

Pure. Nothing is stopped or deleted: a session that still runs keeps its work until a person decides. Must
never know how an adoption is found.
"""

from __future__ import annotations

from orchestrator.core.action import Collect, Failed, Launch, Prepare
from orchestrator.core.closing import closing
from orchestrator.core.draft import Draft
from orchestrator.core.event import Ended, Held, Withdrawn
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Outcome


def superseded(draft: Draft, report: Failed) -> None:
    """Handles the report of an action that was not performed, because the run is another ledger's now."""
    action = report.action
    if not isinstance(action, Prepare | Launch | Collect):
        return  # it asked nothing of the run's future: what comes next will be told the same
    if action.adoptions < draft.record.adoptions:
        return  # this ledger has taken the run back since
    reason = f"{report.message}; {_ways(draft)}"
    match draft.record.phase:
        case Phase.PREPARING:
            draft.emit(Withdrawn(draft.now, reason))
            if draft.record.wish is None:  # else the wish is granted now
                draft.emit(Held(draft.now, reason))
        case Phase.LAUNCHING if isinstance(action, Launch) and draft.session.launched_at is None:
            draft.emit(Ended(draft.now, Outcome.STOPPED, reason, confirmed=True))
            draft.emit(
                Held(draft.now, reason) if draft.record.wish is None else closing(draft.record, draft.now)
            )
        case Phase.COLLECTING if draft.record.wish is Wish.CANCEL:
            draft.emit(closing(draft.record, draft.now))
        case Phase.RUNNING | Phase.STOPPING | Phase.COLLECTING if draft.record.wish is not Wish.CANCEL:
            draft.fault(reason)
        case _:
            return


def _ways(draft: Draft) -> str:
    """What a person can do."""
    run, store = draft.record.run, draft.record.store or "STORE"
    return (
        f"`orchestrator cancel {run}` ends it here; to take it back, stop the controller there, then "
        f"`orchestrator adopt {store} {run}` here"
    )
