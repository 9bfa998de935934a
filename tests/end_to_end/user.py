"""A user with a home of their own: real commands, a real detached controller, real sessions.

Knows processes through the kernel and runs through the ledger. Leaves no process running.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.errors import OrchestratorError
from orchestrator.ledger import Ledger, Stored
from tests import waiting, warm

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).parent / "source"
PATIENCE = 600.0  # on a machine that others use as well
COMMAND_PATIENCE = 3 * PATIENCE  # the command may follow a whole training, beside those of other tests
_COMMAND = Path(sys.executable).with_name("orchestrator")
T = TypeVar("T")

QUICK: Mapping[str, Any] = {  # a process platform for tests: polled often, with small margins
    "type": "process", "accelerator": "cpu", "poll_seconds": 0.25, "visibility_seconds": 1.0,
    "slack_seconds": 20.0, "grace_seconds": 60.0, "setup_seconds": 1.0, "threads": 1,
}  # fmt: skip

# Of GraphMER's demo, where only its bits are compared and not what it learns: a quarter of the work.
TINY: Mapping[str, Mapping[str, Any]] = {
    "data": {"facts": 8000, "vocabulary": 2048},
    "model": {"width": 48, "layers": 2, "heads": 2, "feed": 128},
    "evaluation": {"facts": 100},
}


def wait_until(
    condition: Callable[[], T | None], what: Callable[[], str] | str, seconds: float = PATIENCE
) -> T:
    """Waits long enough for a machine that others use as well."""
    return waiting.wait_until(condition, what, seconds)


def train_in_one_piece(folder: Path, script: str, steps: int, *flags: str) -> dict[str, str]:
    """Runs a script of SOURCE directly, without interruption; returns its final checkpoint's fingerprints."""
    folder.mkdir(parents=True)
    given = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    environ = {**given, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(QUICK["threads"])}
    command = [sys.executable, str(SOURCE / script), str(steps), *flags]
    subprocess.run(command, cwd=folder, env=environ, check=True, timeout=PATIENCE)
    return fingerprints(folder / "checkpoints" / f"step-{steps}")


def paced_demo(
    folder: Path,
    steps: int,
    accelerators: Sequence[str] = ("cpu",),
    *,
    seconds: float = 1.0,
    settings: Mapping[str, Mapping[str, Any]] = TINY,
    **changes: object,
) -> Path:
    """The bundled demo's job with this many steps, each at least `seconds` long. So a session's length limits
    its number of steps on any machine. `settings` replace those of the demo's training, `changes` are keys of
    the spec; None removes one. The training's source and settings lie in `folder`/graphmer."""
    spec = yaml.safe_load((ROOT / "jobs" / "graphmer_demo.yaml").read_text())
    source = folder / "graphmer"
    shutil.copytree(ROOT / "jobs" / spec["source"], source, ignore=shutil.ignore_patterns("__pycache__"))
    config = source / "train_demo.yaml"
    given = yaml.safe_load(config.read_text())
    parts = {
        part: {**keys, **settings.get(part, {})} for part, keys in given.items() if isinstance(keys, dict)
    }
    config.write_text(yaml.safe_dump({**given, **parts, "step_seconds_min": seconds}))
    spec |= {
        "source": str(source),
        "requirements": str(source / "requirements.txt"),
        "image": str((ROOT / "jobs" / spec["image"]).resolve()),
        "work": {**spec["work"], "total": steps},
        "retry": {"without_progress": 1000},  # on a busy machine a short session may end while it starts
        "profiles": {each: dict(spec["profiles"]["cpu"]) for each in accelerators},
        **changes,
    }
    path = folder / "graphmer_demo.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in spec.items() if value is not None}))
    return path


