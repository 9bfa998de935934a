"""Processes that train together: none outlives the others or waits for them forever."""

from __future__ import annotations

from pathlib import Path

from tests.training.scripts import finish, started

PAIR = str(Path(__file__).with_name("pair.py"))


def test_a_leader_that_fails_says_why_and_ends_the_others(tmp_path: Path) -> None:
    """The failure must not take the 30 minutes that the other process would wait: the agent must learn that
    memory ran out."""
    with started([PAIR], tmp_path) as process:
        output = finish(process)
    assert process.returncode == 1
    assert "RuntimeError: the planted fault" in output.splitlines()[-1]
