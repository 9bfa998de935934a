"""A world with one hostile run, whose sessions report anything, and healthy runs that must finish.

The reports go through the product's own reading and fetching. The platforms only have failing calls, so
nothing else explains a healthy run that does not finish.
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
from orchestrator.platforms.simulated import Faults, Scenario, SimulatedPlatform
from orchestrator.platforms.simulated.outbox import SimulatedOutbox
from orchestrator.platforms.simulated.platform import _Session
from orchestrator.platforms.simulated.uplink import Uplinks
from orchestrator.session.layout import INCARNATION, LOG, PROGRESS, STATUS
from orchestrator.session.outbox import Growth, Outbox
from tests import hostile
from tests.simulation.draws import HOUR
from tests.simulation.world import World

MILD = Faults(request_lost=0.03, reply_lost=0.03, launch_started_but_failed=0.1, late_visible=0.1)
CALM_HOURS = 12.0


class HostileWorld(World):
    """Its runs are healthy; `villains` are submitted after them and take slots of the same platforms."""

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
        return HostilePlatform(name, mild, self.clock, self._uplink, self.villains, Random(mild.seed))

    def _submit_all(self) -> None:
        super()._submit_all()
        self.villains.append(self._submit(len(self.runs), without_progress=3))


class HostilePlatform(SimulatedPlatform):
    """A simulated platform that fetches hostile bytes for the villains' sessions instead of the true ones."""

    def __init__(
        self, name: str, scenario: Scenario, clock: Clock, uplinks: Uplinks, villains: list[str], draw: Random
    ) -> None:
        super().__init__(name, scenario, clock, uplinks)
        self._villains = villains
        self._draw = draw

    def _is_villain(self, session: _Session) -> bool:
        return session.order is not None and session.order.run in self._villains

    def _outbox(self, session: _Session) -> Outbox:
        return self._lying(session, super()._outbox(session))

    def _local(self, session: _Session, outbox: SimulatedOutbox) -> Outbox:
        return self._lying(session, super()._local(session, outbox))

    def _lying(self, session: _Session, honest: Outbox) -> Outbox:
        return HostileOutbox(honest, self._draw, self.clock) if self._is_villain(session) else honest


class HostileOutbox:
    """An honest outbox whose files lie. Forged checkpoints lie next to its own: complete, partial, or of
    another run."""

    def __init__(self, honest: Outbox, draw: Random, clock: Clock) -> None:
        self._honest = honest
        self._draw = draw
        self._clock = clock
        self._forged: dict[str, bytes] = {}

    def small(self, name: str) -> bytes | None:
        honest, draw = self._honest.small(name), self._draw
        if name == INCARNATION:
            others = [hostile.incarnation(draw) for _ in range(draw.choice((1, 1, 20)))]
            lies = "\n".join(draw.choice((others, [*(honest or b"").decode().split(), *others])))
            return lies.encode("utf-8", "surrogatepass") if draw.random() < 0.3 else honest
        if name == STATUS:
            said = AgentStatus("0123abcd", 1, self._clock.now(), "training")
            return hostile.status(_fields(said) if honest is None else json.loads(honest), draw)
        if honest is None and draw.random() > 0.02:
            return None
        marker = Result("0123abcd", Outcome.COMPLETED, 0, 1, "all steps done")
        return hostile.result(_fields(marker) if honest is None else json.loads(honest), draw)

    def growing(self, here: Path, folder: Path) -> Growth:
        found = self._honest.growing(here, folder)
        (found.root / PROGRESS).write_bytes(hostile.progress(self._draw))
        (found.root / LOG / "000001.log").write_bytes(hostile.log(self._draw))
        return found

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
    """Every run that shares a platform with a hostile run ends, and ends as done."""
    return [
        f"{run} is {world.record(run).phase.value}: {world.record(run).standing_reason}"
        for run in world.runs
        if world.record(run).phase is not Phase.DONE
    ]
