"""What follows when the checkpoint to resume is gone from the home store, damaged, or not the accepted one.

Pure. The run resumes from the newest checkpoint that is whole, or starts over if there is none. If the whole
store is in doubt, because it is empty, the run is held once and keeps its checkpoints: the disk may come
back. After a release the run may start over. It never does beside newer checkpoints that this ledger never
heard of: another copy of the ledger accepted them. Knows nothing about stores.
"""

from __future__ import annotations

from orchestrator.core.action import Failed
from orchestrator.core.assign import fall_back
from orchestrator.core.checkpoint import Accepted, newest
from orchestrator.core.draft import Draft
from orchestrator.core.event import CheckpointCorrupt, Held, Withdrawn

GONE = "it is gone from the home store"


def lost_resume(draft: Draft, report: Failed) -> None:
    """Handles the report of a prepare that could not read the checkpoint to resume."""
    accepted = draft.record.accepted
    others = [c for c in accepted if c.name != report.checkpoint]
    left = newest(c for c in others if report.left is None or c.name in report.left)
    if left is None and (report.unknown or (report.doubtful and not draft.record.start_over)):
        _hold(draft, report)
        return
    order = fall_back(draft.session.order, left)
    assert report.checkpoint is not None
    for each in accepted if left is None else _beyond(accepted, left):
        reason = report.message if each.name == report.checkpoint else GONE
        draft.emit(CheckpointCorrupt(draft.now, each.name, reason, order))
    if left is None:
        draft.note(
            "no accepted checkpoint could be read from the home store; the run starts over from step 0"
        )


def _beyond(accepted: tuple[Accepted, ...], left: Accepted) -> list[Accepted]:
    """The checkpoints that a resume would have preferred to `left`."""
    return [c for c in accepted if newest((c, left)) is not left]


def _hold(draft: Draft, report: Failed) -> None:
    count = len(draft.record.accepted)
    which = "the run's only checkpoint" if count == 1 else f"none of the run's {count} checkpoints"
    cannot = "cannot" if count == 1 else "can"
    then = (
        "Bring the store back, then release the run. If you release it without the store, it starts over "
        "from step 0"
    )
    if report.unknown:
        then = "`orchestrator adopt --take-over` goes on from the newest checkpoint in the store"
    reason = f"{which} {cannot} be read from the home store ({report.checkpoint}: {report.message}). {then}"
    draft.emit(Withdrawn(draft.now, reason))
    if draft.record.wish is None:  # a hold must not replace a cancel that was asked for
        draft.emit(Held(draft.now, reason, start_over=not report.unknown))
