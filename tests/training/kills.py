"""Kills trainings at random moments of their background saves, and prints what they left.

`kills.py FOLDER SEEDS`: for each seed, a forked training saves in the background until it is killed, and
another one resumes from the newest checkpoint. Prints a line `seed N: step S, same` for each seed, or
`differs` if the end is not that of an uninterrupted training.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from orchestrator.training import Training
from orchestrator.training.training import newest
from tests.training.scripts import fingerprints

TOTAL, EVERY = 12, 2


def train(folder: Path, resume_from: Path | None, said: Callable[[int], object]) -> None:
    training = Training(folder, resume_from=resume_from)
    torch.manual_seed(1)
    random.seed(1)
    weights = torch.zeros(500_000)
    moments = torch.zeros(4, 500_000)
    parts = {"weights": weights, "moments": moments}
    found = training.resume(parts)
    for name, tensor in found.items():
        parts[name].copy_(tensor)
    for step in range(training.start + 1, TOTAL + 1):
        moments.mul_(0.9).add_(torch.rand(4, 1) * random.random())
        weights.add_(moments.sum(0)).add_(torch.randn(500_000))
        if training.should_save(step, EVERY):
            training.save(step, parts)
            said(step)
    training.wait()


def forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def killed(folder: Path, chance: random.Random) -> None:
    """Kills a training within a few milliseconds of a save that the training announced."""
    reading, writing = os.pipe()
    child = forked(lambda: train(folder, None, lambda _: os.write(writing, b".")))
    os.close(writing)
    for _ in range(chance.randint(2, TOTAL // EVERY)):
        os.read(reading, 1)
    threading.Event().wait(chance.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)


def main() -> None:
    folder = Path(sys.argv[1])
    train(folder / "whole", None, bool)
    whole = fingerprints(folder / f"whole/step-{TOTAL}")
    for seed in range(int(sys.argv[2])):
        killed(folder / f"killed-{seed}", random.Random(seed))
        found = newest(folder / f"killed-{seed}")
        child = forked(partial(train, folder / f"killed-{seed}", found, bool))
        assert os.waitpid(child, 0)[1] == 0
        left = {path.name for path in (folder / f"killed-{seed}").iterdir()}
        same = fingerprints(folder / f"killed-{seed}/step-{TOTAL}") == whole
        tidy = all(name.startswith("step-") for name in left)
        sys.stdout.write(
            f"seed {seed}: step {0 if found is None else found.name.removeprefix('step-')}, "
            f"{'same' if same and tidy else 'differs'}\n"
        )


main()
