"""The installed `orchestrator` as a user runs it: each command is a process, in a home of its own."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.core.run import RunRecord
from orchestrator.errors import OrchestratorError
from orchestrator.files.drafts import write_whole
from orchestrator.ledger import Ledger, Owner
from tests import no_production, warm
from tests.waiting import wait_until

BINARIES = Path(sys.executable).parent
SOURCE = Path(__file__).parent / "data" / "source"
PATIENCE = 240.0  # on a machine that others use as well
KEPT = ("LANG", "TMPDIR", no_production.VARIABLE)
CONFIG = """
platforms:
  here: {type: process, session_seconds: 5, setup_seconds: 1, grace_seconds: 5, poll_seconds: 0.2}
"""
JOB = """
name: tiny
source: source
command: python train.py {{steps}} {pace}
work: {{total: {total}, global_batch: 8}}
checkpoint: {{interval: 1s, keep: {{last: 3, best: {{metric: accuracy, mode: max}}}}}}
profiles:
  {accelerator}: {{micro_batch: 8, precision: fp32}}
"""
UNLIMITED = CONFIG.replace("session_seconds: 5, ", "")  # a session ends with its run
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output parsed as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Caller:
    """One user: a folder with jobs, which is also their HOME, and a home of the orchestrator."""

    folder: Path
    home: Path
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key in KEPT}
        path = os.pathsep.join((str(BINARIES), os.environ["PATH"]))
        homes = {"HOME": str(self.folder), "ORCHESTRATOR_HOME": str(self.home)}
        # A job's requirements are not locked: no test asks a package index on the internet.
        return {**kept, **homes, "PATH": path, "PIP_NO_INDEX": "1", **(more or {})}

    def start(
        self, *words: str, program: str = "orchestrator", reads: bool = False, **more: str
    ) -> subprocess.Popen[str]:
        """Starts a command without waiting for it; `more` goes into its environment."""
        child = subprocess.Popen(
            [str(BINARIES / program), *words],
            cwd=self.folder,
            env=self.environment(more),
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def on_a_terminal(self, *words: str, columns: int = 200, answer: str | None = None) -> str:
        """Runs a command on a terminal, and answers its yes-or-no question if there is one to answer. Returns
        all that the terminal got."""
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [str(BINARIES / "orchestrator"), *words],
            cwd=self.folder,
            env=self.environment({"TERM": "xterm", "COLUMNS": str(columns)}),
            stdin=subprocess.DEVNULL if answer is None else theirs,
            stdout=theirs,
            stderr=theirs,
        )
        self.children.append(child)  # type: ignore[arg-type]
        os.close(theirs)
        said = b""
        with suppress(OSError):  # the last writer has exited
            while data := os.read(ours, 1 << 16):
                said += data
                if answer is not None and b"[y/N]" in said:
                    os.write(ours, answer.encode() + b"\n")
                    answer = None
        os.close(ours)
        assert child.wait(PATIENCE) == 0
        return said.decode()

    def __call__(
        self, *words: str, code: int = 0, program: str = "orchestrator", given: str | None = None, **more: str
    ) -> Answer:
        """Runs a command to its end and checks its exit code. `given`: what it reads on standard input."""
        if warm.is_same(words, more):
            environ = self.environment(more)
            answer = Answer(*warm.run((program, *words), self.folder, environ, given, PATIENCE))
        else:
            child = self.start(*words, program=program, reads=given is not None, **more)
            out, err = child.communicate(given, timeout=PATIENCE)
            answer = Answer(child.returncode, out, err)
        assert answer.code == code, f"{words} ended with {answer.code}:\n{answer.out}\n{answer.err}"
        assert "Traceback" not in answer.err  # a run's own, in its output, is no bug of ours
        return answer

    def job(
        self,
        name: str = "job.yaml",
        total: int = 40,
        pace: float = 0.05,
        accelerator: str = "cpu",
        gate: int | None = None,
    ) -> str:
        """Writes a job's file; returns its name. With a `gate` no run of it trains beyond that step before
        `open_gate`, however long the test takes, and no session that waits there counts as a failure."""
        text = JOB.format(total=total, pace=pace, accelerator=accelerator)
        if gate is not None:
            self.open_gate(gate)
            text = text.replace(f" {pace}\n", f" {pace} {self._gate}\n") + "retry: {without_progress: 1000}\n"
        (self.folder / name).write_text(text)
        return name

    def open_gate(self, step: int) -> None:
        """Lets every gated training go on to this step."""
        write_whole(self._gate, str(step).encode(), sync=False)

    @property
    def _gate(self) -> Path:
        return self.folder / "gate"

    def config(self, text: str = CONFIG) -> None:
        """A running controller sees the old config or the new one, never a part."""
        self.home.mkdir(parents=True, exist_ok=True)
        write_whole(self.home / "config.yaml", text.encode(), sync=False)

    def submitted(self, job: str, *words: str) -> str:
        """Submits and returns the run's name."""
        return str(self("submit", job, "--json", *words).json["run"])

    def phase(self, run: str) -> str:
        return str(self("show", run, "--json").json["phase"])

    def record(self, run: str) -> RunRecord:
        """As the ledger has it. A command costs a hundred times as much, so waiting looks here."""
        with Ledger.open(f"sqlite:///{self.home / 'ledger.sqlite'}") as ledger:
            return ledger.record(run)

    def wait_for_phase(self, run: str, *phases: str) -> None:
        """Until the ledger and then the command says so."""
        what = f"{run} to be {' or '.join(phases)}"
        wait_until(lambda: self.record(run).standing in phases, what)
        wait_until(lambda: self.phase(run) in phases, what)

    def wait_for_checkpoint(self, run: str) -> int:
        """The step of the newest accepted checkpoint, once there is one."""
        wait_until(lambda: self.record(run).accepted, "a checkpoint")
        found = self("show", run, "--json").json["checkpoints"]
        return max(int(each["ref"]["step"]) for each in found)

    def owner(self) -> Owner | None:
        """The running controller's process, once it has written who it is."""
        if not (self.home / "ledger.sqlite").exists():
            return None
        with Ledger.open(f"sqlite:///{self.home / 'ledger.sqlite'}") as ledger:
            owner = ledger.owner()
        return owner if owner is not None and owner.pid else None

    def close(self) -> None:
        """Ends every process that was started here, by its process id."""
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        with suppress(OrchestratorError, OSError):
            if (owner := self.owner()) is not None:
                os.kill(owner.pid, signal.SIGKILL)
                wait_until(lambda: self.owner() is None, "the controller to be gone")
        for agent in self.home.glob("platforms/*/*/agent.pid"):
            with suppress(OSError, ValueError):
                pid = int(agent.read_text())
                if b"agent.pyz" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def caller(folder: Path, home: Path | None = None) -> Iterator[Caller]:
    """A user in `folder`, which holds the training source. Every process that the user started is ended."""
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    user = Caller(folder, home or folder / "home")
    try:
        yield user
    finally:
        user.close()
