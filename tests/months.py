"""A recorded time: the real engine with several runs on a cloud with a quota and an own box, simulated.

Made once in a test process, because it takes seconds; the tests only read it.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from random import Random

from orchestrator.core.event import Wished
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Wish
from orchestrator.hindsight.reading import Recorder
from orchestrator.hindsight.recording import Recording
from orchestrator.ledger import Ledger
from orchestrator.platforms.simulated import Faults, QuotaWindow, Scenario, SimulatedOffer
from tests.test_engine import Small

HOUR = 3600.0
TICK_SECONDS = 60.0
PLACES = (("box", "RTX3050"), ("cloud", "T4"))
CONFIG = """
platforms:
  cloud: {type: process, accelerator: T4, slots: 2}
  box: {type: process, accelerator: RTX3050}
"""


def _world(folder: Path) -> Small:
    fast = SimulatedOffer("T4", 8.0, slots=2, session_seconds=2 * HOUR, memory_gb=64.0, disk_gb=100.0)
    own = SimulatedOffer("RTX3050", 3.0, memory_gb=64.0, disk_gb=100.0)
    slow = {"checkpoint_seconds": 600.0, "poll_seconds": 60.0, "collect_seconds": 600.0,
            "wall_margin_seconds": 60.0}  # fmt: skip
    quota, faults = QuotaWindow(5 * HOUR, 24 * HOUR), Faults(killed=0.3)
    cloud = Scenario(seed=3, offers=(fast,), quota=quota, faults=faults, **slow)  # type: ignore[arg-type]
    box = Scenario(seed=4, offers=(own,), owned=True, **slow)  # type: ignore[arg-type]
    return Small(folder, cloud=cloud, box=box)


def _play(world: Small, seconds: float) -> None:
    end = world.clock.elapsed() + seconds
    while world.clock.elapsed() < end:
        world.engine.tick()
        world.clock.advance(TICK_SECONDS)


@cache
def recorded_home() -> tuple[Path, float]:
    """A home whose ledger has eight runs, one of them held for a while, and when its recording ends."""
    folder = Path(tempfile.mkdtemp(prefix="recorded-"))
    random = Random(5)
    world = _world(folder)
    _play(world, 120.0)
    for number in range(8):
        total = random.choice((10_000, 30_000, 90_000))
        world.submit(f"run{number}", work=Work(total=total, global_batch=16))
        _play(world, random.uniform(0.0, 1.5 * HOUR))
        if number == 2:
            world.ledger.wish("run2", Wished(world.clock.now(), Wish.HOLD))
            _play(world, HOUR)
            world.ledger.wish("run2", Wished(world.clock.now(), Wish.RELEASE))
    names = [f"run{number}" for number in range(8)]
    for _ in range(40):
        if all(world.record(name).phase.final for name in names):
            break
        _play(world, HOUR)
    world.ledger.close()
    (folder / "config.yaml").write_text(CONFIG)
    return folder, world.clock.now()


def recording(since: float = 0.0) -> Recording:
    """What its journals say."""
    home, until = recorded_home()
    recorder = Recorder(since, until)
    with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
        for run in ledger.under_way_since(since):
            recorder.add(run, ledger.entries(run))
        return recorder.recording({place: ledger.lifetimes(*place) for place in PLACES})
