"""A small torch training with two data-loader workers that draws random numbers as it goes.

`torture.py STEPS SECONDS`: at least this many seconds per step, so that it takes a while on any machine.
"""

from __future__ import annotations

import random
import sys
import threading

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from orchestrator.training import Training

TOTAL, SECONDS = int(sys.argv[1]), float(sys.argv[2])
WIDTH = 64


class Batches(Dataset[torch.Tensor]):
    """The batch of a step depends only on the step."""

    def __getitem__(self, step: int) -> torch.Tensor:
        return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(step))


training = Training.from_environment()
torch.use_deterministic_algorithms(True)
for seed in (random.seed, np.random.seed, torch.manual_seed):
    seed(7)
model = torch.nn.Sequential(
    torch.nn.Linear(WIDTH, 256), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(256, WIDTH)
)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)
loader: DataLoader[torch.Tensor] = DataLoader(
    Batches(), batch_size=None, sampler=range(training.start + 1, TOTAL + 1), num_workers=2,
    generator=torch.Generator(),
)  # fmt: skip
batches = iter(loader)
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
training.resume(state)
never = threading.Event()
for step in range(training.start + 1, TOTAL + 1):
    batch = next(batches)
    loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    never.wait(SECONDS)
    training.report(step, loss=loss.item())
    if step == TOTAL:
        break
    if training.should_save(step):
        training.save(step, state, {"loss": loss.item()})
    if training.should_stop():
        training.leave(step, state)
training.save(TOTAL, state, required=True)
