"""Every decision of every world can be made again from the journal alone, with the same result.

It is proved by a planted bug: tests/simulation/test_planted_bugs.py.
"""

from __future__ import annotations

from orchestrator.core.replay import Answer, replay
from tests.simulation.world import World


def decisions_can_be_made_again(world: World) -> list[str]:
    """The journalled inputs of each decision are complete: no clock, memory or luck beside them decided."""
    found = []
    for run in world.everybody:
        for step in replay(world.ledger.history(run)):
            if step.answer in (Answer.DIFFERS, Answer.UNJUDGED):
                said = step.reason or "; ".join(step.differences)
                found.append(f"{run}, events {step.first} to {step.last}: {said}")
    return found


ALL = (decisions_can_be_made_again,)
