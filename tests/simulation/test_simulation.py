"""A fixed share of the simulation. More by hand: `python -m tests.simulation --minutes 20`."""

from __future__ import annotations

import pytest

from tests.simulation.play import play

SHARES, SEEDS_A_SHARE = 8, 10


@pytest.mark.parametrize("share", range(SHARES))
def test_worlds_of_faults(share: int) -> None:
    for seed in range(share * SEEDS_A_SHARE, (share + 1) * SEEDS_A_SHARE):
        assert play(seed) == [], f"to see it again: python -m tests.simulation --seed {seed} --count 1"
