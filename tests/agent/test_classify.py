"""A table of every way in which a session can end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.agent.classify import Ending, Stop, classify
from orchestrator.core.order import Outcome

PLAIN = Ending(
    exit_code=1, stop=None, killed=False, committed=None, reached=None, resume_step=None, steps_total=100,
    tail="",
)  # fmt: skip
TRACEBACK = "Traceback (most recent call last):\n  File x\n"


def after(**changes: object) -> Ending:
    return replace(PLAIN, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (after(exit_code=0, committed=100, reached=100), Outcome.COMPLETED),
        # a launcher of several ranks, which all saved and exited 75, exits 1
        (after(exit_code=1, stop=Stop.DEADLINE, committed=60, saved_since=True), Outcome.STOPPED),
        (after(exit_code=1, stop=Stop.DEADLINE, committed=60), Outcome.CRASHED),
        (after(exit_code=1, stop=Stop.DEADLINE, committed=60, resume_step=60), Outcome.CRASHED),
        (after(exit_code=1, committed=60), Outcome.CRASHED),
        (after(exit_code=0, committed=60, reached=60), Outcome.COMPLETED),  # it stopped early by itself
        (after(exit_code=0, committed=60), Outcome.COMPLETED),
        (after(exit_code=0, committed=60, reached=80), Outcome.COMPLETED),
        (after(exit_code=0), Outcome.COMPLETED),
        (after(exit_code=0, resume_step=100), Outcome.COMPLETED),
        (after(exit_code=0, resume_step=60), Outcome.COMPLETED),
        (after(exit_code=0, unpublished="the disk is full"), Outcome.CRASHED),
        (after(exit_code=0, unpublished="it holds a link", refused=True), Outcome.COMPLETED),
        (after(exit_code=0, committed=100, unpublished="step 90: the disk is full"), Outcome.COMPLETED),
        (after(exit_code=0, tail=TRACEBACK + "ValueError: wrong"), Outcome.CRASHED),
        (after(exit_code=0, tail=TRACEBACK + "torch.cuda.CudaError"), Outcome.CRASHED),
        (after(exit_code=0, committed=60, reached=60, tail=TRACEBACK + "ValueError: x"), Outcome.COMPLETED),
        (after(exit_code=0, tail=TRACEBACK + "ValueError: wrong\ndone"), Outcome.COMPLETED),
        (after(exit_code=0, tail="ValueError: wrong"), Outcome.COMPLETED),
        (after(exit_code=0, committed=60, reached=60, stop=Stop.DEADLINE), Outcome.STOPPED),
        (after(exit_code=0, stop=Stop.DEADLINE), Outcome.CRASHED),
        (after(exit_code=0, stop=Stop.DEADLINE, reached=100), Outcome.COMPLETED),
        (after(exit_code=0, stop=Stop.DEADLINE, committed=2898), Outcome.STOPPED),  # of another unit
        (after(exit_code=0, stop=Stop.DEADLINE, committed=100, counted=True), Outcome.STOPPED),
        (after(exit_code=0, stop=Stop.REQUEST), Outcome.STOPPED),
        (after(exit_code=0, stop=Stop.SUPERSEDED), Outcome.LOST),
        (after(exit_code=0, stop=Stop.STALL), Outcome.STALLED),
        (after(exit_code=0, committed=100, reached=100, stop=Stop.STALL), Outcome.COMPLETED),
        (after(exit_code=75, committed=60), Outcome.STOPPED),
        (after(exit_code=75, committed=60, stop=Stop.DEADLINE), Outcome.STOPPED),
        (after(exit_code=75, committed=60, resume_step=60), Outcome.CRASHED),
        (after(exit_code=75, stop=Stop.REQUEST), Outcome.CRASHED),
        (after(exit_code=75, committed=60, stop=Stop.STALL), Outcome.STALLED),
        (after(exit_code=-9, killed=True, stop=Stop.STALL), Outcome.STALLED),
        (after(exit_code=-9, killed=True, stop=Stop.DEADLINE), Outcome.CRASHED),
        (after(exit_code=-9, killed=True, stop=Stop.DEADLINE, committed=60), Outcome.STOPPED),
        (after(exit_code=-9, killed=True, stop=Stop.REQUEST), Outcome.CRASHED),
        (after(exit_code=-15, stop=Stop.REQUEST), Outcome.STOPPED),
        (after(exit_code=-15, stop=Stop.SUPERSEDED), Outcome.LOST),
        (after(exit_code=-15, stop=Stop.DEADLINE), Outcome.CRASHED),
        (after(exit_code=-15), Outcome.CRASHED),
        (after(exit_code=-9), Outcome.CRASHED),
        (after(exit_code=-9, oom_kills=1), Outcome.OUT_OF_MEMORY),
        (after(exit_code=137, oom_kills=1), Outcome.OUT_OF_MEMORY),
        (after(exit_code=1, oom_kills=1), Outcome.CRASHED),
        (after(oom_kills=1, tail="DataLoader worker (pid 7) is killed by signal: Killed. "),
         Outcome.OUT_OF_MEMORY),
        (after(exit_code=-9, oom_kills=1, killed=True, stop=Stop.DEADLINE), Outcome.CRASHED),
        (after(tail=TRACEBACK + "MemoryError"), Outcome.OUT_OF_MEMORY),
        (after(tail=TRACEBACK + "numpy._core._exceptions._ArrayMemoryError: x"), Outcome.OUT_OF_MEMORY),
        (after(tail=TRACEBACK + "torch.OutOfMemoryError: CUDA out of memory. Tried"), Outcome.OUT_OF_MEMORY),
        (after(tail="RuntimeError: CUDA error: out of memory"), Outcome.OUT_OF_MEMORY),
        (after(tail="RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                    "allocate memory: you tried to allocate 4 bytes."), Outcome.OUT_OF_MEMORY),
        (after(tail="DefaultCPUAllocator: not enough memory: you tried"), Outcome.OUT_OF_MEMORY),
        (after(exit_code=-6, tail="terminate called after throwing an instance of 'std::bad_alloc'"),
         Outcome.OUT_OF_MEMORY),
        (after(tail="jax: RESOURCE_EXHAUSTED: Out of memory allocating 17 bytes"), Outcome.OUT_OF_MEMORY),
        (after(tail="the MemoryError handbook"), Outcome.CRASHED),
    ],
)  # fmt: skip
def test_outcome(ending: Ending, outcome: Outcome) -> None:
    assert classify(ending)[0] is outcome


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (after(exit_code=0, committed=100, reached=100), "completed at step 100"),
        (after(exit_code=0, committed=50, reached=50),
         "completed at step 50 of 100: it stopped early by itself"),
        (after(exit_code=0, committed=40, reached=50),
         "completed at step 50 of 100: it stopped early by itself; its last checkpoint is at step 40"),
        (after(exit_code=0, committed=99), "completed at step 99 of 100, the last one if it counts from 0"),
        (after(exit_code=0, committed=98), "completed at step 98 of 100: it stopped early by itself"),
        (after(exit_code=0, committed=7, counted=True), "completed; last checkpoint: save 7"),
        (after(exit_code=0, resume_step=7, counted=True), "completed; last checkpoint: save 7"),
        (after(exit_code=0), "completed; not resumable: no checkpoint, see `orchestrator help any-script`"),
        (after(exit_code=0, counted=True),
         "completed; not resumable: no checkpoint, see `orchestrator help any-script`"),
        (after(exit_code=0, reached=100),
         "completed at step 100; not resumable: no checkpoint, see `orchestrator help any-script`"),
        (after(exit_code=0, unpublished="step 9 holds a link", refused=True),
         "completed; not resumable: no checkpoint (step 9 holds a link), see `orchestrator help any-script`"),
        (after(exit_code=-11, tail="a\n\nlast words\n"), "killed by SIGSEGV: last words"),
        (after(exit_code=-64), "killed by SIGRTMAX"),
        (after(exit_code=-99), "killed by signal 99"),
        (after(exit_code=2), "exit code 2"),
        (after(exit_code=75, unpublished="step 9 was not committed: No space left on device"),
         "exited 75 (saved) without a newer checkpoint (step 9 was not committed: No space left on device)"),
        (after(exit_code=-9, killed=True, stop=Stop.DEADLINE, resume_step=4),
         "asked to leave for the session's deadline, the command was killed after its grace; "
         "no newer checkpoint"),
    ],
)  # fmt: skip
def test_message(ending: Ending, message: str) -> None:
    assert classify(ending)[1] == message
