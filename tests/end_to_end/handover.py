"""Two controllers on one PostgreSQL, lost in turn: `python -m tests.end_to_end.handover --losses 30`.

The controllers share a home, as two boxes with one disk do. So each reaches the sessions of the other, and no
session may end because its controller did. New runs are submitted all the time, so that something is always
about to start.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import psycopg
import yaml

from orchestrator import Client
from orchestrator.clock import SystemClock
from orchestrator.core.event import Assigned, Ended
from orchestrator.core.lifecycle import Phase
from orchestrator.errors import OrchestratorError
from orchestrator.ledger import Ledger, Owner
from tests import postgresql
from tests.end_to_end.user import QUICK, SOURCE, wait_until

COMMAND = Path(sys.executable).with_name("orchestrator")
TAKEN_SECONDS_MAX = 10.0


class Loss(StrEnum):
    """How a controller is lost."""

    KILLED = "killed"
    FROZEN = "frozen"
    CUT = "cut off from the server"
    SERVER = "server restarted"
    STOPPED = "stopped"


@dataclass
class Machine:
    """One controller of a home, started again whenever it was lost."""

    home: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, if need be once it has left."""
        if self.process is not None:
            self.process.wait()
        given = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(COMMAND), "up", "--standby"],
                cwd=self.home,
                env={**given, "ORCHESTRATOR_HOME": str(self.home), "PIP_NO_INDEX": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()  # even if it is stopped
            self.process.wait()


@dataclass
class World:
    """Two machines, their server, and the runs so far."""

    folder: Path
    cluster: postgresql.Cluster
    server: postgresql.Server
    machines: tuple[Machine, Machine]
    starts: Path
    runs: list[str] = field(default_factory=list)
    taken: list[tuple[Loss, float]] = field(default_factory=list)

    # --- Looking ------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self.server.url

    def owner(self) -> Owner | None:
        try:
            with Ledger.open(self.url) as ledger:
                found = ledger.owner()
        except OrchestratorError:
            return None
        return found if found is not None and found.pid else None

    def both_there(self) -> Machine | None:
        """The machine that controls, once the other one waits."""
        try:
            with Ledger.open(self.url) as ledger:
                owner, standbys = ledger.owner(), {each.pid for each in ledger.standbys()}
        except OrchestratorError:
            return None
        for active, other in (self.machines, self.machines[::-1]):
            if owner is not None and owner.pid == active.pid and other.pid in standbys:
                return active
        return None

    def story(self) -> str:
        logs = [f"--- {each.log.name}\n{each.log.read_text()[-6000:]}" for each in self.machines]
        return "\n".join([f"the owner: {self.owner()}", *logs])

    # --- Acting -------------------------------------------------------------------------------------------

    def submit(self, steps: int) -> None:
        spec = {
            "name": "load",
            "source": str(self.folder / "source"),
            "command": f"python started.py {{steps}} 0.1 {self.starts}",
            "work": {"total": steps, "global_batch": 8},
            "profiles": {"cpu": {"micro_batch": 8, "precision": "fp32"}},
            "checkpoint": {"interval": "1s", "keep": {"last": 3}},
        }
        job = self.folder / "job.yaml"
        job.write_text(yaml.safe_dump(spec))
        self.runs.append(Client(self.machines[0].home).submit(job).run.name)

    def lose(self, loss: Loss) -> None:
        """The controller is lost this way. Waits until another controller, or the same one again, controls,
        and until both machines are there again."""
        active = wait_until(self.both_there, lambda: f"a controller and a standby\n{self.story()}")
        clock = SystemClock()
        began = clock.monotonic()
        match loss:
            case Loss.KILLED:
                active.end()
            case Loss.STOPPED:
                active.signal(signal.SIGTERM)
            case Loss.FROZEN:
                active.signal(signal.SIGSTOP)
            case Loss.CUT:
                self._cut()
            case Loss.SERVER:
                self.cluster.stop()
                self.server = self.cluster.start()
                began = clock.monotonic()
        if loss in (Loss.CUT, Loss.SERVER):
            wait_until(self.owner, lambda: f"a controller\n{self.story()}")
        else:
            wait_until(lambda: (found := self.owner()) and found.pid != active.pid, f"{loss}: a takeover")
        self.taken.append((loss, clock.monotonic() - began))
        if loss is Loss.FROZEN:
            active.signal(signal.SIGCONT)
        elif loss in (Loss.KILLED, Loss.STOPPED):
            active.start()
        wait_until(self.both_there, lambda: f"after it was {loss}: both there again\n{self.story()}")

    def _cut(self) -> None:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid) "
                "WHERE locktype = 'advisory'"
            )

    # --- Checking -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every run is done, by one session that was started once and that nobody took for lost."""
        with Ledger.open(self.url) as ledger:
            wait_until(
                lambda: all(ledger.record(run).phase.final for run in self.runs),
                lambda: (
                    f"the end of {[(run, ledger.record(run).phase) for run in self.runs]}\n{self.story()}"
                ),
            )
            for run in self.runs:
                events = [stored.event for stored in ledger.history(run)]
                story = "\n".join(str(event)[:300] for event in events)
                assert ledger.record(run).phase is Phase.DONE, story
                assert sum(isinstance(event, Assigned) for event in events) == 1, story
                assert sum(isinstance(event, Ended) for event in events) == 1, story
        started = Counter(line.split()[0] for line in self.starts.read_text().splitlines())
        assert len(started) == len(self.runs)
        assert set(started.values()) == {1}, started


@contextmanager
def world(folder: Path) -> Iterator[World]:
    home = folder / "home"
    home.mkdir(parents=True)
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    with postgresql.cluster() as cluster:
        server = cluster.start()
        config = {
            "database": server.url,
            "platforms": {"here": {**QUICK, "slots": 3}},
        }
        (home / "config.yaml").write_text(yaml.safe_dump(config))
        machines = Machine(home, folder / "one.log"), Machine(home, folder / "other.log")
        made = World(folder, cluster, server, machines, folder / "starts")
        try:
            for each in machines:
                each.start()
            yield made
        finally:
            for each in machines:
                each.end()
            end_agents(folder)


def end_agents(folder: Path) -> None:
    """Ends the sessions in every home of this folder, by their process ids."""
    for agent in folder.glob("*/platforms/*/*/agent.pid"):
        with suppress(OSError, ValueError):
            pid = int(agent.read_text())
            if b"agent.pyz" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def play(made: World, losses: list[Loss], random: Random) -> None:
    """Loses the controllers in this order, with a new run at each loss. Raises AssertionError."""
    clock, never = SystemClock(), threading.Event()
    for loss in losses:
        made.submit(random.randint(10, 60))
        clock.wait(never, random.uniform(0.0, 1.5))
        made.lose(loss)
    made.check()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=30)
    parser.add_argument("--seed", type=int, default=Random().randrange(1 << 32))
    given = parser.parse_args()
    random = Random(given.seed)
    kinds = [random.choice(list(Loss)) for _ in range(given.losses)]
    folder = Path(mkdtemp(prefix="handover-"))
    sys.stdout.write(f"seed {given.seed}\n")
    with world(folder) as made:
        try:
            play(made, kinds, random)
        finally:
            for loss, seconds in made.taken:
                sys.stdout.write(f"{loss}: taken over after {seconds:.1f} s\n")
    slowest = max(seconds for _, seconds in made.taken)
    sys.stdout.write(f"{len(made.runs)} runs done, nothing doubled; slowest takeover {slowest:.1f} s\n")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
