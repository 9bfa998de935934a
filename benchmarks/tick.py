"""One tick of the controller with 10,000 runs: with all of them due, and with 1 % due.

    python -m benchmarks.tick [--json] [--running N] [--polled SHARE] [--database URL]

By default 100 runs are running and 9,900 are queued; `--running 10000` is the hard case. The engine, ledger
and decide are the real ones. The platform only answers that its sessions are running; in each tick, the share
`--polled` of them has a new reading (default: all). Prints the median seconds of several ticks of each kind,
the processor time of ticks with no run due, the process's peak memory, and the ledger's bytes a run.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from orchestrator.cli.running import GARBAGE_THRESHOLD
from orchestrator.clock import SystemClock
from orchestrator.core.assign import assign
from orchestrator.core.event import Assigned, Launched, Prepared, Started, Submitted
from orchestrator.core.job import Claim, Job, Precision, Profile, Work
from orchestrator.core.offer import Choice, Estimate, Offer, Traits
from orchestrator.core.order import AgentStatus, Order
from orchestrator.core.session import Sighting, StopReply
from orchestrator.engine.engine import Brought, Engine
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.platforms.platform import Sight
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials
from orchestrator.stores.memory import MemoryStore
from tests.seen import Canned

RUNS, RUNNING = 10_000, 100
TRAITS = Traits(session_seconds=12 * 3600.0, poll_seconds=0.0)


class Busy:
    """A platform with a long-running session in every slot."""

    name = "busy"

    def __init__(self, slots: int = RUNNING, polled: float = 1.0) -> None:
        self.slots = slots
        self.polled = polled
        self.heartbeat = 0

    def survey(self) -> tuple[Offer, ...]:
        return (Offer("busy", "T4", TRAITS, slots=self.slots, memory_gb=16.0, disk_gb=100.0),)

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        """Of the sessions, it has news of the share that is polled, in turn."""
        wanted = tuple(names)
        count = max(1, round(len(wanted) * self.polled)) if wanted else 0
        first = self.heartbeat * count % max(1, len(wanted))
        self.heartbeat += 1
        status = AgentStatus("aaaa", self.heartbeat, 0.0, "running", step=10, steps_per_second=1.0)
        read = (*wanted, *wanted)[first : first + count]
        return {name: Sight(Sighting.RUNNING, Canned(("aaaa",), status)) for name in read}

    def prepare(self, order: Order, materials: Materials) -> None:
        raise NotImplementedError

    def launch(self, order: Order) -> None:
        raise NotImplementedError

    def open(self, name: str) -> Outbox:
        return Canned()

    def stop(self, name: str) -> StopReply:
        return StopReply.REQUESTED

    def discard(self, name: str) -> None:
        raise NotImplementedError


class WorkersBetween:
    """Works between two ticks, so that neither threads nor the tasks' own cost blur that of a tick."""

    def __init__(self) -> None:
        self._tasks: list[Callable[[], Brought]] = []
        self._done: list[Brought] = []

    def start(self, lane: str, task: Callable[[], Brought], _failed: object) -> None:
        self._tasks.append(task)

    def work(self) -> None:
        tasks, self._tasks = self._tasks, []
        self._done += [task() for task in tasks]

    def finished(self) -> list[Brought]:
        done, self._done = self._done, []
        return done


def job(number: int) -> Job:
    """Jobs differ, as those of users do, so that no cache profits from equal jobs."""
    profile = Profile(16, Precision.FP16, 12.0, Claim((10.0, 25.0), 64, "T4", "a note", "2025-10-21"))
    work = Work(total=50_000 + number, global_batch=64, group=8, parameters=80.3e6, flops_per_step=25.7e12)
    return Job(f"job-{number}", ("train",), work, (("T4", profile),), bundle="0" * 64, seed=number)


def fill(ledger: Ledger, running: int = RUNNING) -> None:
    offer = Busy().survey()[0]
    for number in range(RUNS):
        run = f"job-{number}-{number:08d}"
        record = ledger.submit(Submitted(run, job(number), float(number)), due_at=None)
        if number < running:
            estimate = Estimate(0, 1, 1, 1, 1, 0.0, 0.0, 64.0, "claim")
            order = assign(record, Choice(offer, 16, 4, 1, estimate))
            now = time.time()
            events = (Assigned(now, order, TRAITS, ""), Prepared(now), Launched(now), Started(now, "aaaa"))
            ledger.append(record, events, due_at=None)


def measure(url: str, folder: Path, running: int = RUNNING, polled: float = 1.0) -> dict[str, float]:
    ledger = Ledger.open(url)
    fill(ledger, running)
    queued_count = RUNS - running
    takeover = ledger.take_over("benchmark", now=time.time())
    backends = Backends(
        {"busy": Busy(running, polled)}, {"home": MemoryStore()}, "home", Folders(folder), secret=str
    )
    market = Market(("busy",))
    workers = WorkersBetween()
    engine = Engine(ledger, takeover.fence, backends, market, workers, SystemClock())
    for _ in range(4):
        engine.tick()
        workers.work()

    def ticks(due: int, rounds: int = 7, timer: Callable[[], float] = time.perf_counter) -> list[float]:
        taken = []
        for _ in range(rounds):
            queued = [each for each in ledger.waiting({}) if not isinstance(each, str)]
            assert len(queued) == queued_count
            ledger.schedule([(record, 0.0) for record in queued[:due]])
            start = timer()
            engine.tick()
            taken.append(timer() - start)
            workers.work()
        return taken

    return {
        "first_decision_of_all_seconds": max(ticks(queued_count, rounds=1)),
        "all_due_seconds": statistics.median(ticks(queued_count)),
        "one_percent_due_seconds": statistics.median(ticks(queued_count // 100)),
        "none_due_seconds": statistics.median(ticks(0)),
        "none_due_processor_seconds": statistics.median(ticks(0, timer=time.process_time)),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ledger_bytes_a_run": ledger.size() / RUNS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--running", type=int, default=RUNNING, metavar="N", help="of 10,000 (default: 100)")
    parser.add_argument(
        "--polled", type=float, default=1.0, metavar="SHARE", help="of the sessions has news in a tick"
    )
    parser.add_argument(
        "--database", help="SQLAlchemy URL of an empty database (default: a temporary SQLite)"
    )
    options = parser.parse_args()
    gc.set_threshold(GARBAGE_THRESHOLD)  # as in every command
    with tempfile.TemporaryDirectory() as folder:
        url = options.database or f"sqlite:///{folder}/ledger.sqlite"
        figures = measure(url, Path(folder), options.running, options.polled)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{RUNS - options.running} queued, {options.running} running, {options.polled:.0%} of them polled:")
    for name, value in figures.items():
        print(f"  {name:30} {value:10.4f}")


if __name__ == "__main__":
    main()
