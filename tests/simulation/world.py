"""A world from one seed: platforms and a store with faults, jobs, users, and a controller that is killed.

The engine, ledger, market and decide in it are the real ones. First everything goes wrong; then the faults
stop, and what can finish must.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from orchestrator.core.checkpoint import Manifest
from orchestrator.core.event import Submitted, Wish, Wished
from orchestrator.core.job import CheckpointPolicy, Claim, Job, Keep, Precision, Profile, Work
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Uplink
from orchestrator.core.run import RunRecord
from orchestrator.engine import Engine
from orchestrator.ledger import Takeover
from orchestrator.market import Market
from orchestrator.perform import Backends, Folders
from orchestrator.platforms.simulated import Faults, QuotaWindow, Scenario, SimulatedOffer, SimulatedPlatform
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.faulty import NO_FAULTS, FaultRates, FaultyStore
from orchestrator.stores.memory import MemoryStore
from tests.simulation.clock import VirtualClock
from tests.simulation.ledger import SimulatedLedger
from tests.simulation.workers import SimulatedWorkers

HOUR = 3600.0
FAULTY_SECONDS = 5 * HOUR
CALM_HOURS = 60.0
MICRO_BATCH = 8
RESTLESS_TICKS = 8  # so many in a row at one instant are a controller that spins


class ControllerKilled(BaseException):
    """kill -9, at the line that raises it."""


@dataclass
class Killer:
    random: Random
    rate: float

    def perhaps(self) -> None:
        if self.random.random() < self.rate:
            raise ControllerKilled


class World:
    """One seeded schedule; `run` plays it to its end. Everything a checker needs stays readable after."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random = Random(seed)
        self.clock = VirtualClock()
        self.began_at = self.clock.now()
        self.scenarios = [_scenario(random, number) for number in range(random.randint(1, 3))]
        self.platforms = {
            f"p{number}": SimulatedPlatform(f"p{number}", scenario, self.clock)
            for number, scenario in enumerate(self.scenarios)
        }
        self.memory = MemoryStore()
        rates = FaultRates(fails=0.03, loses_reply=0.03, tears=0.01)
        self.store = FaultyStore(
            self.memory, rates, Random(random.random()), now=self.clock.elapsed, wait=lambda _seconds: None
        )
        self.killer = Killer(Random(random.random()), random.choice((0.0, 0.01, 0.05)))
        self.ledger = SimulatedLedger.make(folder / "ledger.sqlite")
        self.ledger.before = lambda _proposals: self.killer.perhaps()
        self.ledger.after = self.killer.perhaps
        self.folders = Folders(folder / "home")
        self.runs: list[str] = []
        self.restarts = 0
        self.restless_at: list[float] = []
        self.discarded: set[str] = set()
        self._slow = random.choice((0.0, 0.05, 0.2))
        self._calm = False
        self._wishes = random.random() < 0.4
        self.clock_jumps = random.random() < 0.3
        self._workers = SimulatedWorkers(self.clock, Random(random.random()), self._slow)
        self._engine: Engine | None = None
        self._takeover: Takeover | None = None

    # --- Playing ----------------------------------------------------------------------------------------

    def run(self, calm_seconds: float = CALM_HOURS * HOUR) -> None:
        for number in range(self.random.randint(1, 3)):
            self._submit(number)
        self._play(FAULTY_SECONDS)
        self.calm()
        self._play(calm_seconds)
        self._down()

    def calm(self) -> None:
        """Faults stop; held runs are released, as a user would."""
        self._calm = True
        self.killer.rate = 0.0
        self.store.rates = NO_FAULTS
        for platform in self.platforms.values():
            platform.calm()

    def _play(self, seconds: float) -> None:
        end = self.clock.elapsed() + seconds
        while self.clock.elapsed() < end and not self.finished():
            with self._mortality():
                if self._engine is None:
                    self._up()
                self._tick()
            self._user()
            self._pass_time()
            if self.clock_jumps and not self._calm and self.random.random() < 0.005:
                self._disturb_clock()

    def _pass_time(self) -> None:
        """To the next tick: when an answer comes, or a while later. What takes effect until then does so at
        its own moment."""
        now = self.clock.elapsed()
        busy = any(self.record(run).session is not None for run in self.runs)
        until = now + (self.random.uniform(6.0, 30.0) if busy else self.random.uniform(20.0, 60.0))
        until = min(until, max(self._workers.next_answer(), now + self.random.uniform(0.5, 8.0)))
        while (at := self._workers.next_effect()) < until:
            self.clock.advance(max(0.0, at - self.clock.elapsed()))
            self._workers.take_effect()
        self.clock.advance(until - self.clock.elapsed())

    def _tick(self) -> None:
        assert self._engine is not None
        for _ in range(RESTLESS_TICKS):
            if self._engine.tick() > 0.0:
                return
        self.restless_at.append(self.clock.elapsed())

    @contextlib.contextmanager
    def _mortality(self) -> Iterator[None]:
        try:
            yield
            if self.random.random() < self.killer.rate:
                raise ControllerKilled
        except ControllerKilled:
            self._down()
            self.restarts += 1
            self.clock.advance(self.random.choice((1.0, 60.0, 1200.0)))

    def _up(self) -> None:
        self._takeover = self.ledger.take_over("simulation", now=self.clock.now())
        backends = Backends(self.platforms, self.store, self.folders, secret=lambda name: name)
        self._engine = Engine(
            self.ledger,
            self._takeover.fence,
            backends,
            Market(tuple(self.platforms)),
            self._workers,
            self.clock,
        )

    def _down(self) -> None:
        self._workers.crash()
        self._engine = None
        if self._takeover is not None:
            self._takeover.release()
            self._takeover = None

    def _disturb_clock(self) -> None:
        if self.random.random() < 0.5:
            self.clock.sleep(HOUR)
        else:
            self.clock.jump(self.random.choice((-2 * HOUR, 2 * HOUR, -30.0, 30.0)))

    # --- Users ------------------------------------------------------------------------------------------

    def _submit(self, number: int) -> None:
        run = f"job{number}-{self.random.getrandbits(32):08x}"
        job = _job(self.random, run)
        self.ledger.submit(Submitted(run, job, self.clock.now()), due_at=0.0)
        self.runs.append(run)

    def _user(self) -> None:
        for run in self.runs:
            record = self.record(run)
            if record.standing is Phase.HELD and self.random.random() < (0.1 if self._calm else 0.02):
                self.ledger.wish(run, Wished(self.clock.now(), Wish.RELEASE))
            elif self._wishes and not self._calm and not record.phase.final and self.random.random() < 0.002:
                wish = self.random.choice((Wish.CANCEL, Wish.HOLD))
                discard = wish is Wish.CANCEL and self.random.random() < 0.5
                if discard:
                    self.discarded.add(run)
                self.ledger.wish(run, Wished(self.clock.now(), wish, discard))

    # --- Looking ----------------------------------------------------------------------------------------

    def record(self, run: str) -> RunRecord:
        return self.ledger.latest(run)

    def restored(self, run: str, manifest: Manifest, path: str) -> bytes:
        """One file of a checkpoint, as `pull` would lay it out."""
        with TemporaryDirectory() as folder:
            stored.fetch(self.memory, run, manifest.name, Path(folder) / "fetched")
            stored.restore(Path(folder) / "fetched", manifest, Path(folder) / "restored")
            return (Path(folder) / "restored" / path).read_bytes()

    def finished(self) -> bool:
        records = [self.record(run) for run in self.runs]
        return all(record.phase.final and not record.strays for record in records)