def fingerprints(checkpoint: Path) -> dict[str, str]:
    """File name → sha256."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(checkpoint.iterdir())}


class Role(StrEnum):
    """What a process of this home is for."""

    CONTROLLER = "controller"
    AGENT = "agent"
    GUARDIAN = "guardian"
    LEADER = "leader"
    WORKER = "worker"  # of the leader: a data-loader worker
    UPLINK = "uplink"
    CONTAINER = "container"  # its first process
    ENGINE = "engine"  # the Docker daemon
    OTHER = "other"


@dataclass(frozen=True)
class Process:
    """One living process, as the kernel describes it."""

    pid: int
    parent: int
    command: tuple[str, ...]
    cwd: str

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; False if the process is gone."""
        try:
            held = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if living(self.pid) != self:
                return False
            signal.pidfd_send_signal(held, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(held)
        return True


def living(pid: int) -> Process | None:
    """The process with this number; None if it does not run any more."""
    folder = Path("/proc", str(pid))
    try:
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        if state in "ZX":
            return None
        command = tuple((folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
        return Process(pid, int(parent), command, str((folder / "cwd").readlink()))
    except OSError:
        return None


def _all_gone(processes: list[Process]) -> bool:
    return not any(living(process.pid) == process for process in processes)


def move_home(user: User, home: Path) -> None:
    """Moves the user's home there, with the same config."""
    shutil.move(user.home, home)
    user.home = home


class User:
    """Everything below `folder`: the home, the jobs, the pulled files."""

    def __init__(self, folder: Path, **options: object) -> None:
        """`options` are those of the one platform, `here`; they override QUICK."""
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.configure({"platforms": {"here": {**QUICK, **options}}})

    def configure(self, config: Mapping[str, Any]) -> None:
        (self.home / "config.yaml").write_text(yaml.safe_dump(dict(config)))

    # --- Commands ---------------------------------------------------------------------------------------

    def start(self, *words: str, through: Sequence[str] = (), **more: Any) -> subprocess.Popen[str]:
        """Starts `orchestrator <words>` with this home; with `through`, by way of another program."""
        return subprocess.Popen(
            [*through, str(_COMMAND), *words],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def environment(self) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        # No index: a job's requirements are not locked, because no test may ask one on the internet.
        return {**given, "ORCHESTRATOR_HOME": str(self.home), "PIP_NO_INDEX": "1"}

    def run(self, *words: str, expect: int = 0, through: Sequence[str] = ()) -> str:
        """The output of `orchestrator <words>`, with the errors last. It must exit with this code."""
        return "".join(self._said(words, expect, through))

    def answer(self, *words: str, expect: int = 0) -> Any:
        """The command's answer with --json."""
        return json.loads(self._said((*words, "--json"), expect)[0])

    def _said(self, words: Sequence[str], expect: int, through: Sequence[str] = ()) -> tuple[str, str]:
        code, output, errors = self._to_its_end(words, through)
        said = f"left with {code}:\n{output}\n{errors}\n{self.story()}"
        assert code == expect, f"`orchestrator {' '.join(words)}` {said}"
        return output, errors

    def _to_its_end(self, words: Sequence[str], through: Sequence[str]) -> warm.Ended:
        if not through and warm.is_same(words, {}):
            program, environ = "orchestrator", self.environment()
            return warm.run((program, *words), self.folder, environ, None, COMMAND_PATIENCE)
        with self.start(*words, through=through) as process:
            try:
                output, errors = process.communicate(timeout=COMMAND_PATIENCE)
            finally:
                process.kill()
        return warm.Ended(process.returncode, output, errors)

    def write_job(self, **changes: object) -> Path:
        """Writes a spec whose source are the training scripts of this folder; `changes` are its keys."""
        shutil.copytree(SOURCE, self.folder / "source", dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        spec: dict[str, object] = {
            "name": "proof",
            "source": "source",
            "command": "python train.py {steps}",
            "work": {"total": 100, "global_batch": 8},
            "profiles": {"cpu": {"micro_batch": 8, "precision": "fp32"}},
            "checkpoint": {"interval": "1s", "keep": {"last": 3}},
        }
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump({**spec, **changes}))
        return path

    def submit(self, **changes: object) -> str:
        """Submits `write_job(**changes)`; returns the run's name."""
        return str(self.answer("submit", str(self.write_job(**changes)))["run"])

    # --- Runs -------------------------------------------------------------------------------------------

    def record(self, run: str) -> RunRecord:
        with self._ledger() as ledger:
            return ledger.record(run)

    def history(self, run: str) -> tuple[Stored, ...]:
        with self._ledger() as ledger:
            return ledger.history(run)

    def _ledger(self) -> Ledger:
        return Ledger.open(f"sqlite:///{self.home / 'ledger.sqlite'}")

    def wait_for(self, run: str, condition: Callable[[RunRecord], Any], what: str) -> RunRecord:
        """Waits for a record that fulfils the condition. Fails early if the run ends before that."""

        def look() -> RunRecord | None:
            record = self.record(run)
            if condition(record):
                return record
            over = record.phase.final and not record.strays
            assert not over, f"{record.phase} before {what}: {record.reason}\n{self.story(run)}"
            return None

        found = wait_until(look, lambda: f"{what}\n{self.story(run)}")
        assert found is not None
        return found

    def wait_for_end(self, run: str, phase: Phase = Phase.DONE) -> RunRecord:
        """Waits until the run has ended this way and what it left on its platform was cleaned up."""
        record = self.wait_for(run, lambda r: r.phase.final, "its end")
        assert record.phase is phase, f"{record.phase}: {record.reason}\n{self.story(run)}"
        return self.wait_for(run, lambda r: not r.strays, "the end of what it left")

    def story(self, run: str | None = None) -> str:
        """Everything that helps to understand a failed test."""
        lines = []
        with suppress(OrchestratorError, OSError):
            for name in [run] if run else []:
                lines += [f"{stored.event}"[:400] for stored in self.history(name)]
        for path in (self.home / "controller.log", self.home / "crash.log"):
            with suppress(OSError):
                lines += [f"--- {path.name}", path.read_text(errors="replace")[-4000:]]
        return "\n".join(lines)

    # --- Processes --------------------------------------------------------------------------------------

    def _processes(self) -> list[Process]:
        """The running processes of this home: those that run below it or name it."""
        home = str(self.home)
        found = (living(int(name)) for name in os.listdir("/proc") if name.isdecimal())  # noqa: PTH208
        return [p for p in found if p is not None and (p.cwd.startswith(home) or home in " ".join(p.command))]

    def by_role(self) -> dict[Role, list[Process]]:
        found = self._processes()
        roles = {process.pid: self._role(process) for process in found}
        for process in found:
            if roles[process.pid] is Role.OTHER and roles.get(process.parent) is Role.LEADER:
                roles[process.pid] = Role.WORKER
        return {role: [p for p in found if roles[p.pid] is role] for role in Role}

    def _role(self, process: Process) -> Role:
        words = process.command
        if "up" in words and process.cwd == str(self.home):
            return Role.CONTROLLER
        if "--exec" in words:
            return Role.OTHER  # about to become the leader
        if len(words) > 2 and words[1].endswith("/agent.pyz"):
            started = Path(words[1]).with_name("agent.pid")
            with suppress(OSError):
                return Role.AGENT if started.read_text().strip() == str(process.pid) else Role.GUARDIAN
            return Role.OTHER
        if len(words) > 2 and words[1].endswith("/uplink.pyz"):
            return Role.UPLINK
        parent = living(process.parent)
        return Role.LEADER if parent and self._role(parent) is Role.AGENT else Role.OTHER

    def wait_for_silence(self) -> None:
        """Waits until no process of this home runs any more."""
        wait_until(lambda: not self._processes(), lambda: f"the end of {self._processes()}\n{self.story()}")

    def close(self) -> None:
        """Ends everything that still runs, controllers first so that nothing new starts."""
        while found := self._processes():
            for process in sorted(found, key=lambda p: self._role(p) is not Role.CONTROLLER):
                process.send(signal.SIGKILL)
            wait_until(partial(_all_gone, found), "the killed to die")


def gated(user: User, *steps: int, pause: float) -> str:
    """A command that saves at every tenth step, and stays at each of these steps until `opens`."""
    gates = user.folder / "gates"
    gates.mkdir()
    for step in steps:
        (gates / str(step)).touch()
    return f"python train.py {{steps}} --pause {pause} --save-every 10 --gates {gates}"


def opens(user: User, step: int) -> None:
    (user.folder / "gates" / str(step)).unlink()
