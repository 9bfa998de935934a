"""A world in which every session ships, and no platform can read one that runs: the store alone hears it.

A stop reaches such a session only through the fence. Its uplink is away for hours, often from the start, so
that its work comes home at its end, late, or is lost if somebody ends it before. Sessions and runs are
long enough for that.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.core.job import Work
from orchestrator.platforms.simulated import Scenario
from tests.simulation import world
from tests.simulation.draws import HOUR, SAVING_SECONDS_MAX
from tests.simulation.shipping import ShippingWorld

CALM_HOURS = world.CALM_HOURS + 72.0  # for so long a store is asked for what it does not have


class UnreadableWorld(ShippingWorld):
    """See the module. Its users often cancel and hold."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.users.busy = True

    def _placed(self, scenario: Scenario, draw: Random) -> Scenario:
        faults = replace(
            scenario.faults,
            uplink_cut=draw.choice((0.3, 0.9)),
            uplink_cut_seconds=draw.choice((1800.0, 3 * HOUR)),
            late_output=draw.choice((0.0, 0.7)),
            late_output_seconds=300.0,
            stuck_output=0.0,
        )
        seconds = draw.choice((1200.0, 2400.0, 3 * HOUR))
        return replace(
            scenario,
            faults=faults,
            offers=tuple(replace(offer, session_seconds=seconds) for offer in scenario.offers),
            readable_mid_run=False,
            speaks=draw.random() < 0.5,
            saving_seconds_max=SAVING_SECONDS_MAX,
            grace_seconds=300.0,
        )

    def _submit(self, number: int, **changes: Any) -> str:
        work = Work(total=self.random.choice((600, 1500, 6000)), global_batch=16)
        return super()._submit(number, work=work, **changes)
