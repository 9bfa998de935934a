"""The messages between the controller and a session: the order, and what the agent reports. JSON both ways.

Values only; ships with the agent. `orchestrator.core.session` holds what the controller makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.core.gpu_use import GpuUse
from orchestrator.core.job import Input, Keep, OnNan, Precision, Python
from orchestrator.core.own_accelerators import OwnAccelerator

RESUME = "{resume}"
GIT_COMMIT = "ORCHESTRATOR_GIT_COMMIT"  # in the environment: the commit of the submitted source


def session_name(run: str, generation: int) -> str:
    """The name of a run's session; everything that belongs to the session is found by it."""
    return f"{run}-s{generation:02d}"


def run_of(session: str) -> str:
    """The run that a session's name belongs to."""
    return session.rpartition("-s")[0]


@dataclass(frozen=True)
class EndAt:
    """How a rehearsal ends a session: once it has committed so many checkpoints, it is `killed`, or asked to
    leave."""

    saves: int
    killed: bool = False


@dataclass(frozen=True)
class Order:
    """Everything a session must do, complete and journalled before anything starts.

    `command` has its placeholders filled; with `shell` it is one script. `secrets` are names; their values
    are sent separately.
    `budget_seconds` counts from the agent's start; the agent must have left by then (None: no limit). It must
    also have left at `leave_by`, in unix seconds, however late it started: its schedule's window closes.
    `resume` is the name of the checkpoint to load. `resume_sha256` is that of its accepted manifest (None: an
    older version accepted it, so there is nothing to compare with). `interval_seconds` None means auto: then
    it follows `mean_time_to_failure`, in seconds, of our sessions there (None: not measured).
    `disk_gb` is what the job needs. `outputs` and `watch` as in the job. A `{resume}` in the command is left
    to the agent, which knows the path. `end_at` is for rehearsals only. `python`: the job's, where sessions
    run in the user's own environment. `own` as in the offer.
    """

    run: str
    session: str
    generation: int
    platform: str
    accelerator: str
    devices: int
    command: tuple[str, ...]
    bundle: str
    global_batch: int
    micro_batch: int
    precision: Precision
    steps_total: int
    seed: int
    keep: Keep
    budget_seconds: float | None = None
    interval_seconds: float | None = None
    resume: str | None = None
    resume_step: int = 0
    expected_steps_per_second: float | None = None
    threads: int | None = None
    memory_bytes: int | None = None
    disk_gb: float = 0.0
    image: str | None = None
    requirements: str | None = None
    internet: bool = False
    inputs: tuple[Input, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    resume_sha256: str | None = None
    requirements_lock: str | None = None
    mean_time_to_failure: float | None = None
    leave_by: float | None = None
    outputs: tuple[str, ...] | None = None
    watch: str | None = None
    shell: bool = False
    on_nan: OnNan = OnNan.CONTINUE
    end_at: EndAt | None = None
    python: Python | None = None
    own: OwnAccelerator | None = None


class Outcome(StrEnum):
    """How a session ended, by what to do next."""

    COMPLETED = "completed"
    STOPPED = "stopped"  # it saved and left, at its deadline or on request: resume
    QUOTA_EXHAUSTED = "quota_exhausted"
    NO_CAPACITY = "no_capacity"
    REFUSED = "refused"  # by the platform, for a reason that may pass
    REJECTED = "rejected"  # the request itself is wrong
    DENIED = "denied"
    LOST = "lost"
    OUT_OF_MEMORY = "out_of_memory"
    STALLED = "stalled"
    CRASHED = "crashed"
    DIVERGED = "diverged"  # the loss was no finite number, and the job says to fail then


@dataclass(frozen=True)
class Result:
    """The agent's result, written into the outbox as the last file. `step` is of the newest committed
    checkpoint (None: there is none); `tail` is the end of the training's log. `reached`: the last reported
    step. `error`: the exception of a crash, the same text each time; `hopeless`: it would fail again."""

    incarnation: str
    outcome: Outcome
    exit_code: int | None
    step: int | None
    message: str
    tail: str = ""
    reached: int | None = None
    error: str = ""
    hopeless: bool = False


@dataclass(frozen=True)
class AgentStatus:
    """The agent's atomic status file, as last seen. Times are by the agent's own wall clock.

    `heartbeat` only grows while the agent lives. `checkpoint` is the newest checkpoint that it committed.
    `unshipped_seconds`: for how long the home store may lack work: the age of the oldest checkpoint that its
    uplink has to ship, or the time since that reached the store. None without an uplink that ever did.
    `gpu_use`: how busy its GPUs are; None if it has none, or nvidia-smi does not say.
    """

    incarnation: str
    heartbeat: int
    written_at: float
    state: str
    step: int | None = None
    steps_per_second: float | None = None
    loss: float | None = None
    checkpoint: str | None = None
    checkpoint_step: int | None = None
    save_seconds: float | None = None
    deadline: float | None = None
    warnings: tuple[str, ...] = ()
    unshipped_seconds: float | None = None
    gpu_use: GpuUse | None = None
