"""The lifecycle's table and the fold of events over it."""

from __future__ import annotations

import pytest

from orchestrator.core.lifecycle import EVERYWHERE, TABLE, IllegalTransition, Kind, Phase, successor


def test_every_phase_has_a_row_and_every_row_leads_to_a_phase() -> None:
    assert set(TABLE) == set(Phase)
    assert all(after in Phase for row in TABLE.values() for after in row.values())


def test_every_phase_is_reached_from_the_first_and_leads_to_a_final_one() -> None:
    def reachable(start: Phase) -> set[Phase]:
        seen, todo = {start}, [start]
        while todo:
            for after in TABLE[todo.pop()].values():
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        return seen

    assert reachable(Phase.QUEUED) == set(Phase)
    for phase in Phase:
        assert any(after.final for after in reachable(phase))


def test_a_cancelled_run_is_left_by_nothing() -> None:
    assert set(TABLE[Phase.CANCELLED]) == set(EVERYWHERE)
    assert set(TABLE[Phase.CANCELLED].values()) == {Phase.CANCELLED}


def test_a_run_that_is_done_is_left_only_for_its_schedule() -> None:
    assert set(TABLE[Phase.DONE]) == {Kind.WOKEN, *EVERYWHERE}
    assert TABLE[Phase.DONE][Kind.WOKEN] is Phase.QUEUED


def test_a_failed_run_is_left_only_by_its_release() -> None:
    assert {kind: after for kind, after in TABLE[Phase.FAILED].items() if after is not Phase.FAILED} == {
        Kind.RELEASED: Phase.QUEUED
    }


def test_what_has_no_row_is_a_bug() -> None:
    with pytest.raises(IllegalTransition, match=r"'started' cannot happen to a run that is 'done'"):
        successor(Phase.DONE, Kind.STARTED)


def test_every_kind_of_event_appears_in_the_table() -> None:
    assert {kind for row in TABLE.values() for kind in row} == set(Kind)
