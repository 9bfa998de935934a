"""A training by epochs, with data-loader workers, accumulation, fp16 and a gradient scaler.

`epochs.py STEPS WORKERS [EVENT...]`. With `term:N` it sends itself SIGTERM in the middle of the accumulation
window of step N. With `every:N` it saves every N steps when nobody requests saves. The batch of a step
depends only on the step.
"""

from __future__ import annotations

import os
import random
import signal
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from orchestrator.training import Training

TOTAL, WORKERS, EVENTS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
EVERY = next((int(event.removeprefix("every:")) for event in EVENTS if event.startswith("every:")), None)
STEPS_AN_EPOCH, MICRO, ACCUMULATE, WIDTH = 3, 4, 4, 32


class Samples(Dataset[torch.Tensor]):
    """Global batches by step. The order is a function of the epoch, the augmentation one of the step."""

    def __getitem__(self, step: int) -> torch.Tensor:
        epoch, place = divmod(step - 1, STEPS_AN_EPOCH)
        count = MICRO * ACCUMULATE
        order = torch.randperm(STEPS_AN_EPOCH * count, generator=torch.Generator().manual_seed(epoch))
        numbers = order[place * count : (place + 1) * count, None]
        noise = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(10_000 + step))
        return torch.sin(numbers * torch.arange(1, WIDTH + 1)) + 0.1 * noise


training = Training.from_environment()
torch.manual_seed(3)
random.seed(3)
np.random.seed(3)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, WIDTH))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)  # overflows at first, then grows
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
training.resume(state)
step = training.start
while step < TOTAL:
    end = min(TOTAL, (step // STEPS_AN_EPOCH + 1) * STEPS_AN_EPOCH)
    steps = range(step + 1, end + 1)
    loader: DataLoader[torch.Tensor] = DataLoader(
        Samples(), batch_size=None, sampler=steps, num_workers=WORKERS, generator=torch.Generator()
    )
    for step, batch in zip(steps, loader, strict=True):
        for number, micro in enumerate(batch.split(MICRO)):
            with torch.autocast("cpu", torch.float16):
                loss = (model(micro) - micro).float().square().sum() / batch.numel()
            scaler.scale(loss * (1.0 + random.random())).backward()
            if f"term:{step}" in EVENTS and number == 1:
                os.kill(os.getpid(), signal.SIGTERM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        if training.should_save(step, EVERY):
            training.save(step, state)
        if training.should_stop() and step < TOTAL:
            training.leave(step, state)
training.save(TOTAL, state, required=True)
