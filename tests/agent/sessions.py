"""Session folders for tests, built from an order and a source folder and run by a real agent process.

Other suites use it too: `new_order`, `build`, and `Stay`, which starts, watches and kills agents.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.agent import archive
from orchestrator.agent.settings import Settings
from orchestrator.core import checkpoint, wire
from orchestrator.core.checkpoint import Manifest
from orchestrator.core.job import Keep, Precision
from orchestrator.core.order import AgentStatus, Order, Result
from orchestrator.errors import CorruptCheckpoint
from tests.waiting import wait_until

SOURCE = Path(__file__).parent / "source"
PATIENCE = 240.0  # on a machine that others use as well
QUICK = Settings(
    tick=0.02, heartbeat=0.05, save_floor=0.2, save_ceiling=1.0, save_guess=1.0, mean_time_to_failure=1.0,
    commit_retry=0.1, grace=120.0, stall_grace=0.5,
)  # fmt: skip
T = TypeVar("T")
_agent = cache(archive.content)


def new_order(*command: str, **changes: Any) -> Order:
    """An order of run `demo-abcdefgh` that runs `python <command>`; `changes` replace any of its fields."""
    order = Order(
        run="demo-abcdefgh", session="demo-abcdefgh-s01", generation=1, platform="here", accelerator="cpu",
        devices=1, command=("python", *command), bundle="", global_batch=8, micro_batch=8,
        precision=Precision.FP32, steps_total=20, seed=1, keep=Keep(),
    )  # fmt: skip
    return replace(order, **changes)


def build(
    root: Path,
    order: Order,
    source: Path = SOURCE,
    *,
    values: Mapping[str, str] | None = None,
    staged: Path | None = None,
) -> Order:
    """Stages a session in `root` and returns its order with the bundle's digest.

    `values` go into secrets.json. The checkpoint `order.resume` is staged from the outbox `staged`.
    """
    root.mkdir(parents=True, exist_ok=True)
    bundle = bundled(source)
    order = replace(order, bundle=hashlib.sha256(bundle).hexdigest())
    (root / "bundle.tar.gz").write_bytes(bundle)
    (root / "agent.pyz").write_bytes(_agent())
    (root / "order.json").write_bytes(wire.encode(order))
    if values is not None:
        (root / "secrets.json").write_text(json.dumps(dict(values)))
    if staged is not None:
        assert order.resume is not None
        name = Path("checkpoints", order.resume)
        shutil.copytree(staged / name, root / "staged" / name)
        shutil.copytree(staged / "blobs", root / "staged" / "blobs")
    return order


def bundled(source: Path) -> bytes:
    """The folder as a .tar.gz."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive_file:
        for path in sorted(source.rglob("*")):
            if "__pycache__" not in path.parts:
                archive_file.add(path, path.relative_to(source).as_posix(), recursive=False)
    return buffer.getvalue()


def written(folder: Path, script: str) -> Path:
    """A new source in this folder, with the script as `train.py`."""
    source = folder / "source"
    source.mkdir()
    (source / "train.py").write_text(script)
    return source


def is_alive(pid: int) -> bool:
    """Whether the process runs. A dead process that has not been reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Stay:
    """A session folder and the agents started in it."""

    root: Path
    agents: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, settings: Settings = QUICK, *, environment: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        command = [sys.executable, str(self.root / "agent.pyz"), str(self.root)]
        agent = subprocess.Popen(
            [*command, "--settings", wire.encode(settings).decode()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
            **more,
        )
        self.agents.append(agent)
        return agent

    def end(self, exit_code: int = 0) -> Result:
        """Waits for the last agent to exit with this code, and returns the result that it wrote."""
        agent = self.agents[-1]
        output, _ = agent.communicate(timeout=PATIENCE)
        assert agent.returncode == exit_code, (
            f"the agent exited with {agent.returncode}:\n{output}\n{self.log()}"
        )
        return wire.decode(Result, (self.root / "outbox" / "result.json").read_bytes())

    def live(self, settings: Settings = QUICK, **more: Any) -> Result:
        """Starts an agent and waits for its result."""
        self.start(settings, **more)
        return self.end()

    def status(self) -> AgentStatus | None:
        try:
            return wire.decode(AgentStatus, (self.root / "outbox" / "status.json").read_bytes())
        except FileNotFoundError:
            return None

    def wait_for(self, condition: Callable[[AgentStatus], Any], what: str) -> AgentStatus:
        """Waits for a status that meets the condition."""
        status = wait_until(lambda: (s := self.status()) is not None and condition(s) and s, what)
        assert isinstance(status, AgentStatus)
        return status

    def pids(self, count: int = 1) -> list[int]:
        """The pids that the training wrote to a file, the leader's first."""
        path = self.root / "work" / "source" / "pids"
        wait_until(path.exists, "the training to write its pids")
        found = json.loads(path.read_text())
        assert len(found) == count
        return list(map(int, found))

    def manifests(self) -> list[Manifest]:
        """Every committed checkpoint, oldest first. Verifies all their blobs. An agent may remove superseded
        ones meanwhile."""
        return [each for each in self._committed() if not each.ref.outputs]

    def outputs(self) -> dict[str, bytes]:
        """What the session left for people: path → content."""
        found = [each for each in self._committed() if each.ref.outputs]
        assert len(found) <= 1
        return {entry.path: self.content(each, entry.path) for each in found for entry in each.files}

    def _committed(self) -> list[Manifest]:
        found = []
        paths = sorted((self.root / "outbox" / "checkpoints").glob("*/manifest.json"))
        blobs = self._blobs()
        for path in paths:
            try:
                manifest = checkpoint.decode(path.parent.name, path.read_bytes())
                checkpoint.verify(manifest, blobs)
            except (FileNotFoundError, CorruptCheckpoint):
                if path.exists():
                    raise
                continue  # superseded meanwhile: its manifest goes first
            found.append(manifest)
        return found

    def _blobs(self) -> dict[str, int]:
        """The sha256 of each blob's content, and its size."""
        found = {}
        for path in (self.root / "outbox" / "blobs").glob("[!.]*"):
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                found[hashlib.sha256(content).hexdigest()] = len(content)
        return found

    def content(self, manifest: Manifest, path: str) -> bytes:
        """A file of a committed checkpoint."""
        [entry] = [entry for entry in manifest.files if entry.path == path]
        return b"".join((self.root / "outbox" / "blobs" / p.sha256).read_bytes() for p in entry.parts)

    def log(self) -> str:
        segments = sorted((self.root / "outbox" / "log").glob("*.log"))
        return "".join(path.read_text(errors="replace") for path in segments)

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGKILL)
            agent.communicate()


@contextmanager
def session(
    root: Path,
    *command: str,
    source: Path = SOURCE,
    values: Mapping[str, str] | None = None,
    staged: Path | None = None,
    **changes: Any,
) -> Iterator[Stay]:
    """A staged session of `new_order(*command, **changes)`. Kills agents that still run at the end.

    `values` are the values of the order's secrets. Its `resume` is staged from the outbox `staged`.
    """
    build(root, new_order(*command, **changes), source, values=values, staged=staged)
    stay = Stay(root)
    try:
        yield stay
    finally:
        stay.close()
