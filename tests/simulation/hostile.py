"""A world in which one run's sessions say what they like: beside it, healthy neighbours that must finish.

What they say goes through the product's own reading and bringing. The platforms are well but for calls that
fail, so that nothing else explains a neighbour that does not finish.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.core.checkpoint import decode
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import AgentStatus, Outcome, Result
from orchestrator.core.session import Observation, Sighting
from orchestrator.platforms import reading
from orchestrator.platforms.outbox import Outbox
from orchestrator.platforms.simulated import Faults, Scenario, SimulatedPlatform
from orchestrator.platforms.simulated.platform import _Session
from tests import hostile
from tests.simulation.draws import HOUR
from tests.simulation.world import World

MILD = Faults(request_lost=0.03, reply_lost=0.03, launch_started_but_failed=0.1, late_visible=0.1)
CALM_HOURS = 12.0


class HostileWorld(World):
    """Its runs are healthy; `villains` are submitted after them, and take slots of the same platforms."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.villains: list[str] = []
        super().__init__(seed, folder)
        self.users.busy = False

    def run(self, calm_seconds: float = CALM_HOURS * HOUR) -> None:
        super().run(calm_seconds)

    @property
    def everybody(self) -> list[str]:
        return [*self.runs, *self.villains]

    def _platform(self, name: str, scenario: Scenario) -> SimulatedPlatform:
        offers = tuple(replace(offer, micro_batch_max=None, slots=2) for offer in scenario.offers)
        mild = replace(scenario, offers=offers, faults=MILD)
        return HostilePlatform(name, mild, self.clock, self.villains, Random(mild.seed))

    def _submit_all(self) -> None:
        super()._submit_all()
        self.villains.append(self._submit(len(self.runs), without_progress=3))


class HostilePlatform(SimulatedPlatform):
    """A simulated platform that brings home what the villains' sessions say instead of what happened."""

    def __init__(
        self, name: str, scenario: Scenario, clock: Clock, villains: list[str], draw: Random
    ) -> None:
        super().__init__(name, scenario, clock)
        self._villains = villains
        self._draw = draw

    def _observation(self, name: str) -> Observation:
        honest = super()._observation(name)
        known = self._sessions.get(name)
        if known is None or not self._is_villain(known) or not honest.incarnations:
            return honest
        draw = self._draw
        seen = honest.incarnations
        if draw.random() < 0.3:
            others = tuple(hostile.incarnation(draw) for _ in range(draw.choice((1, 1, 20))))
            seen = draw.choice((others, (*seen, *others)))
        said = honest.status or AgentStatus(seen[0], 1, self.clock.now(), "training")
        status = reading.status(hostile.status(_fields(said), draw))
        if draw.random() < 0.02 or honest.sighting is Sighting.ENDED:
            marker = honest.result or Result(seen[0], Outcome.COMPLETED, 0, 1, "all steps done")
            lies = reading.ended(seen, status, hostile.result(_fields(marker), draw))
            return lies if draw.random() < 0.8 else replace(lies, sighting=honest.sighting)
        return replace(honest, incarnations=seen, status=status)

    def _is_villain(self, session: _Session) -> bool:
        return session.order is not None and session.order.run in self._villains

    def _outbox(self, session: _Session) -> Outbox:
        honest = super()._outbox(session)
        return HostileOutbox(honest, self._draw) if self._is_villain(session) else honest

    def _bring_files(self, session: _Session, into: Path) -> None:
        super()._bring_files(session, into)
        if self._is_villain(session):
            (into / "progress.jsonl").write_bytes(hostile.progress(self._draw))
            (into / "log" / "000001.log").write_bytes(hostile.log(self._draw))


class HostileOutbox:
    """An honest outbox with forged checkpoints among its own: whole, in part, or of somebody else."""

    def __init__(self, honest: Outbox, draw: Random) -> None:
        self._honest = honest
        self._draw = draw
        self._forged: dict[str, bytes] = {}

    def checkpoints(self) -> Iterable[str]:
        names = list(self._honest.checkpoints())
        for name in names:
            data = self._honest.manifest(name)
            if data is not None and self._draw.random() < 0.5:
                forged, manifest = hostile.checkpoint(decode(name, data), self._draw)
                self._forged[forged] = manifest
        return [*names, *self._forged, *(hostile.text(self._draw) for _ in range(3))]

    def manifest(self, name: str) -> bytes | None:
        return self._forged.get(name) or self._honest.manifest(name)

    def blob(self, sha256: str, target: Path) -> bool:
        if self._draw.random() < 0.05:
            target.write_bytes(self._draw.randbytes(10))
            return True
        return self._honest.blob(sha256, target)


def _fields(value: object) -> dict[str, object]:
    found = json.loads(json.dumps(wire.to_json(value)))
    assert isinstance(found, dict)
    return found


def neighbours_finish(world: World) -> list[str]:
    """Whoever shares a platform with a hostile run is done in the end, and only that."""
    return [
        f"{run} is {world.record(run).phase.value}: {world.record(run).standing_reason}"
        for run in world.runs
        if world.record(run).phase is not Phase.DONE
    ]
