"""Decides how the session ended, which tells the engine what to do next. Pure.

Looks at the exit code, at what the agent asked for, at the checkpoints and at the end of the log, which
`causes` understands. Reads no file.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.agent import causes
from orchestrator.core.order import Outcome
from orchestrator.core.save_pattern import COUNTED

EXIT_SAVED = 75


class Stop(StrEnum):
    """Why the agent asked the command to save and leave."""

    DEADLINE = "the session's deadline"
    REQUEST = "a request to stop"
    STALL = "a stall"
    DISK = "the disk limit"
    DIVERGED = "a loss that is no number"
    SUPERSEDED = "another session of this run, which has taken over"


@dataclass(frozen=True)
class Ending:
    """Everything that is known once the command has ended.

    `exit_code` is negative for a signal. `killed` means that the agent killed the command. `committed` is the
    step of this session's newest checkpoint, `reached` the last reported step. `oom_kills` counts the
    processes that the kernel killed to free memory during the session. `unpublished` says why a saved
    checkpoint could not be committed. `refused`: because it was not fit, and never will be. `diverged`: the
    first loss that was not finite, in words. `saved_since`: the newest checkpoint was saved after the agent
    asked the command to leave. `counted`: the checkpoints' steps are a count of the saves, because the
    command tells no other. `full`: what the session's disk lacks, in words.
    """

    exit_code: int
    stop: Stop | None
    killed: bool
    committed: int | None
    reached: int | None
    resume_step: int | None
    steps_total: int
    tail: str
    oom_kills: int = 0
    unpublished: str = ""
    refused: bool = False
    diverged: str = ""
    saved_since: bool = False
    counted: bool = False
    full: str = ""

    @property
    def saved_when_asked(self) -> bool:
        """Whether it saved once it was asked to leave."""
        return self.stop is not None and self.newer and self.saved_since

    @property
    def newer(self) -> bool:
        """Whether this session committed a newer checkpoint than the one it resumed from."""
        return self.committed is not None and self.committed > (self.resume_step or 0)

    @property
    def newest(self) -> int | None:
        return self.resume_step if self.committed is None else self.committed

    @property
    def finished(self) -> bool:
        """Whether all steps of the job are known to be done. More steps than these are of another unit, such
        as the optimizer's in a job that counts epochs, and tell nothing."""
        return not self.counted and max(self.newest or 0, self.reached or 0) == self.steps_total


def classify(ending: Ending) -> tuple[Outcome, str]:
    """The outcome and its reason in words."""
    if ending.stop is Stop.DIVERGED:
        return Outcome.DIVERGED, f"{ending.diverged} (on_nan: fail); {_kept(ending)}"
    if ending.exit_code == 0:
        return _exited_well(ending)
    if ending.stop is Stop.STALL:
        return Outcome.STALLED, f"no step for too long; {_kept(ending)}"
    if ending.exit_code == EXIT_SAVED:
        return _saved(ending)
    if _out_of_memory(ending):
        return Outcome.OUT_OF_MEMORY, f"out of memory ({_cause(ending)}); {_kept(ending)}"
    if ending.stop is not None and (ending.killed or ending.exit_code == -signal.SIGTERM):
        return _did_not_save(ending, ending.stop)
    if ending.saved_when_asked:  # a launcher such as torchrun hides its ranks' exit code 75
        return _left(ending)
    return Outcome.CRASHED, f"{_cause(ending)}; {ending.full}" if ending.full else _cause(ending)


def _exited_well(ending: Ending) -> tuple[Outcome, str]:
    """The command says that it is done, and only it can know. What the user may not expect is told."""
    if ending.stop is not None and not ending.finished:
        # a script that handles SIGTERM but does not know exit code 75: it left when asked, before its end
        if ending.newer:
            return _left(ending)
        if ending.stop is Stop.STALL:
            return Outcome.STALLED, f"no step for too long; {_kept(ending)}"
        return _did_not_save(ending, ending.stop)
    newest, reached = ending.newest, ending.reached
    if ending.unpublished and not ending.refused and (newest or 0) < ending.steps_total:
        return Outcome.CRASHED, f"exited 0, but {ending.unpublished}"
    total = 0 if ending.counted else ending.steps_total
    behind = newest is None or newest < (total if reached is None else reached)
    if behind and (error := causes.last_exception(ending.tail)):  # a pipe or a `;` hides the exit code
        return Outcome.CRASHED, f"exited 0, but its output ends with an error: {error}"
    at = max(newest or 0, reached or 0)
    if ending.counted and newest is not None:
        return Outcome.COMPLETED, f"{COUNTED}{newest}{_unpublished(ending)}"
    told = f"completed at step {at}" if at or newest is not None else "completed"
    if at < ending.steps_total and (newest is not None or reached is not None):
        told += f" of {ending.steps_total}"
        from_zero = (
            reached is None and at == ending.steps_total - 1
        )  # the numbers in its files may begin there
        told += ", the last one if it counts from 0" if from_zero else ": it stopped early by itself"
    if newest is None:
        told += f"; not resumable: no checkpoint{_unpublished(ending)}, see `orchestrator help any-script`"
    elif newest < at:
        told += f"; its last checkpoint is at step {newest}{_unpublished(ending)}"
    return Outcome.COMPLETED, told


def _left(ending: Ending) -> tuple[Outcome, str]:
    how = f"left for {ending.stop}, with exit code {ending.exit_code}"
    return Outcome.STOPPED, f"saved step {ending.committed} and {how}"


def _saved(ending: Ending) -> tuple[Outcome, str]:
    if ending.newer:
        why = f"for {ending.stop}" if ending.stop is not None else "by itself"
        return Outcome.STOPPED, f"saved step {ending.committed} and left {why}{_unpublished(ending)}"
    return Outcome.CRASHED, f"exited 75 (saved) without a newer checkpoint{_unpublished(ending)}"


def _did_not_save(ending: Ending, stop: Stop) -> tuple[Outcome, str]:
    how = "was killed after its grace"
    if not ending.killed:
        how = "ended" if ending.newer else "ended without saving"
    message = f"asked to leave for {stop}, the command {how}; {_kept(ending)}{_unpublished(ending)}"
    if stop is Stop.SUPERSEDED:
        return Outcome.LOST, message
    if ending.newer or (stop is Stop.REQUEST and not ending.killed):
        return Outcome.STOPPED, message
    return Outcome.CRASHED, message


def _out_of_memory(ending: Ending) -> bool:
    if ending.killed:
        return False
    if causes.out_of_memory(ending.tail):
        return True
    died = ending.exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL) or causes.was_killed(ending.tail)
    return ending.oom_kills > 0 and died


def _kept(ending: Ending) -> str:
    if ending.committed is not None:
        return f"newest checkpoint: step {ending.committed}"
    return "no newer checkpoint" if ending.resume_step is not None else "no checkpoint"


def _unpublished(ending: Ending) -> str:
    return f" ({ending.unpublished})" if ending.unpublished else ""


def _cause(ending: Ending) -> str:
    """The exit code or signal, and what the command said of its end: the exception, or its last line."""
    code = ending.exit_code
    how = f"exit code {code}"
    if code < 0:
        try:
            how = f"killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"killed by signal {-code}"
    last = causes.said(ending.tail)
    return f"{how}: {last}" if last else how
