"""`together.py RANK MEETING STEPS [step:N]`: a training on two ranks over gloo. Rank 0 waits after step N."""

from __future__ import annotations

import random
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from orchestrator.training import Training

RANK, MEETING, TOTAL, EVENTS = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
torch.distributed.init_process_group(
    "gloo", init_method=MEETING.as_uri(), rank=RANK, world_size=2, timeout=timedelta(seconds=600)
)
training = Training.from_environment()
torch.manual_seed(5)
random.seed(5)
np.random.seed(5)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.2)))
torch.manual_seed(50 + RANK)  # each rank drops other numbers
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
state = {"model": model, "optimizer": optimizer}
training.resume(state)
for step in range(training.start + 1, TOTAL + 1):
    noise = torch.randn(8, 16, generator=torch.Generator().manual_seed(2 * step + RANK))
    (model(noise) - 1.0).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    training.report(step, rank=RANK)
    if RANK == 0 and f"step:{step}" in EVENTS:
        sys.stdout.write(f"step {step}\n")
        sys.stdout.flush()
        sys.stdin.readline()
    if training.should_save(step, 2):
        training.save(step, state)
    if training.should_stop():
        training.leave(step, state)
assert (training.save(TOTAL, state, required=True) is None) == (RANK == 1)
sys.stdout.write(f"rank {RANK} done\n")
torch.distributed.destroy_process_group()
