"""`partings.py ROUNDS` runs pairs of ranks, one after the other, that exit right after an answer.

It prints their exit codes. All share one core, and the threads of torch.distributed run only when no other
thread wants to. So their remaining work after the answer comes when the process has already begun to end.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch

from orchestrator.training import EXIT_SAVED
from orchestrator.training.ranks import Agreement


def leave(rank: int, meeting: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=meeting.as_uri(), rank=rank, world_size=2, timeout=timedelta(seconds=600)
    )
    agreement = Agreement()
    agreement.of_first(True)
    for thread in Path("/proc/self/task").iterdir():
        if int(thread.name) != os.getpid():
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
    assert agreement.of_first(rank == 0)
    sys.exit(EXIT_SAVED)


os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for number in range(int(sys.argv[1])):
    pids = []
    for rank in range(2):
        if (pid := os.fork()) == 0:
            leave(rank, Path(f"meeting-{number}").absolute())
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.stdout.write(f"{codes}\n")
    sys.stdout.flush()
