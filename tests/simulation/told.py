"""Whether everybody is told what happened: each event in the ledger has its notification, once.

Each check is proved by a planted bug: tests/simulation/test_planted_bugs.py.
"""

from __future__ import annotations

from collections import Counter

from orchestrator.core.delivery import State
from orchestrator.core.event import Began, Deferred, Event, Started, Submitted
from orchestrator.core.job import NoticeKind
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord, apply, submit
from tests.simulation.checks import Check
from tests.simulation.world import TARGETS, World

_ENDS = {Phase.DONE: NoticeKind.DONE, Phase.FAILED: NoticeKind.FAILED, Phase.CANCELLED: NoticeKind.CANCELLED}


def each_event_is_told_once(world: World) -> list[str]:
    """Every end, hold and move of a run has one row for each target that wants it, despite all kills."""
    rows = world.ledger.notifications.rows(State)
    told = Counter((row.run, row.target, row.kind) for row in rows)
    wanted: Counter[tuple[str, str, str]] = Counter()
    for run in world.everybody:
        for kind in _happened(world, run):
            wanted.update((run, target.name, kind.value) for target in TARGETS if kind in target.on)
    return [
        f"{each[0]}: {each[2]} happened {wanted[each]} times, and {each[1]} is told {told[each]}"
        for each in sorted(told | wanted)
        if told[each] != wanted[each]
    ]


def _happened(world: World, run: str) -> list[NoticeKind]:
    found: list[NoticeKind] = []
    record: RunRecord | None = None
    place: tuple[str, str] | None = None
    for item in world.ledger.history(run):
        if isinstance(item.event, Submitted):
            record = submit(item.event)
            continue
        assert record is not None
        before, record = record, apply(record, item.event)
        found += _changed(before, record, item.event)
        if isinstance(item.event, Began | Started) and record.session is not None:
            here = (record.session.order.platform, record.session.order.accelerator)
            found += [NoticeKind.MOVED] if place not in (None, here) else []
            place = here
    return found


def _changed(before: RunRecord, after: RunRecord, event: Event) -> list[NoticeKind]:
    if before.standing is not after.standing:
        if after.standing is Phase.HELD:
            return [NoticeKind.HELD]
        if after.standing.final and not before.phase.final:
            return [_ENDS[after.standing]]
    if isinstance(event, Deferred) and event.start and not (before.deferred and before.start == event.start):
        return [NoticeKind.WAITING]
    return []


ALL: tuple[Check, ...] = (each_event_is_told_once,)
