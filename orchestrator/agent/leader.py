"""The training command as a process: its environment, and how it is started, signalled and reaped.

The whole group is never signalled, because that would kill data-loader workers
(docs/training-contract.md). Does not decide when to stop the command or what its exit means.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

from orchestrator.agent import family
from orchestrator.agent.folder import Folder
from orchestrator.agent.guardian import MARK, Guardian
from orchestrator.agent.requirements import Site
from orchestrator.core.order import Order
from orchestrator.core.own_accelerators import row_of
from orchestrator.processes import SESSION
from orchestrator.session.layout import PROGRAMS

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment(
    folder: Folder,
    order: Order,
    *,
    inherited: Mapping[str, str],
    secrets: Mapping[str, str],
    incarnation: str,
    resume: Path | None,
    deadline: float | None,
    site: Site | None = None,
    python: str | None = None,
) -> dict[str, str]:
    """The command's environment variables.

    The contract's variables and the pinned thread counts win over the job's. The job's win over those that
    the agent was started with. `deadline` is in unix seconds; `site` holds the job's requirements. `python`:
    the user's own, whose programs PATH begins with; None: ours.
    """
    variables = {name: value for name, value in inherited.items() if not name.startswith("ORCHESTRATOR_")}
    variables["PATH"] = _programs(folder, inherited.get("PATH", os.defpath), site, python)
    variables |= dict(order.env) | {name: secrets[name] for name in order.secrets}
    packages = str(site.packages) if site is not None else ""
    # The agent's archive holds one package, `orchestrator`, and the site no name of the standard library: so
    # an import finds what it finds by hand.
    given = dict(order.env).get("PYTHONPATH")
    around = inherited.get("PYTHONPATH", "") if given is None else ""
    paths = [given or "", packages, str(folder.agent), around]
    variables |= {
        "PYTHONPATH": ":".join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "ORCHESTRATOR_CHECKPOINT_DIR": str(folder.checkpoints),
        "ORCHESTRATOR_SAVE_REQUEST": str(folder.save_request),
        "ORCHESTRATOR_PROGRESS": str(folder.progress),
        "ORCHESTRATOR_ACCELERATOR": order.accelerator,
        "ORCHESTRATOR_RUN": order.run,
        "ORCHESTRATOR_SESSION_NAME": order.session,
        MARK: incarnation,
    }
    _one_curve(order, variables, {*dict(order.env), *order.secrets})
    if SESSION in inherited:
        variables[SESSION] = inherited[SESSION]  # so that the platform finds processes that outlive the agent
    if order.secrets:
        variables["ORCHESTRATOR_SECRETS"] = " ".join(order.secrets)
    if resume is not None:
        variables["ORCHESTRATOR_RESUME_FROM"] = str(resume)
    if deadline is not None:
        variables["ORCHESTRATOR_DEADLINE"] = f"{deadline:.3f}"
    row = row_of(order)
    peak = None if row is None else row.peak_flops.get(order.precision)
    if peak is not None:
        variables["ORCHESTRATOR_PEAK_FLOPS"] = f"{peak:.6g}"
    if folder.inputs.is_dir():
        variables["ORCHESTRATOR_INPUTS"] = str(folder.inputs)
    if order.threads is not None:
        variables |= dict.fromkeys(_THREADS, str(order.threads))
    return variables


def _programs(folder: Folder, path: str, site: Site | None, python: str | None) -> str:
    """PATH: the interpreter's own programs, then those of the job's requirements, then the others."""
    added = [] if site is None else [str(site.scripts)]
    if python is None:
        return ":".join([str(Path(sys.executable).parent), *added, path])
    folders = path.split(":")
    own = {str(Path(python).parent), str(folder.root / PROGRAMS)}
    first = next((at for at, each in enumerate(folders) if each not in own), len(folders))
    return ":".join([*folders[:first], *added, *folders[first:]] if first else [*folders, *added])


def _one_curve(order: Order, variables: dict[str, str], given: Collection[str]) -> None:
    """Makes W&B continue the run's one curve in every session, except where the job has `given` a value; an
    empty one takes the variable away. An id that the agent was started with is of something else."""
    for name, value in (("WANDB_RUN_ID", order.run), ("WANDB_RESUME", "allow")):
        if name not in given:
            variables[name] = value
        elif not variables[name]:  # W&B refuses an empty id
            del variables[name]


class Leader:
    """The training's first process, and the process group that it leads. `visible`: its
    CUDA_VISIBLE_DEVICES."""

    def __init__(
        self, process: subprocess.Popen[bytes], guardian: Guardian, visible: str | None = None
    ) -> None:
        self.visible = visible
        self._process = process
        self._guardian = guardian

    @classmethod
    def start(
        cls,
        folder: Folder,
        order: Order,
        command: Sequence[str],
        variables: Mapping[str, str],
        guardian: Guardian,
    ) -> Leader:
        """Call this in the main thread: the kernel kills the leader when the thread that started it ends."""
        memory = "-" if order.memory_bytes is None else str(order.memory_bytes)
        stage = [sys.executable, "-I", "-S", str(folder.agent), "--exec", str(os.getpid()), memory]
        process = subprocess.Popen(
            [*stage, *command],
            cwd=folder.source,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        guardian.watch(process.pid)
        return cls(process, guardian, variables.get("CUDA_VISIBLE_DEVICES"))

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def terminate(self) -> None:
        """Sends SIGTERM to the training, which asks it to save and exit with 75: to the leader, or to those
        below it that handle the signal if it does not."""
        family.terminate(self._process.pid)

    def seconds(self) -> float:
        """The processor time that the training has used."""
        return family.seconds(self._process.pid)

    def kill(self) -> None:
        self._guardian.kill()

    def poll(self) -> int | None:
        """The exit code once the leader has ended, negative for a signal. By then its group is gone too."""
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                return None
            self._guardian.kill()  # before reaping: the group's number stays taken until then
            self._guardian.watch(None)
        return self._process.wait()
