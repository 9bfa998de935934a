"""A controller that runs for a year: what it keeps in memory does not grow with the runs that are over.

Counts what its long-lived objects hold after some nights, and again after many more. Bytes would also count
what the interpreter itself keeps; entries do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.core.lifecycle import Phase
from orchestrator.engine.engine import Engine
from orchestrator.engine.losses import Losses
from orchestrator.engine.market import Market
from orchestrator.ledger import LedgerReader
from orchestrator.ledger.measured import JOBS_MAX
from tests.test_engine import Small, scenario

DAY = 86_400.0
COUNTED = (Engine, Market, Losses, LedgerReader)
BOUNDED = {"_measured": JOBS_MAX, "_lifetimes": 1}  # these may grow, up to so many


def entries(thing: object, path: str = "engine") -> dict[str, int]:
    """The path of each collection that one of our objects holds → its length."""
    found: dict[str, int] = {}
    for name, value in vars(thing).items():
        where = f"{path}.{name}"
        if isinstance(value, Mapping | set | frozenset | list | tuple):
            found[where] = len(value)
        elif isinstance(value, COUNTED):
            found |= entries(value, where)
    return found


def spend_nights(world: Small, nights: range) -> dict[str, int]:
    """Each night two runs are submitted and done; afterwards the controller idles until the next."""
    for night in nights:
        runs = [f"nightly-{night:04d}-{number}" for number in range(2)]
        ends = world.clock.now() + DAY
        for run in runs:
            world.submit(run)
        for run in runs:
            assert world.until(world.phase(run, Phase.DONE)), run
        world.clock.advance(ends - world.clock.now())
        for _ in range(5):  # surveys, clean-ups
            world.engine.tick()
            world.clock.advance(60.0)
    return entries(world.engine)


def check_that_nothing_grows(world: Small, nights: int) -> None:
    early = spend_nights(world, range(3))
    late = spend_nights(world, range(3, nights))
    assert len(early) > 15, "it looked into the engine, the market and the ledger"
    for where, count in late.items():
        limit = BOUNDED.get(where.rpartition(".")[2], early.get(where, 0))
        assert count <= limit, f"{where} grew from {early.get(where, 0)} to {count}"


@pytest.mark.soak
def test_memory_does_not_grow_with_the_runs_that_are_over(tmp_path: Path) -> None:
    check_that_nothing_grows(Small(tmp_path, box=scenario(slots=1)), nights=10)


@pytest.mark.soak
def test_memory_does_not_grow_in_a_year(tmp_path: Path) -> None:
    check_that_nothing_grows(Small(tmp_path, box=scenario(slots=1)), nights=365)
