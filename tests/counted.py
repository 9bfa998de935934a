"""A running session whose outbox and home store count their calls. The outbox and the store are real."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random

from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.event import Launched, Prepared, Started, Submitted
from orchestrator.core.order import AgentStatus
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Sighting
from orchestrator.engine.engine import Engine
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.platforms.platform import Sight
from orchestrator.platforms.simulated.platform import SimulatedPlatform
from orchestrator.platforms.simulated.scenario import Scenario
from orchestrator.session.outbox import FolderOutbox, Growth, Outbox
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.register import Registers
from orchestrator.stores.store import Stat, Store
from tests.core.runs import NOW, RUN, assigned, job
from tests.seen import Canned
from tests.simulation.clock import VirtualClock
from tests.simulation.workers import SimulatedWorkers

Asked = Counter[str]  # verb → number of calls


class CountedStore:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: Asked = Counter()

    @property
    def registers(self) -> Registers | None:
        return self._store.registers

    def put(self, key: str, source: Path, sha256: str) -> None:
        self.asked["put"] += 1
        self._store.put(key, source, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        self.asked["get"] += 1
        self._store.get(key, target, sha256, bytes_max=bytes_max)

    def stat(self, key: str) -> Stat | None:
        self.asked["stat"] += 1
        return self._store.stat(key)

    def list(self, prefix: str) -> Iterator[Stat]:
        self.asked["list"] += 1
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self.asked["delete"] += 1
        self._store.delete(key)


class CountedOutbox:
    def __init__(self, outbox: Outbox, asked: Asked) -> None:
        self._outbox = outbox
        self._asked = asked

    def small(self, name: str) -> bytes | None:
        self._asked["small"] += 1
        return self._outbox.small(name)

    def checkpoints(self) -> Iterable[str]:
        self._asked["checkpoints"] += 1
        return self._outbox.checkpoints()

    def manifest(self, name: str) -> bytes | None:
        self._asked["manifest"] += 1
        return self._outbox.manifest(name)

    def blob(self, sha256: str, target: Path) -> bool:
        self._asked["blob"] += 1
        return self._outbox.blob(sha256, target)

    def growing(self, here: Path, folder: Path) -> Growth:
        self._asked["growing"] += 1
        return self._outbox.growing(here, folder)


class Holding(SimulatedPlatform):
    """One session that never ends. Its outbox is a folder that loses nothing."""

    def __init__(self, clock: VirtualClock, outbox: Path) -> None:
        super().__init__("here", Scenario(), clock)
        self.outbox = outbox
        self.asked: Asked = Counter()
        self.collects = 0

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        status = AgentStatus("aaaa", int(self.clock.elapsed()), 0.0, "running")
        return {name: Sight(Sighting.RUNNING, Canned(("aaaa",), status)) for name in names}

    def open(self, name: str) -> Outbox:  # noqa: ARG002
        self.collects += 1
        return CountedOutbox(FolderOutbox(self.outbox), self.asked)


class Collecting:
    """One run that has a running session, and its controller."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.clock = VirtualClock(NOW)
        self.platform = Holding(self.clock, folder / "outbox")
        self.store = CountedStore(store or MemoryStore())
        self.ledger = Ledger.open(f"sqlite:///{folder / 'ledger.sqlite'}")
        self.folders = Folders(folder / "home")
        self.workers = SimulatedWorkers(self.clock, Random(1), 0.0)
        found = self.ledger.submit(Submitted(RUN, job(), NOW, store="home"), due_at=None)
        events = (assigned(), Prepared(NOW), Launched(NOW), Started(NOW, "aaaa"))
        self.ledger.append(found, events, due_at=None)
        self._up()

    def _up(self) -> None:
        takeover = self.ledger.take_over("test", now=self.clock.now())
        backends = Backends({"here": self.platform}, {"home": self.store}, "home", self.folders, secret=str)
        market = Market(("here",))
        self.engine = Engine(self.ledger, takeover.fence, backends, market, self.workers, self.clock)

    def restart(self) -> None:
        """The controller dies, and a new one starts."""
        self.workers.crash()
        assert self.ledger._takeover is not None
        self.ledger._takeover.release()
        self._up()

    def record(self) -> RunRecord:
        return self.ledger.record(RUN)

    def commit(self, *steps: int) -> None:
        """Commits checkpoints as the agent does: blobs first, then the manifest."""
        (self.platform.outbox / "blobs").mkdir(parents=True, exist_ok=True)
        for step in steps:
            data = b"%d" % step
            sha256 = hashlib.sha256(data).hexdigest()
            (self.platform.outbox / "blobs" / sha256).write_bytes(data)
            files = (FileEntry("state", len(data), (Part(sha256, len(data)),)),)
            manifest = Manifest(RUN, CheckpointRef(step, 1, "aaaa"), 16, files)
            place = self.platform.outbox / "checkpoints" / manifest.name
            place.mkdir(parents=True)
            (place / "manifest.json").write_bytes(manifest.encode())

    def run(self, seconds: float) -> None:
        end = self.clock.elapsed() + seconds
        while self.clock.elapsed() < end:
            self.engine.tick()
            self.clock.advance(2.0)

    def accept(self, step: int, seconds: float = 3600.0) -> None:
        """Waits until the checkpoint of this step is accepted and the ones it supersedes are retired."""
        end = self.clock.elapsed() + seconds
        while step not in {c.ref.step for c in self.record().accepted}:
            assert self.clock.elapsed() < end, f"{step} was not accepted"
            self.run(2.0)
        self.run(30.0)

    def idle(self, seconds: float = 120.0) -> tuple[dict[str, float], dict[str, float]]:
        """The average calls per collect, to the outbox and to the store, while nothing is new."""
        self.platform.asked.clear()
        self.store.asked.clear()
        before = self.platform.collects
        self.run(seconds)
        collects = self.platform.collects - before
        assert collects, "nothing was collected"
        outbox, store = (
            {verb: count / collects for verb, count in asked.items()}
            for asked in (self.platform.asked, self.store.asked)
        )
        return outbox, store
