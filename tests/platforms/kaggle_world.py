"""The real engine with the kaggle platform on a local Kaggle, on a clock that moves only on command.

So hours of refusals take a second. Sessions that start run in real time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from orchestrator.cli.story import told
from orchestrator.clock import SystemClock
from orchestrator.core.event import Assigned, Event, Submitted, TurnedAway
from orchestrator.core.run import RunRecord
from orchestrator.engine.engine import Engine
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.platforms import catalog
from orchestrator.platforms.platform import Platform
from orchestrator.platforms.simulated.platform import SimulatedPlatform
from orchestrator.platforms.simulated.scenario import Scenario
from orchestrator.stores.memory import MemoryStore
from tests.core.runs import RUN, job
from tests.simulation.clock import VirtualClock
from tests.simulation.workers import SimulatedWorkers
from tests.stand_ins.kaggle import LocalKaggle

STEP_SECONDS = 30.0


class KaggleWorld:
    """One run, the platform `kaggle`, and simulated ones beside it. Its sessions run `agent`."""

    def __init__(self, folder: Path, kaggle: LocalKaggle, agent: str, *, accelerator: str = "cpu",
                 **others: Scenario) -> None:  # fmt: skip
        self.kaggle = kaggle
        self.clock = VirtualClock(SystemClock().now())
        self.ledger = Ledger.open(f"sqlite:///{folder / 'ledger.sqlite'}")
        folders = Folders(folder / "home")
        key = folder / "key"
        key.write_text(kaggle.settings.key)
        options = {
            "username": kaggle.settings.username, "key_file": str(key), "endpoint": kaggle.url,
            "accelerators": [accelerator], "report_seconds": 0.2,
        }  # fmt: skip
        made = catalog.build("kaggle", "kaggle", options, folder=folder / "kaggle-home", clock=self.clock)
        platforms: dict[str, Platform] = {"kaggle": made}
        for name, scenario in others.items():
            platforms[name] = SimulatedPlatform(name, scenario, self.clock)
        backends = Backends(platforms, {"home": MemoryStore()}, "home", folders, secret=lambda name: name)
        takeover = self.ledger.take_over("test", now=self.clock.now())
        workers = SimulatedWorkers(self.clock, Random(1), 0.0)
        self.engine = Engine(self.ledger, takeover.fence, backends, Market(tuple(platforms)), workers,
                             self.clock, unforeseen=backends.unforeseen)  # fmt: skip
        bundle = folders.bundle(job().bundle)
        for path, content in ((bundle, ""), (folders.agent, agent)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def submit(self, **changes: object) -> None:
        self.ledger.submit(Submitted(RUN, job(**changes), self.clock.now(), store="home"))

    def record(self) -> RunRecord:
        return self.ledger.record(RUN)

    def events(self) -> list[Event]:
        return [stored.event for stored in self.ledger.history(RUN)]

    def turned_away(self) -> list[TurnedAway]:
        return [event for event in self.events() if isinstance(event, TurnedAway)]

    def places(self) -> list[str]:
        return [event.order.platform for event in self.events() if isinstance(event, Assigned)]

    def why(self) -> str:
        return "\n".join(text for _, text in told(self.events()))

    def until(self, condition: Callable[[], object], hours: float = 1.0) -> float:
        """Ticks until the condition holds; returns how many hours that took."""
        began = self.clock.elapsed()
        while not condition():
            hours_so_far = (self.clock.elapsed() - began) / 3600
            assert hours_so_far < hours, f"not in {hours:g} h:\n{self.why()}"
            self.engine.tick()
            self.clock.advance(STEP_SECONDS)
        return (self.clock.elapsed() - began) / 3600

    def for_hours(self, hours: float) -> None:
        ends = self.clock.elapsed() + hours * 3600
        while self.clock.elapsed() < ends:
            self.engine.tick()
            self.clock.advance(STEP_SECONDS)

    def close(self) -> None:
        self.ledger.close()
