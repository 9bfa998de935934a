"""A training of hashes and random draws, to compare an interrupted one with an uninterrupted one.

`train.py STEPS` and flags that make it misbehave. It uses orchestrator.training without torch, so it starts
fast.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import threading
from pathlib import Path

from orchestrator.training import Training

flags = argparse.ArgumentParser()
flags.add_argument("steps", type=int)
flags.add_argument("--pause", type=float, default=0.0, help="seconds a step")
flags.add_argument("--hold-at", type=int, help="where no session resumed, stay at this step until stopped")
flags.add_argument("--gates", type=Path, help="stay at step N while it has a file N, or until stopped")
flags.add_argument("--save-every", type=int, help="also without being asked")
flags.add_argument("--nan-at", type=int)
flags.add_argument("--raise-at", type=int)
flags.add_argument("--micro-batch", type=int, default=1)
flags.add_argument("--hungry-from", type=int, help="from this step on, 100 MB for each of the micro-batch")
asked = flags.parse_args()

training = Training.from_environment()
random.seed(1)
found = training.resume({})
chain = str(found.get("chain", "seed"))
never = threading.Event()
for step in range(training.start + 1, asked.steps + 1):
    if asked.hungry_from and step >= asked.hungry_from:
        hoard = bytearray()  # removes that of the previous step first
        hoard = bytearray(asked.micro_batch * 100_000_000)
    chain = hashlib.sha256(f"{chain} {step} {random.random()}".encode()).hexdigest()
    never.wait(asked.pause)
    training.report(step, loss=float("nan") if step == asked.nan_at else 1.0 / step)
    if step == asked.raise_at:
        raise ValueError("the planted fault")
    if step == asked.steps:
        break
    state = {"chain": chain, "ballast": "x" * 500_000}
    if training.should_save(step) or (asked.save_every and step % asked.save_every == 0):
        training.save(step, state)
    while step == asked.hold_at and not training.start and not training.should_stop():
        never.wait(0.05)
    while asked.gates and (asked.gates / str(step)).exists() and not training.should_stop():
        never.wait(0.05)
    if training.should_stop():
        training.leave(step, state)
training.save(asked.steps, {"chain": chain}, required=True)
