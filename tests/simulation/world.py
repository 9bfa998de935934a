"""A world from one seed: platforms and a store with faults, jobs, users, and a controller that is killed.

Its engine, ledger, market and decide are the real ones. First everything goes wrong. Then the faults stop,
and every run that can finish must finish.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from orchestrator.core import notice
from orchestrator.core.checkpoint import Manifest
from orchestrator.core.event import Submitted
from orchestrator.core.job import NoticeKind
from orchestrator.core.offer import Uplink as UplinkKind
from orchestrator.core.order import Order
from orchestrator.core.run import RunRecord
from orchestrator.engine.engine import Engine, Watchers
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.errors import Transient
from orchestrator.home import Folders
from orchestrator.ledger import Proposal, Takeover
from orchestrator.platforms.simulated import Scenario, SimulatedPlatform
from orchestrator.session.outbox import Outbox
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.faulty import NO_FAULTS, FaultyStore
from orchestrator.unforeseen import raise_again
from orchestrator.uplink.shipping import Uplink
from tests.simulation.clock import VirtualClock
from tests.simulation.draws import HOUR, draw_job, draw_rates, draw_scenario
from tests.simulation.ledger import SimulatedLedger
from tests.simulation.uplinks import WatchedUplinkStore
from tests.simulation.users import Users
from tests.simulation.witness import WatchedStore, Witness
from tests.simulation.workers import SimulatedWorkers

FAULTY_SECONDS = 3 * HOUR
CALM_HOURS = 60.0
TARGETS = (
    notice.Target("everything", frozenset(NoticeKind)),
    notice.Target("ends", frozenset({NoticeKind.DONE, NoticeKind.FAILED, NoticeKind.CANCELLED})),
)
RESTLESS_TICKS = 8  # a controller with this many ticks at one instant is in a tight loop


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
    """One seeded schedule; `run` plays it to its end. Everything that a check needs stays readable
    afterwards."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random = Random(seed)
        self.clock = VirtualClock()
        self.began_at = self.clock.now()
        self.platforms = {
            f"p{number}": self._platform(f"p{number}", draw_scenario(random, number))
            for number in range(random.randint(1, 3))
        }
        self.killer = Killer(Random(random.random()), random.choice((0.0, 0.01, 0.05)))
        self.ledger = SimulatedLedger.make(folder / "ledger.sqlite")
        self.ledger.before, self.ledger.after = self._before_append, self.killer.perhaps
        self.users = Users(self.ledger, self.clock, Random(random.random()))
        self.witness = Witness(self.clock, self.ledger, self.platforms)
        self.memory = WatchedStore(self.witness)
        self.store = FaultyStore(
            self.memory, draw_rates(random), Random(random.random()), now=self.clock.elapsed,
            wait=lambda _seconds: None,
        )  # fmt: skip
        self.witness.hidden_seconds = self.store.rates.hidden_seconds
        self.folders = Folders(folder / "home")
        self.runs: list[str] = []
        self.restarts = 0
        self.restless_at: list[float] = []
        self.clock_jumps = random.random() < 0.3
        self.naps = random.random() < 0.3
        self._ledger_fails = random.choice((0.0, 0.0, 0.02))
        self._calm = False
        self._workers = SimulatedWorkers(self.clock, Random(random.random()), random.choice((0.0, 0.05, 0.2)))
        self._engine: Engine | None = None
        self._takeover: Takeover | None = None

    # --- What other worlds have otherwise ---------------------------------------------------------------

    def _platform(self, name: str, scenario: Scenario) -> SimulatedPlatform:
        return SimulatedPlatform(name, scenario, self.clock, self._uplink)

    def _uplink(self, order: Order, incarnation: str, outbox: Outbox) -> Uplink:
        """The uplink that ships an agent's outbox to the home store."""
        store = WatchedUplinkStore(self.store, self.witness, order, incarnation)
        return Uplink(store, order, incarnation, outbox, self.folders.home / "uplinks" / incarnation)

    def _backends(self) -> Backends:
        return Backends(
            self.platforms, {"home": self.store}, "home", self.folders, lambda name: name, self._unforeseen
        )

    def _watchers(self) -> Watchers:
        return self.witness.watchers()

    def _unforeseen(self, doing: str, error: Exception) -> None:
        """Raises every unforeseen error."""
        raise_again(doing, error)

    # --- Playing ----------------------------------------------------------------------------------------

    def run(self, calm_seconds: float = CALM_HOURS * HOUR) -> None:
        self._submit_all()
        self._play(FAULTY_SECONDS)
        self.calm()
        self._play(calm_seconds)
        self._down()
        self.ledger.compare()

    def calm(self) -> None:
        """Stops the faults and releases held runs, as a user would."""
        self._calm = self.users.calm = True
        self.killer.rate = self._ledger_fails = 0.0
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
            self.users.act(self.runs)
            self._pass_time()
            if not self._calm and self.random.random() < 0.005:
                self._disturb_clock()

    def _pass_time(self) -> None:
        """Passes time to the next tick: to an answer, or a while later. Tasks take effect at their own
        moments meanwhile."""
        now = self.clock.elapsed()
        busy = any(self.record(run).session is not None for run in self.runs)
        until = now + (self.random.uniform(6.0, 30.0) if busy else self.random.uniform(20.0, 60.0))
        until = min(until, max(self._workers.next_answer(), now + self.random.uniform(0.5, 8.0)))
        while (at := self._workers.next_effect()) < until:
            self.clock.advance(max(0.0, at - self.clock.elapsed()))
            self._live()
            self._workers.take_effect()
        self.clock.advance(until - self.clock.elapsed())

    def _live(self) -> None:
        """Data is shipped to the store at its own time, whether or not a platform is asked."""
        for platform in self.platforms.values():
            if platform.scenario.uplink is UplinkKind.STORE:
                platform.live()

    def _tick(self) -> None:
        assert self._engine is not None
        restless = 0
        while restless < RESTLESS_TICKS:
            conflicts = self.ledger.conflicts
            try:
                if self._engine.tick() > 0.0:
                    return
            except Transient:  # like the controller with a locked ledger: the next tick goes on
                return
            restless += self.ledger.conflicts == conflicts  # else somebody made a wish meanwhile
        self.restless_at.append(self.clock.elapsed())

    def _before_append(self, proposals: Sequence[Proposal]) -> None:
        self.killer.perhaps()
        if self.random.random() < self._ledger_fails:
            raise Transient("the ledger was locked by another process for 30 seconds")
        self.users.interfere(proposals)

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
        self.ledger.notices = lambda before, event, after: notice.outgoing(before, event, after, TARGETS)
        self._engine = Engine(
            self.ledger,
            self._takeover.fence,
            self._backends(),
            Market(tuple(self.platforms)),
            self._workers,
            self.clock,
            self._watchers(),
            unforeseen=self._unforeseen,
        )

    def _down(self) -> None:
        self._workers.crash()
        self._engine = None
        if self._takeover is not None:
            self._takeover.release()
            self._takeover = None

    def _disturb_clock(self) -> None:
        """The machine sleeps, the controller's process is stopped, or somebody sets the wall clock."""
        if self.naps:
            self.random.choice((self.clock.sleep, self.clock.advance))(self.random.choice((300.0, HOUR)))
        elif self.clock_jumps and self.random.random() < 0.5:
            self.clock.sleep(HOUR)
        elif self.clock_jumps:
            self.clock.jump(self.random.choice((-2 * HOUR, 2 * HOUR, -30.0, 30.0)))

    def _submit_all(self) -> None:
        self.runs += [self._submit(number) for number in range(self.random.choice((1, 1, 2, 3)))]

    def _submit(self, number: int, **changes: Any) -> str:
        run = f"job{number}-{self.random.getrandbits(32):08x}"
        job = replace(draw_job(self.random, run), **changes)
        self.ledger.submit(Submitted(run, job, self.clock.now(), store="home"), due_at=0.0)
        return run

    # --- Looking ----------------------------------------------------------------------------------------

    @property
    def everybody(self) -> list[str]:
        """All runs: those that the checks look at, and others."""
        return self.runs

    def record(self, run: str) -> RunRecord:
        return self.ledger.latest(run)

    def restored(self, run: str, manifest: Manifest, path: str) -> bytes:
        """One file of a checkpoint, as `pull` would write it."""
        with TemporaryDirectory() as folder:
            stored.fetch(self.memory, run, manifest.name, Path(folder) / "fetched")
            stored.restore(Path(folder) / "fetched", [manifest], Path(folder) / "restored")
            return (Path(folder) / "restored" / path).read_bytes()

    def finished(self) -> bool:
        records = [self.record(run) for run in self.runs]
        return all(record.phase.final and not record.strays for record in records)