def _scenario(random: Random, number: int) -> Scenario:
    """Some platforms are well-behaved in some ways: rates are drawn per kind of fault."""

    def rate(most: float) -> float:
        return random.choice((0.0, 0.0, most * random.random()))

    faults = Faults(
        request_lost=rate(0.1), reply_lost=rate(0.1), launch_started_but_failed=rate(0.3),
        double_start=rate(0.2), starved=rate(0.2), late_visible=rate(0.2), killed=rate(0.3),
        partitioned=rate(0.3), crash=rate(0.2), stall=rate(0.2), freeze=rate(0.2), stop_ignored=rate(0.3),
        stop_slow_seconds=rate(300.0), corrupt=rate(0.2), outbox_lost=rate(0.2), outages_per_hour=rate(1.0),
        denials_per_hour=rate(0.3), shortages_per_hour=rate(0.5),
    )  # fmt: skip
    accelerators = random.sample(("T4", "RTX3050", "P100", "cpu", "TPUv5e-1"), random.randint(1, 2))
    offers = tuple(
        SimulatedOffer(
            accelerator=accelerator,
            steps_per_second=random.uniform(0.5, 2.0),
            slots=random.randint(1, 2),
            session_seconds=random.choice((450.0, 900.0, HOUR)),
            memory_gb=64.0,
            disk_gb=100.0,
            micro_batch_max=random.choice((None, None, 2)),
        )
        for accelerator in accelerators
    )
    quota = QuotaWindow(random.uniform(0.2, 0.6) * HOUR, 2 * HOUR) if random.random() < 0.5 else None
    return Scenario(
        seed=random.getrandbits(32), offers=offers, faults=faults, quota=quota,
        uplink=Uplink.NONE if random.random() < 0.25 else Uplink.SHARED,
        visibility_seconds=random.choice((5.0, 60.0)), pending_seconds=random.choice((1.0, 60.0)),
        setup_seconds=20.0, save_seconds=5.0, checkpoint_seconds=random.choice((30.0, 100.0)),
        wall_margin_seconds=60.0, slack_seconds=120.0, poll_seconds=random.choice((10.0, 30.0)),
        can_stop=random.random() < 0.8, owned=number == 0,
    )  # fmt: skip


def _job(random: Random, run: str) -> Job:
    claim = Claim((0.5, 2.0), 16, "any", "the simulation", "2026-11-20")
    profile = Profile(MICRO_BATCH, Precision.FP32, claim=claim)
    return replace(
        Job(
            name=run.split("-")[0],
            command=("train", "--steps", "{steps}", "--micro-batch", "{micro_batch}"),
            work=Work(total=random.choice((250, 1000, 2500)), global_batch=16),
            profiles=(("default", profile),),
            bundle="0" * 64,
            seed=random.getrandbits(16),
        ),
        checkpoint=CheckpointPolicy(keep=Keep(last=random.randint(1, 3))),
        without_progress=random.choice((3, 6, 40)),
    )
