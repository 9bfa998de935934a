"""Processes that train together: none outlives the other, nor waits for it for ever."""

from __future__ import annotations

from pathlib import Path

from tests.training.scripts import finish, started

PAIR = str(Path(__file__).with_name("pair.py"))


def test_a_leader_that_fails_says_why_and_ends_the_others(tmp_path: Path) -> None:
    """Not after the 30 minutes that the other would wait for it: the agent must hear of a full memory."""
    with started([PAIR], tmp_path) as process:
        output = finish(process)
    assert process.returncode == 1
    assert "RuntimeError: the planted fault" in output.splitlines()[-1]
