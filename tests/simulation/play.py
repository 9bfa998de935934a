"""One schedule from one seed, played and checked."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.checks import ALL, Check
from tests.simulation.world import CALM_HOURS, World

_MEMORY = Path("/dev/shm")


def play(seed: int, checks: Sequence[Check] = ALL, hours: float = CALM_HOURS) -> list[str]:
    """The violations that the checks find in the world of this seed; empty when all is well.

    `hours` is what runs have to finish in once faults have stopped.
    """
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        world = World(seed, Path(folder))
        try:
            world.run(hours * 3600.0)
            return [f"{check.__name__}: {found}" for check in checks for found in check(world)]
        finally:
            world.ledger.close()
