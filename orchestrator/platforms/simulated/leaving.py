"""How late a simulated platform without an uplink shows what an ended session left, and in which order.

Values and draws. Knows no session.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from orchestrator.core.session import Sighting
from orchestrator.platforms.simulated.scenario import Faults


@dataclass(frozen=True)
class Leaving:
    """Seconds after a session's end; infinity: only a person can make it appear.

    Until `running` it still counts as running, until `listed` none of its output is there, and until `whole`
    some of its blobs cannot be downloaded.
    """

    running: float = 0.0
    listed: float = 0.0
    whole: float = 0.0

    def sighting(self, seconds: float) -> Sighting:
        """What the platform says so long after the end."""
        if seconds < self.running:
            return Sighting.RUNNING
        return Sighting.SAVING if seconds < self.listed else Sighting.ENDED


def draw_leaving(faults: Faults, random: Random) -> Leaving:
    """How one session is going to be shown after its end."""
    running = random.random() * faults.running_on_seconds if random.random() < faults.running_on else 0.0
    listed = whole = running
    if random.random() < faults.late_output:
        listed += random.random() * faults.late_output_seconds
        whole = listed
    if random.random() < faults.partial_output:
        whole += random.random() * faults.late_output_seconds
    if random.random() < faults.stuck_output:
        whole = math.inf
        listed = random.choice((listed, math.inf))
    return Leaving(running, listed, whole)
