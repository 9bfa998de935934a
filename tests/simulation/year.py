"""A year of schedules: nights with quota windows, outages, restarts, two controllers and both clock changes.

One run grows every night, one job runs afresh every day at 02:30 in Berlin, and one each Sunday. The platform
with a weekly quota and walls fails now and then; a slow box never does. Controllers are killed, stay away for
up to two days, and are replaced while the old one still believes that it is in charge.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random

from orchestrator.core import wire
from orchestrator.core.job import CatchUp, CheckpointPolicy, Keep, Mode, Overlap, Recurrence, Window, Work
from orchestrator.core.schedule import Schedule
from orchestrator.engine.engine import Engine
from orchestrator.errors import Fenced
from orchestrator.platforms.simulated import Faults, QuotaWindow, Scenario, SimulatedOffer, SimulatedPlatform
from orchestrator.stores.faulty import NO_FAULTS
from tests.simulation.draws import HOUR, draw_job
from tests.simulation.scheduled import ScheduledWorld
from tests.simulation.workers import SimulatedWorkers

DAY = 24 * HOUR
BERLIN = "Europe/Berlin"
SCHEDULES = (
    ("grows", Recurrence("0 23 * * *", "America/New_York", window=Window(22 * 60, 7 * 60)), 10**8),
    ("daily", Recurrence("30 2 * * *", BERLIN, Mode.FRESH, Overlap.QUEUE, CatchUp.ALL, 600.0), 1200),
    ("sunday", Recurrence("0 12 * * SUN", BERLIN, Mode.FRESH, Overlap.SKIP, CatchUp.ONE), 6000),
)
CLOUD = Scenario(
    seed=1,
    offers=(SimulatedOffer("T4", 2.0, session_seconds=5 * HOUR, memory_gb=64.0, disk_gb=100.0),),
    faults=Faults(killed=0.05, request_lost=0.01, reply_lost=0.01, outages_per_hour=0.005, starved=0.02),
    quota=QuotaWindow(30 * HOUR, 7 * DAY),
    checkpoint_seconds=900.0, wall_margin_seconds=120.0, poll_seconds=60.0, collect_seconds=600.0,
    heartbeat_seconds=60.0, visibility_seconds=60.0,
)  # fmt: skip
BOX = Scenario(
    seed=2, offers=(SimulatedOffer("cpu", 0.5, memory_gb=64.0, disk_gb=100.0),), checkpoint_seconds=900.0,
    poll_seconds=60.0, collect_seconds=600.0, heartbeat_seconds=60.0, owned=True,
)  # fmt: skip


class YearWorld(ScheduledWorld):
    """See the module. `grown`: the size of the growing run's record, in bytes, at each handover."""

    def __init__(self, seed: int, folder: Path, days: float = 366.0, later_days: float = 0.0) -> None:
        """It begins so many days later than on 21 September 2026."""
        super().__init__(seed, folder)
        self.clock.jump(later_days * DAY)
        self.began_at = self.clock.now()
        self.days = days
        self.platforms.clear()
        self.platforms |= {
            name: SimulatedPlatform(name, replace(scenario, seed=seed), self.clock, self._uplink)
            for name, scenario in (("cloud", CLOUD), ("box", BOX))
        }
        self.store.rates = NO_FAULTS
        self.killer.rate = 0.0
        self.busy = self.clock_jumps = self.naps = self.users.busy = False
        self._ledger_fails = 0.0
        self._random = Random(f"year {seed}")
        self._next_kill = self._next_handover = 0.0
        self._deposed: Engine | None = None
        self.handovers = self.fenced = 0
        self.grown: list[int] = []
        self.held: list[int] = []

    def _submit_all(self) -> None:
        for name, recurrence, total in SCHEDULES:
            job = replace(
                draw_job(self._draw, name), schedule=recurrence, work=Work(total=total, global_batch=16),
                checkpoint=CheckpointPolicy(keep=Keep(last=2)), without_progress=40,
            )  # fmt: skip
            now = self.clock.now()
            self.ledger.schedules.add(Schedule(name, job, "home", now, now))
            self.names.append(name)

    def run(self, calm_seconds: float = 0.0) -> None:  # noqa: ARG002 it never calms down
        self._submit_all()
        self._play(self.days * DAY)
        self._down()
        self.ledger.compare()

    def _pass_time(self) -> None:
        now = self.clock.elapsed()
        self._let_the_deposed_try()
        if now >= self._next_kill:
            self._next_kill = now + self._random.uniform(1.0, 6.0) * DAY
            self._down()
            self.restarts += 1
            self.clock.advance(self._random.choice((10.0, 600.0, 3 * HOUR, 40 * HOUR)))
            return
        if now >= self._next_handover and self._engine is not None:
            self._next_handover = now + 7 * DAY
            self._hand_over(self._engine)
        busy = any(not self.record(run).phase.final and self.record(run).session for run in self.runs)
        step = self._random.uniform(60.0, 300.0) if busy or self._workers.next_answer() < math.inf else HOUR
        due = [at for at in (self.ledger.next_due(), self._next_schedule()) if at is not None]
        wait = max(1.0, min([step, *(at - self.clock.now() for at in due)]))
        until = now + wait
        while (at := self._workers.next_effect()) < until:
            self.clock.advance(max(0.0, at - self.clock.elapsed()))
            self._workers.take_effect()
        self.clock.advance(max(0.0, until - self.clock.elapsed()))

    def _let_the_deposed_try(self) -> None:
        """Until it learns that it is no longer the controller: at its first attempt to write."""
        if self._deposed is not None:
            try:
                self._deposed.tick()
            except Fenced:
                self._deposed = None
                self.fenced += 1

    def _next_schedule(self) -> float | None:
        found = self.ledger.schedules.next_at()
        return None if found is None else found[1]

    def _hand_over(self, old: Engine) -> None:
        """Another controller takes over. The old one, which nobody stopped, may write nothing more."""
        assert self._takeover is not None
        self._takeover.release()
        self._workers = SimulatedWorkers(self.clock, Random(self._random.random()), 0.05)
        self._up()
        self.handovers += 1
        self._deposed = old
        growing = next((run for run in self.runs if run.startswith("grows")), None)
        if growing is not None:
            self.grown.append(len(wire.encode(self.record(growing))))
        tracked, _offers = old.seen
        _case, _running, waiting = old.scene()
        self.held.append(len(tracked) + len(waiting))
