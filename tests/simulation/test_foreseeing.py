"""Forecasts in the simulation: the real engine and router, in virtual time, against what then happened."""

from __future__ import annotations

import math
from pathlib import Path

from orchestrator.core.lifecycle import Phase
from tests.simulation.calm import CalmWorld

SEEDS = 5


def test_the_ends_that_were_told_are_those_that_came(tmp_path: Path) -> None:
    """Of runs that had trained for two minutes: within 15 %. Of runs that waited, whose speed was known from
    a claim alone: their range."""
    errors, holds, queued = [], [], []
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = CalmWorld(seed, folder)
        world.run()
        for run in world.runs:
            record = world.record(run)
            assert record.phase is Phase.DONE, (seed, run, record.standing_reason)
            assert record.ended_at is not None
            if run in world.told:
                told = world.told[run]
                errors.append(abs(told.end - record.ended_at) / (record.ended_at - record.submitted_at))
                holds.append(told.low <= record.ended_at <= (told.high or math.inf))
            if run in world.queued:
                told = world.queued[run]
                queued.append(told.low <= record.ended_at <= (told.high or math.inf))
        world.ledger.close()
    assert len(errors) >= SEEDS
    assert sum(error <= 0.15 for error in errors) / len(errors) >= 0.9, sorted(errors)
    assert sum(holds) / len(holds) >= 0.8
    assert sum(queued) >= 0.8 * len(queued)
