"""A year of schedules, and for CI five days with a clock change. See tests/simulation/year.py."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from orchestrator.core.schedule import FireOutcome
from tests.simulation import checks, fires, play
from tests.simulation.year import SCHEDULES, YearWorld

EVERY = tuple(check for check in (*fires.ALL, *play.ALL) if check is not checks.what_can_finish_does)
BYTES_GROWN_MAX = 1.25  # of the growing run's record, from its second month on


def played(world: YearWorld) -> YearWorld:
    world.run()
    assert [f"{check.__name__}: {found}" for check in EVERY for found in check(world)] == []
    assert world.fenced >= world.handovers - 1
    return world


def outcomes(world: YearWorld, name: str) -> Counter[FireOutcome]:
    counted: Counter[FireOutcome] = Counter()
    for fire in world.fires(name):
        counted[fire.outcome] += fire.count
    return counted


def test_days_with_a_change_of_clocks() -> None:
    """22 to 27 October 2026: 02:30 in Berlin happens twice on the 25th."""
    with play._folder_in_memory() as folder:
        world = played(YearWorld(1, folder, days=5.0, later_days=31.0))
        assert outcomes(world, "daily").total() == 5
        assert outcomes(world, "grows")[FireOutcome.WOKEN] >= 3
        world.ledger.close()


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_a_year() -> None:
    with play._folder_in_memory() as folder:
        world = played(YearWorld(1, folder))
        found = {name: outcomes(world, name) for name, _, _ in SCHEDULES}
        assert found["daily"].total() == 366
        assert found["sunday"].total() == 52
        assert world.handovers > 40
        assert world.grown[-1] < BYTES_GROWN_MAX * max(world.grown[:8]), "the run's record grows for ever"
        assert max(world.held) < 50, "a controller remembers what is over"
        sys.stdout.write(f"{found}, {world.restarts} restarts, {world.handovers} handovers\n")
        world.ledger.close()
