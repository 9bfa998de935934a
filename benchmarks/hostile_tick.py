"""What one hostile session costs the others: the longest tick with its floods, and without.

    python -m benchmarks.hostile_tick [--json] [--checkpoints 4000]

The session sends 4,000 checkpoints, floods of log lines and warnings, and a status of 14 MB that is rewritten
at each look. The engine, ledger, decide, the outbox and the home store are the real ones. Workers run between
ticks, as threads would, so that only what delays other runs is counted: the CPU seconds of the tick thread,
for every tick from the first. Exits with 1 if a tick took longer than the target.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tick import Busy, job
from orchestrator.clock import SystemClock
from orchestrator.core import bounds
from orchestrator.core.assign import assign
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.event import Assigned, Launched, Prepared, Started, Submitted
from orchestrator.core.offer import Choice, Estimate, Offer, Traits
from orchestrator.core.order import AgentStatus
from orchestrator.core.session import Sighting
from orchestrator.engine.engine import Brought, Engine
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.files import Odd
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.platforms.platform import Sight
from orchestrator.session.folder import SessionFolder
from orchestrator.session.layout import LOG, STATUS
from orchestrator.session.outbox import FolderOutbox, Outbox
from orchestrator.stores.folder import FolderStore
from tests.seen import Canned

TRAITS = Traits(session_seconds=12 * 3600.0, poll_seconds=0.0, durable_mid_run=True)
NEIGHBOURS = 10
ROUNDS = 400  # maximum of ticks; the flood ends long before
AIM_SECONDS = 0.1  # target for every tick
STATUS_BYTES = 14 << 20
LOG_SEGMENTS, LOG_BYTES = 64, 100_000  # new segments before each collect, and the bytes of each


class Flooding(Busy):
    """A platform with calm sessions and a hostile one.

    At every look, the hostile session's status is 14 MB and newly written. It is too large to be read, so its
    agent's 20 new warnings are added to the observation. At every collect there is more log.
    """

    def __init__(self, session: SessionFolder, hostile: str) -> None:
        super().__init__()
        self._session = session
        self._hostile = hostile
        self._segments = 0

    def survey(self) -> tuple[Offer, ...]:
        return (Offer("busy", "T4", TRAITS, slots=NEIGHBOURS + 1, memory_gb=16.0, disk_gb=100.0),)

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        seen = dict(super().observe(names))
        for name in seen:
            if name.startswith(self._hostile):
                (self._session.outbox / STATUS).write_bytes(b" " * STATUS_BYTES)
                beside = Canned(("aaaa",), self._warning())
                seen[name] = Sight(Sighting.RUNNING, beside, notes=(self._refusal(),))
        return seen

    def _refusal(self) -> str:
        try:
            FolderOutbox(self._session.outbox).small(STATUS)
        except Odd as odd:
            return str(odd)
        raise AssertionError("a status of any size is read")

    def _warning(self) -> AgentStatus:
        words = (f"{'x' * number} at {self.heartbeat}" for number in range(bounds.WARNINGS_MAX))
        warnings = tuple(word.ljust(bounds.WARNING_BYTES_MAX, "!") for word in words)
        return AgentStatus("aaaa", self.heartbeat, 0.0, "running", step=self.heartbeat, warnings=warnings)

    def open(self, name: str) -> Outbox:
        if not name.startswith(self._hostile):
            return Canned()
        outbox = self._session.outbox
        for _ in range(LOG_SEGMENTS):
            self._segments += 1
            (outbox / LOG / f"{self._segments:06d}.log").write_bytes(b"x" * LOG_BYTES)
        return FolderOutbox(outbox)


class BetweenTicks:
    """Runs tasks only on request, so that their time does not count for the tick."""

    def __init__(self) -> None:
        self._tasks: list[Callable[[], Brought]] = []
        self._done: list[Brought] = []

    def start(self, _lane: str, task: Callable[[], Brought], _failed: object) -> None:
        self._tasks.append(task)

    def run(self) -> None:
        tasks, self._tasks = self._tasks, []
        self._done += [task() for task in tasks]

    def finished(self) -> list[Brought]:
        done, self._done = self._done, []
        return done


@dataclass(frozen=True)
class Flood:
    """CPU seconds of this many ticks. `accepted` counts the checkpoints journalled meanwhile."""

    longest: float
    median: float
    ticks: int
    accepted: int


def flood(checkpoints: int) -> Flood:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = Ledger.open(f"sqlite:///{folder}/ledger.sqlite")
        runs = [running(ledger, number) for number in range(NEIGHBOURS + 1)]
        session = SessionFolder(folder / "session")
        fill(session.outbox, runs[0], checkpoints)
        takeover = ledger.take_over("benchmark", now=time.time())
        platform = Flooding(session, runs[0] if checkpoints else "nobody")
        store = FolderStore(folder / "store")
        backends = Backends({"busy": platform}, {"home": store}, "home", Folders(folder / "home"), secret=str)
        workers = BetweenTicks()
        engine = Engine(ledger, takeover.fence, backends, Market(("busy",)), workers, SystemClock())
        taken: list[float] = []
        while len(taken) < ROUNDS and (len(taken) < 20 or accepted(ledger, runs[0]) < checkpoints):
            workers.run()
            start = time.thread_time()
            engine.tick()
            taken.append(time.thread_time() - start)
        found = Flood(max(taken), statistics.median(taken), len(taken), accepted(ledger, runs[0]))
        ledger.close()
        return found


def running(ledger: Ledger, number: int) -> str:
    run = f"job-{number}-{number:08d}"
    record = ledger.submit(Submitted(run, job(number), float(number)), due_at=None)
    offer = Offer("busy", "T4", TRAITS, slots=1, memory_gb=16.0, disk_gb=100.0)
    order = assign(record, Choice(offer, 16, 4, 1, Estimate(0, 1, 1, 1, 1, 0.0, 0.0, 64.0, "claim")))
    now = time.time()
    events = (Assigned(now, order, TRAITS, ""), Prepared(now), Launched(now), Started(now, "aaaa"))
    ledger.append(record, events, due_at=None)
    return run


def fill(outbox: Path, run: str, checkpoints: int) -> None:
    for name in ("blobs", "log"):
        (outbox / name).mkdir(parents=True)
    (outbox / "incarnation").write_text("aaaa")
    for step in range(1, checkpoints + 1):
        data = b"%d" % step
        sha256 = hashlib.sha256(data).hexdigest()
        (outbox / "blobs" / sha256).write_bytes(data)
        files = (FileEntry("state", len(data), (Part(sha256, len(data)),)),)
        manifest = Manifest(run, CheckpointRef(step, 1, "aaaa"), 64, files)
        place = outbox / "checkpoints" / manifest.name
        place.mkdir(parents=True)
        (place / "manifest.json").write_bytes(manifest.encode())


def accepted(ledger: Ledger, run: str) -> int:
    """The step of the newest accepted checkpoint. They are numbered from 1 and arrive in order."""
    return max((c.ref.step for c in ledger.record(run).accepted), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--checkpoints", type=int, default=4000)
    options = parser.parse_args()
    calm, hostile = flood(0), flood(options.checkpoints)
    figures = {
        "calm_longest_seconds": calm.longest,
        "calm_median_seconds": calm.median,
        "hostile_longest_seconds": hostile.longest,
        "hostile_median_seconds": hostile.median,
        "hostile_ticks": hostile.ticks,
        "checkpoints_accepted": hostile.accepted,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"{NEIGHBOURS} calm sessions, and one with {options.checkpoints} checkpoints and floods:")
        for name, value in figures.items():
            print(f"  {name:26} {value:10.4f}")
    if hostile.accepted < options.checkpoints:
        print(f"not all checkpoints were accepted in {ROUNDS} ticks", file=sys.stderr)
        return 1
    if hostile.longest > AIM_SECONDS:
        print(f"a tick took longer than the target of {AIM_SECONDS} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
