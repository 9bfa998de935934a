"""How long an agent's checkpoints have waited for the uplink."""

from __future__ import annotations

from orchestrator.agent.backlog import Backlog


def test_a_shipped_step_covers_every_step_before_it() -> None:
    backlog = Backlog()
    assert backlog.seconds(5.0, 5.0) == 0.0
    for step, at in ((10, 100.0), (20, 200.0), (30, 300.0)):
        backlog.committed(step, at)
    assert backlog.seconds(310.0, 310.0) == 210.0
    backlog.shipped(20)
    assert backlog.seconds(310.0, 310.0) == 10.0
    backlog.shipped(30)
    assert backlog.seconds(400.0, 400.0) == 0.0


def test_a_word_that_comes_late_or_twice_changes_nothing() -> None:
    backlog = Backlog()
    backlog.committed(10, 100.0)
    backlog.shipped(10)
    backlog.committed(10, 150.0)
    backlog.shipped(5)
    assert backlog.seconds(500.0, 500.0) == 0.0


def test_a_store_that_was_never_reached_has_nothing_for_certain() -> None:
    assert Backlog().seconds(100.0, None) is None


def test_a_store_that_is_away_counts_from_its_last_answer() -> None:
    """Also if nothing was committed since: the uplink may be dead."""
    backlog = Backlog()
    assert backlog.seconds(5000.0, 1000.0) == 4000.0
    backlog.committed(10, 500.0)
    assert backlog.seconds(5000.0, 1000.0) == 4500.0
