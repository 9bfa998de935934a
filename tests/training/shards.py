"""`shards.py RANK RANKS MEETING STEPS [EVENT...]`: a training whose weights are spread over ranks (FSDP2).

`step:N` waits for a line after step N, in rank 0.
`full:N` leaves rank 1 no room on the disk after step N.
`late:N` has rank 1 save a tensor that rank 0 lacks at step N.
"""

from __future__ import annotations

import os
import random
import resource
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from orchestrator.training import Training

RANK, RANKS, MEETING, TOTAL, EVENTS = (
    *map(int, sys.argv[1:3]),
    Path(sys.argv[3]),
    int(sys.argv[4]),
    sys.argv[5:],
)


def built() -> torch.nn.Sequential:
    """Its sizes do not divide by the number of ranks, and one layer has fewer rows than ranks."""
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 9), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 1)
    )


def main() -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=MEETING.as_uri(), rank=RANK, world_size=RANKS, timeout=timedelta(seconds=600)
    )
    training = Training.from_environment()
    model = built()
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(100 + RANK)  # another dropout in each rank
    state: dict[str, object] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    training.resume(state)
    for step in range(training.start + 1, TOTAL + 1):
        batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(2 * step + RANK))
        (model(batch) - 1.0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if f"late:{step}" in EVENTS and RANK == 1:
            state["late"] = next(iter(model.parameters())).detach()
        if f"full:{step}" in EVENTS and RANK == 1:
            training.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
        if RANK == 0 and f"step:{step}" in EVENTS:
            sys.stdout.write(f"step {step}\n")
            sys.stdout.flush()
            sys.stdin.readline()
        if training.should_save(step, 2):
            training.save(step, state)
        if training.should_stop():
            training.leave(step, state)
    training.save(TOTAL, state, required=True)
    sys.stdout.write(f"rank {RANK} done\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
