"""A fixed share of the torture. All of it, by hand: `python -m tests.end_to_end.torture --rounds 30`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.torture import VICTIMS, on_processes, torture


@pytest.mark.timeout(1800)
def test_kill_9_at_random_moments_changes_no_bit(tmp_path: Path) -> None:
    killed = torture(1, seed=0, folder=tmp_path, arena=on_processes(tmp_path))
    assert sum(killed.values()) >= 2


@pytest.mark.soak
def test_thirty_rounds_kill_every_kind_of_victim(tmp_path: Path) -> None:
    killed = torture(30, seed=1, folder=tmp_path, arena=on_processes(tmp_path))
    assert all(killed[role] for role in VICTIMS)
