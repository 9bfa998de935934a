"""Runs hostile sessions next to a healthy one through the real engine; the healthy one must finish.

By hand:

    python -m tests.fuzz.engine_fuzz --minutes 20 --seed 1 [--database sqlite|postgresql|both]

The engine, ledger, market, verbs, reading, folders and store are real. Processes are puppets that write what
a seed says (tests/fuzz/puppets.py), and time is virtual. No tick and no verb may raise, no tick may take more
than a second of processor time, and no verb may hang. A failure is reported with the seed and case that
reproduce it, and with everything the hostile sessions of that case did.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from sqlalchemy import delete

from orchestrator.core.event import Submitted, Wished
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.engine.engine import Engine
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.ledger.tables import events, measurements, runs
from orchestrator.stores.folder import FolderStore
from tests import postgresql
from tests.core.runs import job
from tests.fuzz.puppets import HostilePuppet, PuppetPlatform
from tests.fuzz.timer import raising
from tests.simulation.clock import VirtualClock
from tests.simulation.workers import SimulatedWorkers

TICK_SECONDS_MAX = 1.0  # of processor time: the load of other processes does not count
VERB_SECONDS_MAX = 30.0  # of wall-clock time, on a shared machine
MEMORY_BYTES_MAX = 4 << 30
TICKS_MAX = 1500
STEPS = 100
_MEMORY = Path("/dev/shm")


class Hung(BaseException):
    """Not an Exception, so that no handler swallows it."""


@dataclass
class Tally:
    cases: int = 0
    ticks: int = 0
    attacks: Counter[str] = field(default_factory=Counter)  # that took effect, by kind
    slowest: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)


class Case:
    """One healthy run and a few hostile ones on one platform, with a folder and a database of their own."""

    def __init__(self, ledger: Ledger, folder: Path, draw: Random) -> None:
        self.draw = draw
        self.clock = VirtualClock()
        self.ledger = ledger
        folders = Folders(folder / "home")
        found = job()
        for path in (folders.bundle(found.bundle), folders.agent):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        hostile = draw.randint(1, 2)
        self.platform = PuppetPlatform(folder / "box", self.clock, draw, slots=1 + hostile)
        self.workers = SimulatedWorkers(self.clock, Random(draw.random()), 0.0)
        self.healthy = self._submit("healthy")
        self.villains = [self._submit(f"villain{number}") for number in range(hostile)]
        self.platform.hostile_runs.update(self.villains)
        self.takeover = ledger.take_over("fuzz", now=self.clock.now())
        self._backends = Backends(
            {"box": self.platform},
            {"home": FolderStore(folder / "store")},
            "home",
            folders,
            lambda name: name,
        )
        self.slowest = 0.0
        self.ticks = 0
        self.engine = self._engine()

    def _engine(self) -> Engine:
        self.workers.crash()  # what an earlier engine had in progress: nobody gets the answer
        return Engine(
            self.ledger, self.takeover.fence, self._backends, Market(("box",)), self.workers, self.clock
        )

    def _submit(self, run: str) -> str:
        found = job(name=run, work=Work(total=STEPS, global_batch=16))
        self.ledger.submit(Submitted(run, found, self.clock.now()))
        return run

    def play(self) -> None:
        """Runs until the healthy run is done, and a while longer. A controller restarts once."""
        restart_at = self.draw.randint(5, 60)
        left = TICKS_MAX
        while left:
            for puppet in self.platform.puppets:
                puppet.act()
            with patience():
                self.workers.take_effect()
            self._tick()
            if self.ticks == restart_at:
                self.engine = self._engine()  # reads everything stored again
            self._release()
            self.clock.advance(self.draw.uniform(0.5, 5.0))
            left -= 1
            if self.ledger.record(self.healthy).phase is Phase.DONE:
                left = min(left, 10)
        record = self.ledger.record(self.healthy)
        assert record.phase is Phase.DONE, f"the healthy run is {record.phase.value}: {record.reason}"

    def _tick(self) -> None:
        began = time.process_time()
        with patience():
            self.engine.tick()
        self.ticks += 1
        took = time.process_time() - began
        self.slowest = max(self.slowest, took)
        assert took <= TICK_SECONDS_MAX, f"a tick took {took:.1f} s of processor time"

    def _release(self) -> None:
        """Gives the hostile runs another chance."""
        for run in self.villains:
            if self.draw.random() < 0.05:
                self.ledger.wish(run, Wished(self.clock.now(), self.draw.choice((Wish.RELEASE, Wish.HOLD))))

    @property
    def hostile(self) -> list[HostilePuppet]:
        return [puppet for puppet in self.platform.puppets if isinstance(puppet, HostilePuppet)]

    def tried(self) -> list[str]:
        return [name for puppet in self.hostile for name in puppet.tried]

    def attacks(self) -> list[str]:
        """The attacks that took effect."""
        return [name for puppet in self.hostile for name in puppet.done]

    def close(self) -> None:
        for puppet in self.platform.puppets:
            puppet.leave()
        self.takeover.release()
        with self.ledger._database.write() as connection:
            for table in (events, measurements, runs):
                connection.execute(delete(table))
        self.ledger._measured.clear()


def patience() -> AbstractContextManager[None]:
    """Raises Hung if the body does not return, for example from a read of a pipe."""
    hung = Hung(f"it has not come back in {VERB_SECONDS_MAX:.0f} s")
    return raising(signal.SIGALRM, signal.ITIMER_REAL, VERB_SECONDS_MAX, hung)


def fuzz(
    url: str, seed: int, first: int = 0, cases: int | None = None, seconds: float | None = None,
    *, tell_all: bool = False,
) -> Tally:  # fmt: skip
    """Plays this many cases, or for this long. Raises at the first failure, otherwise returns counts."""
    deadline = None if seconds is None else time.monotonic() + seconds
    tally = Tally()
    with Ledger.open(url) as ledger:
        while tally.cases != cases and (deadline is None or time.monotonic() < deadline):
            number = first + tally.cases
            with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
                _play(ledger, Path(folder), seed, number, tally, tell_all=tell_all)
            tally.cases += 1
    return tally


def _play(ledger: Ledger, folder: Path, seed: int, number: int, tally: Tally, *, tell_all: bool) -> None:
    case = Case(ledger, folder, Random(f"{seed}/{number}"))
    try:
        case.play()
    except BaseException as error:
        sys.stderr.write(f"seed {seed}, case {number}, after {case.tried()}\n")
        if tell_all and not isinstance(error, KeyboardInterrupt):
            tally.failures[_summary(error)] += 1
            return
        raise
    finally:
        tally.ticks += case.ticks
        tally.attacks.update(name.partition(" at ")[0] for name in case.attacks())
        tally.slowest = max(tally.slowest, case.slowest)
        case.close()


def _summary(error: BaseException) -> str:
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "/orchestrator/" in f.filename]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} in {ours[-1].name}" if ours else "the fuzzer"
    return f"{type(error).__name__} at {where}: {str(error)[:120]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=20.0, help="shared by the databases")
    parser.add_argument("--cases", type=int, help="so many on each database instead of minutes")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--url", help="an empty database instead")
    parser.add_argument("--all", action="store_true", help="go on after a failure, and count what was found")
    given = parser.parse_args()
    # A link to /dev/zero never ends.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    databases = ("sqlite", "postgresql") if given.database == "both" else (given.database,)
    databases = (given.url.partition(":")[0],) if given.url else databases
    failed = False
    for name in databases:
        seconds = None if given.cases else 60.0 * given.minutes / len(databases)
        with ExitStack() as stack:
            url = given.url or _database(name, stack)
            tally = fuzz(url, given.seed, given.first, given.cases, seconds, tell_all=given.all)
        sys.stdout.write(
            f"{name}, seed {given.seed}: {tally.cases} cases, {tally.ticks} ticks, "
            f"{tally.attacks.total()} attacks of {len(tally.attacks)} kinds, "
            f"the slowest tick {tally.slowest:.2f} s, {tally.failures.total()} failed\n"
        )
        for failure, times in tally.failures.most_common():
            sys.stdout.write(f"  {times} × {failure}\n")
        failed = failed or bool(tally.failures)
    return 1 if failed else 0


def _database(name: str, stack: ExitStack) -> str:
    """The URL of an empty database, which lasts as long as the stack."""
    if name == "postgresql":
        return stack.enter_context(postgresql.running()).new_schema("fuzz")
    folder = stack.enter_context(tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None))
    return f"sqlite:///{Path(folder) / 'ledger.sqlite'}"


if __name__ == "__main__":
    sys.exit(main())
