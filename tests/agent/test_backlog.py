"""How long an agent's checkpoints have waited for the uplink."""

from __future__ import annotations

from orchestrator.agent.backlog import Backlog


def test_a_shipped_step_covers_every_step_before_it() -> None:
    backlog = Backlog()
    assert backlog.seconds(5.0) == 0.0
    for step, at in ((10, 100.0), (20, 200.0), (30, 300.0)):
        backlog.committed(step, at)
    assert backlog.seconds(310.0) == 210.0
    backlog.shipped(20)
    assert backlog.seconds(310.0) == 10.0
    backlog.shipped(30)
    assert backlog.seconds(400.0) == 0.0


def test_a_word_that_comes_late_or_twice_changes_nothing() -> None:
    backlog = Backlog()
    backlog.committed(10, 100.0)
    backlog.shipped(10)
    backlog.committed(10, 150.0)
    backlog.shipped(5)
    assert backlog.seconds(500.0) == 0.0
