"""`torture.py` without torch: a training of hashes and random draws with two worker processes.

At least this many seconds per step: `torture_plain.py STEPS SECONDS`. A worker that dies ends it, as with
torch.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import sys
import threading
from multiprocessing.connection import Connection

from orchestrator.training import Training

TOTAL, SECONDS = int(sys.argv[1]), float(sys.argv[2])
WORKERS = 2


def load(pipe: Connection, first: int) -> None:
    """Sends the batch of each step from `first` on that is this worker's. It depends only on the step."""
    for step in range(first, TOTAL + 1, WORKERS):
        pipe.send(random.Random(step).random())
        pipe.recv()


training = Training.from_environment()
random.seed(7)
found = training.resume({})
chain = str(found.get("chain", "seed"))
forked = multiprocessing.get_context("fork")
pipes: dict[int, Connection] = {}
for number in range(WORKERS):
    first = training.start + 1 + number
    ours, theirs = forked.Pipe()
    forked.Process(target=load, args=(theirs, first), daemon=True).start()
    theirs.close()
    pipes[first % WORKERS] = ours
never = threading.Event()
for step in range(training.start + 1, TOTAL + 1):
    pipe = pipes[step % WORKERS]
    batch = pipe.recv()
    pipe.send(None)
    chain = hashlib.sha256(f"{chain} {step} {batch} {random.random()}".encode()).hexdigest()
    never.wait(SECONDS)
    training.report(step, loss=1.0 / step)
    if step == TOTAL:
        break
    state = {"chain": chain, "ballast": "x" * 200_000}
    if training.should_save(step):
        training.save(step, state)
    if training.should_stop():
        training.leave(step, state)
training.save(TOTAL, {"chain": chain}, required=True)
