"""`messages.py`: a rank waits for a message of the script's own while the ranks agree."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch

from orchestrator.training.ranks import Agreement


def meet(rank: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=Path("meeting").absolute().as_uri(), rank=rank, world_size=2,
        timeout=timedelta(seconds=600),
    )  # fmt: skip
    agreement, message = Agreement(), torch.tensor(42 if rank == 0 else 0)
    waiting = torch.distributed.irecv(message, src=0) if rank == 1 else None
    agreed = agreement.of_first(rank == 0)
    if waiting is None:
        torch.distributed.send(message, dst=1)
    else:
        waiting.wait()
    sys.stdout.write(f"{rank}: {agreed}, {message.item()}\n")
    sys.stdout.flush()
    os._exit(0)


pids = []
for number in range(2):
    if (pid := os.fork()) == 0:
        meet(number)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
