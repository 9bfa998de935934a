"""A plain PyTorch training that draws from every random generator and halts where a test asks it to.

`toy.py STEPS [EVENT...]`: at each `step:N` it waits for a line; at `save:N` it waits in the middle of that
save; from `full:N` on no file may grow beyond a few KiB; `every:N` saves so often where nobody asks.
"""

from __future__ import annotations

import random
import resource
import sys

import numpy as np
import torch

from orchestrator.training import Training

TOTAL, EVENTS = int(sys.argv[1]), set(sys.argv[2:])
EVERY = next((int(event.removeprefix("every:")) for event in EVENTS if event.startswith("every:")), None)


def say(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


class Halting:
    """A component whose state takes as long as the test likes; saved after the model's tensors."""

    step = 0

    def state_dict(self) -> dict[str, float]:
        if f"save:{self.step}" in EVENTS:
            say(f"saving {self.step}\n")
            sys.stdin.readline()
        return {}

    def load_state_dict(self, state: object) -> None:
        assert state == {}


training = Training.from_environment()
torch.manual_seed(1)
random.seed(2)
np.random.seed(3)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 32))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
halting = Halting()
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "zz": halting}
training.resume(parts)
for step in range(training.start + 1, TOTAL + 1):
    noise = torch.from_numpy(np.random.standard_normal((8, 32))).float() * random.random()
    loss = (model(torch.randn(8, 32) + noise) - 1.0).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    halting.step = step
    training.report(step, loss=loss.item())
    say(f"step {step}\n")
    if f"step:{step}" in EVENTS:
        sys.stdin.readline()
    if f"full:{step}" in EVENTS:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    if training.should_save(step, EVERY):
        training.save(step, parts, {"loss": loss.item()})
    if training.should_stop() and step < TOTAL:
        training.leave(step, parts)
training.save(TOTAL, parts, {"loss": loss.item()}, required=True)
