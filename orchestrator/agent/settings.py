"""The agent's constants in one place: periods, sizes and patience. Values only; tests pass smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.bounds import PART_BYTES_MAX


@dataclass(frozen=True)
class Settings:
    """All times in seconds, sizes in bytes.

    Saves: `save_floor` to `save_ceiling` bound the automatic interval. `mean_time_to_failure` is a guess
    (docs/references/training.md#checkpoint-interval). `save_guess` stands in for a save and its publication
    until one has been measured. `margin` stays unused before the wall, at most `margin_share` of the budget.
    Stall: no sign of life within `stall_factor` expected steps, but never before `stall_floor`;
    `first_step` until there was a first step (imports, compilation, downloads). `grace` is what the command
    has to save after a stop that no deadline cuts short; `stall_grace` after it was found stalled.
    Disk: a session whose folders take more than `disk_bytes` (None: no limit), looked at every
    `disk_period`, is asked to leave, and killed at once where it takes twice that.
    For platforms that need it: `probe` checks that the machine has the order's accelerator, `requirements`
    installs the job's.
    """

    probe: bool = False
    requirements: bool = False
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
    grace: float = 120.0
    stall_grace: float = 15.0
    commit_retry: float = 10.0
    rate_window: float = 30.0
    log_segment_bytes: int = 1024 * 1024
    log_total_bytes: int = 64 * 1024 * 1024
    part_bytes: int = PART_BYTES_MAX
    disk_bytes: int | None = None
    disk_period: float = 10.0
