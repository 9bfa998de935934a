"""A plain PyTorch training that draws from every random generator and pauses where a test asks it to.

`toy.py STEPS [EVENT...]`, with these events:
`step:N` waits for a line at step N;
`held:N` waits for a line in the middle of the save of step N, as a slow disk would;
`full:N` limits every file to a few KiB from step N on;
`every:N` saves every N steps when nobody requests saves;
`starved` leaves memory for the training, but not for a copy of it;
`crash:N` raises an error after step N.
"""

from __future__ import annotations

import os
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from orchestrator.training import Training

TOTAL, EVENTS = int(sys.argv[1]), set(sys.argv[2:])
EVERY = next((int(event.removeprefix("every:")) for event in EVENTS if event.startswith("every:")), None)


def say(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def slow_sync(handle: int, sync: Callable[[int], None] = os.fsync) -> None:
    """Simulates a disk that takes as long as the test wants for the first file of one checkpoint."""
    step = Path(f"/proc/self/fd/{handle}").readlink().parent.name.removeprefix(".tmp-step-")
    if f"held:{step}" in EVENTS:
        EVENTS.remove(f"held:{step}")
        say(f"saving {step}\n")
        sys.stdin.readline()
    sync(handle)


os.fsync = slow_sync  # type: ignore[assignment]  # the helper syncs only handles
training = Training.from_environment()
torch.manual_seed(1)
random.seed(2)
np.random.seed(3)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 32))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
seen: list[float] = []
buffer = torch.zeros(1_000_000)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "seen": seen, "buffer": buffer}
found = training.resume(parts)
seen += found.get("seen", [])
buffer += found.get("buffer", 0.0)
if "starved" in EVENTS:
    used = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
    resource.setrlimit(resource.RLIMIT_DATA, (int(used.split()[1]) * 1024 + 2**24,) * 2)
for step in range(training.start + 1, TOTAL + 1):
    noise = torch.from_numpy(np.random.standard_normal((8, 32))).float() * random.random()
    loss = (model(torch.randn(8, 32) + noise) - 1.0).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    seen.append(loss.item())
    buffer += loss.item()
    training.report(step, loss=loss.item())
    say(f"step {step}\n")
    if f"step:{step}" in EVENTS:
        sys.stdin.readline()
    if f"full:{step}" in EVENTS:
        training.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    if training.should_save(step, EVERY):
        training.save(step, parts, {"loss": loss.item()})
    if f"crash:{step}" in EVENTS:
        raise ValueError("the planted fault")
    if training.should_stop() and step < TOTAL:
        training.leave(step, parts)
training.save(TOTAL, parts, {"loss": loss.item()}, required=True)
