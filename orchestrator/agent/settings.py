"""The agent's constants in one place: periods, sizes and timeouts. Values only; tests pass smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.bounds import PART_BYTES_MAX


@dataclass(frozen=True)
class Settings:
    """All times in seconds, sizes in bytes.

    Saves: the automatic interval lies between `save_floor` and `save_ceiling`. `mean_time_to_failure` is a
    guess, for orders without a measured one (docs/references/training.md#checkpoint-interval). `save_guess`
    stands for a save and its publication until one has been measured. `margin` stays unused before the wall;
    it is at most `margin_share` of the budget.
    Stall: the command counts as stalled after `stall_factor` expected steps without a sign of life, but never
    before `stall_floor`. Until the first step (imports, compilation, downloads) the limit is `first_step`. A
    command that reports no steps may be silent up to `silent`, as long as it computes: its processor time is
    looked at every `usage`.
    GPUs: every `gpu_period` the agent asks how busy they are, and waits `gpu_answer` for the answer.
    `grace` is the time the command has to save when it is asked to stop before any deadline, `stall_grace`
    the time after a stall.
    Watching: what the command saves by itself is taken once it has not changed for `settle`. Every `scan` the
    agent looks for saves that are no checkpoints.
    Disk: every `disk_period` the session's folders are measured. A session that uses more than `disk_bytes`
    (None: no limit) is asked to exit. One that uses twice as much is killed at once.
    Uplink: it beats and ships as often as `uplink_beat` and `uplink_ship` say, and sends at most
    `uplink_daily_bytes` a day. If it dies, it is started again after `uplink_restart`, doubled
    up to `uplink_restart_max` unless it lived for `uplink_calm`. After its result the session waits for it
    at most `uplink_end`; if it was asked to stop, only until nothing has been sent for `uplink_stop`.
    Before the training it waits for what the uplink fetches, until nothing has come for `uplink_fetch`.
    Some platforms need these: `probe` checks that the machine has the order's accelerator, and `requirements`
    installs the job's requirements. `python`: the interpreter that the training runs with, whose programs are
    in PATH already; None: the agent's own. `environments`: where requirements that are installed for it are
    kept for later sessions, `uv` the program that installs pip where it is missing. `outbox`: where the
    platform wants the outbox, if that is not in the session's folder.
    """

    probe: bool = False
    requirements: bool = False
    python: str | None = None
    environments: str | None = None
    uv: str | None = None
    outbox: str | None = None
    tick: float = 0.1
    heartbeat: float = 1.0
    save_floor: float = 60.0
    save_ceiling: float = 300.0
    save_guess: float = 3.0
    mean_time_to_failure: float = 4 * 3600.0
    margin: float = 120.0
    margin_share: float = 0.1
    stall_factor: float = 20.0
    stall_floor: float = 300.0
    first_step: float = 1800.0
    silent: float = 6 * 3600.0
    usage: float = 30.0
    gpu_period: float = 10.0
    gpu_answer: float = 10.0
    grace: float = 120.0
    stall_grace: float = 15.0
    commit_retry: float = 10.0
    settle: float = 3.0
    scan: float = 60.0
    rate_window: float = 30.0
    log_segment_bytes: int = 1024 * 1024
    log_total_bytes: int = 64 * 1024 * 1024
    part_bytes: int = PART_BYTES_MAX
    disk_bytes: int | None = None
    disk_period: float = 10.0
    uplink_beat: float = 5.0
    uplink_ship: float = 60.0
    uplink_daily_bytes: float | None = None
    uplink_restart: float = 1.0
    uplink_restart_max: float = 300.0
    uplink_calm: float = 600.0
    uplink_end: float = 1800.0
    uplink_stop: float = 120.0
    uplink_fetch: float = 1800.0
