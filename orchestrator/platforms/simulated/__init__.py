"""A platform in memory, with scripted and seeded faults, on the clock that it is given."""

from orchestrator.platforms.simulated.agent import expected_state
from orchestrator.platforms.simulated.history import History, Launch, Lifetime, Written
from orchestrator.platforms.simulated.platform import SimulatedPlatform
from orchestrator.platforms.simulated.scenario import Faults, QuotaWindow, Scenario, SimulatedOffer

__all__ = [
    "Faults",
    "History",
    "Launch",
    "Lifetime",
    "QuotaWindow",
    "Scenario",
    "SimulatedOffer",
    "SimulatedPlatform",
    "Written",
    "expected_state",
]
