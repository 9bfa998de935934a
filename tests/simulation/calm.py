"""A world without faults, in which somebody asks at every tick when each run will end.

Platforms and jobs are drawn as always, with quotas, session limits and machines that differ by a fifth, but
without what nobody can foresee: refusals, shortages, a queue of unknown length, too little memory.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

from orchestrator.core.event import Event
from orchestrator.core.foreseen import Forecast
from orchestrator.core.offer import Uplink
from orchestrator.core.outlook import foresee
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Observation
from orchestrator.engine.engine import Engine, Watchers
from orchestrator.engine.foreseeing import Foreseer
from orchestrator.engine.market import Market
from orchestrator.platforms.simulated import Faults, QuotaWindow, Scenario, SimulatedPlatform
from tests.simulation.draws import HOUR
from tests.simulation.workers import SimulatedWorkers
from tests.simulation.world import CALM_HOURS, World

LONGER = 4.0  # sessions: an agent leaves up to 10 % of a short one unused, and a simulated one does not
TOLD_AFTER_SECONDS = 120.0  # of training; a poll takes up to half a minute


class CalmWorld(World):
    """`told`: of each run, the first forecast after TOLD_AFTER_SECONDS of its first session. `queued`: the
    first one while it waited for that."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.clock_jumps = self.naps = self.users.busy = False
        self._workers = SimulatedWorkers(self.clock, Random(seed), slow=0.0)
        self.told: dict[str, Forecast] = {}
        self.queued: dict[str, Forecast] = {}
        self._foreseer = Foreseer(
            self.clock, self.ledger.measurements, lambda _scene, _found: None, self._unforeseen
        )

    def _platform(self, name: str, scenario: Scenario) -> SimulatedPlatform:
        offers = tuple(
            replace(each, micro_batch_max=None, session_seconds=LONGER * (each.session_seconds or 600.0))
            for each in scenario.offers
        )
        quota = scenario.quota
        if quota is not None:
            quota = QuotaWindow(LONGER * quota.allowed_seconds, LONGER * quota.window_seconds)
        calm = replace(
            scenario, faults=Faults(), offers=offers, quota=quota, uplink=Uplink.SHARED, queue_seconds=0.0,
            poll_seconds=10.0,
        )  # fmt: skip
        return super()._platform(name, calm)

    def run(self, calm_seconds: float = CALM_HOURS * HOUR) -> None:
        self.calm()
        super().run(calm_seconds)

    def _up(self) -> None:
        self._takeover = self.ledger.take_over("simulation", now=self.clock.now())
        seen = self.witness.watchers()

        def event(record: RunRecord, happened: Event) -> None:
            self._foreseer.told(record, happened)
            seen.event(record, happened)

        def reading(record: RunRecord, observation: Observation, now: float) -> None:
            self._foreseer.reading(record, observation, now)
            seen.reading(record, observation, now)

        self._engine = Engine(
            self.ledger, self._takeover.fence, self._backends(), Market(tuple(self.platforms)), self._workers,
            self.clock, Watchers(event, reading, seen.silence, seen.unreadable), unforeseen=self._unforeseen,
        )  # fmt: skip

    def _tick(self) -> None:
        super()._tick()
        assert self._engine is not None
        scene = self._foreseer.scene(*self._engine.scene())
        asked = {each.run for each in scene.waiting if each.run not in self.queued}
        for each in scene.running:
            since = each.session.runs_since if each.session is not None else None
            if each.run not in self.told and since is not None and scene.now > since + TOLD_AFTER_SECONDS:
                asked.add(each.run)
        if not asked:
            return
        waits = {each.run for each in scene.waiting}
        for run, forecast in foresee(scene).items():
            if run in asked:
                (self.queued if run in waits else self.told).setdefault(run, forecast)
