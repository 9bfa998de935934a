"""A world in which sessions run past their limits, and impatient users ask that their runs go on.

No session ships: its work comes home at its end, and until then only the platform says whether it runs.
Agents hang, and their platforms end the sessions far too late. Users release such runs again and again, but
rarely agree to lose anything. Meanwhile there is room for a second session.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.core.offer import Uplink
from orchestrator.platforms.simulated import Scenario, SimulatedPlatform
from tests.simulation.draws import ABSENCE_SECONDS, SAVING_SECONDS_MAX
from tests.simulation.world import World


class OverlongWorld(World):
    """See the module."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.clock_jumps = self.users.busy = False
        self.users.impatience = 0.1

    def _platform(self, name: str, scenario: Scenario) -> SimulatedPlatform:
        hangs = replace(scenario.faults, wedged=0.5, stuck_output=0.0)
        overlong = replace(
            scenario,
            faults=hangs,
            offers=tuple(replace(offer, slots=2, session_seconds=600.0) for offer in scenario.offers),
            uplink=Uplink.NONE,
            queue_seconds=0.0,
            absence_seconds=ABSENCE_SECONDS,
            saving_seconds_max=SAVING_SECONDS_MAX,
        )
        return super()._platform(name, overlong)
