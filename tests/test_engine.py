"""The tick with the real ledger, market and decide: waiting runs wake up, and no answer is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.core.event import Deferred, Submitted, Wished
from orchestrator.core.job import Claim, Work
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.run import RunRecord
from orchestrator.engine.engine import Brought, Engine, Watchers
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.errors import Transient
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.platforms.simulated.platform import SimulatedPlatform
from orchestrator.platforms.simulated.scenario import QuotaWindow, Scenario, SimulatedOffer
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.store import Store
from tests.core.runs import job
from tests.simulation.clock import VirtualClock
from tests.simulation.workers import SimulatedWorkers


class FlakyLedger(Ledger):
    """The real ledger; while `down`, it does not answer."""

    down = False

    def wake_queued(self) -> None:
        if self.down:
            raise Transient("the ledger was locked by another process for 30 seconds")
        super().wake_queued()


class DeafWorkers(SimulatedWorkers):
    """Workers that never answer for the platforms called `silent`."""

    silent: frozenset[str] = frozenset()

    def start(self, lane: str, task: Callable[[], Brought], failed: Callable[[str], Brought]) -> None:
        if not any(lane.endswith(f":{name}") for name in self.silent):
            super().start(lane, task, failed)


class Small:
    """A world with one ledger, one store, a few calm platforms, and one engine at a time."""

    watchers: Watchers | None = None

    def __init__(self, folder: Path, **scenarios: Scenario) -> None:
        self.clock = VirtualClock()
        self.platforms = {name: SimulatedPlatform(name, s, self.clock) for name, s in scenarios.items()}
        self.ledger = self.new_ledger(folder)
        self.folders = Folders(folder / "home")
        self.workers = DeafWorkers(self.clock, Random(1), 0.0)
        self.store = self.new_store()
        self.stores: dict[str, Store] = {"home": self.store}
        self.home_store = "home"
        self.engine = self.up(tuple(scenarios))

    def new_ledger(self, folder: Path) -> FlakyLedger:
        return FlakyLedger.open(f"sqlite:///{folder / 'ledger.sqlite'}")

    def new_store(self) -> MemoryStore:
        return MemoryStore()

    def up(self, names: tuple[str, ...], home_store: str = "") -> Engine:
        takeover = self.ledger.take_over("test", now=self.clock.now(), home_store=home_store)
        backends = self.backends(names)
        self.engine = Engine(self.ledger, takeover.fence, backends, Market(names), self.workers, self.clock,
                             self.watchers, unforeseen=backends.unforeseen)  # fmt: skip
        return self.engine

    def backends(self, names: tuple[str, ...]) -> Backends:
        platforms = {name: self.platforms[name] for name in names}
        return Backends(platforms, self.stores, self.home_store, self.folders, secret=lambda name: name)

    def restart(self, *names: str, home_store: str = "") -> None:
        self.workers.crash()
        self.ledger._takeover.release()  # type: ignore[union-attr]
        self.up(names, home_store)

    def submit(self, run: str, **changes: object) -> None:
        submitted = Submitted(run, job(name=run, **changes), self.clock.now(), store=self.home_store)
        self.ledger.submit(submitted)

    def record(self, run: str) -> RunRecord:
        return self.ledger.record(run)

    def until(self, condition: Callable[[], bool], seconds: float = 7200.0, step: float = 2.0) -> bool:
        """Ticks every `step` until the condition holds, for at most this many seconds of simulated time."""
        end = self.clock.elapsed() + seconds
        while not condition():
            if self.clock.elapsed() >= end:
                return False
            self.engine.tick()
            self.clock.advance(step)
        return True

    def phase(self, run: str, phase: Phase) -> Callable[[], bool]:
        return lambda: self.record(run).phase is phase


Make = Callable[..., Small]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Make]:
    made: list[Small] = []

    def make(**scenarios: Scenario) -> Small:
        made.append(Small(tmp_path, **scenarios))
        return made[-1]

    yield make
    for each in made:
        each.ledger.close()


def scenario(accelerator: str = "cpu", slots: int = 1, **changes: object) -> Scenario:
    offer = SimulatedOffer(accelerator, steps_per_second=5.0, slots=slots, session_seconds=1800.0,
                           memory_gb=64.0, disk_gb=100.0)  # fmt: skip
    return replace(Scenario(seed=1, offers=(offer,), checkpoint_seconds=30.0), **changes)  # type: ignore[arg-type]


def test_a_run_that_waits_for_a_date_takes_the_slot_that_frees_before(small: Make) -> None:
    world = small(box=scenario())
    world.submit("first")
    assert world.until(world.phase("first", Phase.RUNNING))
    world.submit("second")
    now = world.clock.now()
    later = Deferred(now, now + 6 * 86400.0, "box: no slot; cloud: no quota before Saturday")
    world.ledger.append(world.record("second"), (later,), due_at=later.until)
    assert world.until(world.phase("second", Phase.DONE), seconds=4 * 3600.0)


def test_a_run_is_not_forgotten_whose_pause_lasts_while_the_offers_change(small: Make) -> None:
    """After a crash it pauses; meanwhile the survey says that its slot is free again."""
    world = small(box=scenario(crash_at_step=5))
    world.submit("first")
    assert world.until(lambda: world.record("first").generation == 2, seconds=300.0)


def test_the_controller_rests_while_a_platform_does_not_answer(small: Make) -> None:
    world = small(box=scenario(), dark=scenario("T4"))
    world.workers.silent = frozenset({"dark"})
    world.submit("first", profiles=(("T4", job().profiles[0][1]),))  # the box is not acceptable
    world.until(lambda: False, seconds=30.0)
    assert [world.engine.tick() > 0.0 for _ in range(5)] == [True] * 5


@pytest.mark.parametrize("silent", [False, True])
def test_a_platform_that_answers_late_is_waited_for_a_little(small: Make, silent: bool) -> None:
    """The seeds make `box` answer first; `cloud` is 100 times as fast."""
    fast = replace(
        scenario(), offers=(replace(scenario().offers[0], steps_per_second=500.0, accelerator="T4"),)
    )
    world = small(box=scenario(), cloud=fast)
    world.workers.silent = frozenset({"cloud"}) if silent else frozenset()
    cpu = job().profiles[0][1]
    quick = replace(cpu, claim=Claim((450.0, 550.0), 16, "T4", "test", "2026-01-01"))
    world.submit("first", profiles=(("cpu", cpu), ("T4", quick)))
    assert world.until(lambda: world.record("first").session is not None, seconds=60.0)
    session = world.record("first").session
    assert session is not None
    assert session.order.platform == ("box" if silent else "cloud")


def test_the_controller_rests_when_the_time_of_an_offer_has_come_and_no_survey_has(small: Make) -> None:
    window = QuotaWindow(allowed_seconds=30.0, window_seconds=600.0)
    world = small(cloud=scenario("T4", quota=window))
    world.submit("first")
    assert world.until(lambda: world.record("first").until is not None)
    world.workers.silent = frozenset({"cloud"})
    world.until(lambda: False, seconds=700.0)
    assert [world.engine.tick() > 0.0 for _ in range(5)] == [True] * 5


def test_a_ledger_that_was_locked_for_a_moment_loses_no_answer(small: Make) -> None:
    world = small(box=scenario(slots=2, quota=QuotaWindow(1e6, 1e7)))  # every survey finds less quota
    world.submit("first", work=Work(total=5000, global_batch=16))
    assert world.until(world.phase("first", Phase.RUNNING))
    for _ in range(30):  # several answers a tick; every third tick also a survey
        world.ledger.down = True
        try:
            world.engine.tick()
        except Transient:
            pass
        world.ledger.down = False
        world.clock.advance(20.0)
    assert world.until(world.phase("first", Phase.DONE))


def test_a_platform_that_left_the_config_stops_nobody_else(small: Make) -> None:
    world = small(box=scenario(), gone=scenario("T4"))
    world.submit("stays", route=replace(job().route, platforms=("gone",)))
    assert world.until(world.phase("stays", Phase.RUNNING))
    world.restart("box")
    world.submit("other")
    assert world.until(world.phase("other", Phase.DONE))
    world.ledger.wish("stays", Wished(world.clock.now(), Wish.CANCEL))
    assert not world.until(world.phase("stays", Phase.CANCELLED), seconds=120.0), "nobody can tell"
    world.restart("box", "gone")
    assert world.until(lambda: world.record("stays").phase.final)


def test_a_cancelled_launch_is_waited_for_and_then_stopped(small: Make) -> None:
    world = small(box=scenario(can_stop=False))
    world.submit("first")
    assert world.until(world.phase("first", Phase.LAUNCHING))
    world.ledger.wish("first", Wished(world.clock.now(), Wish.CANCEL))
    assert world.until(lambda: world.record("first").phase.final)
