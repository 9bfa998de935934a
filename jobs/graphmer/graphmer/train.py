"""The command `python -m graphmer.train`: arguments in, exit code out; the loop does the rest."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from graphmer import config
from orchestrator.training import Training


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m graphmer.train", description="Train GraphMER.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--seed", type=int, default=1337)
    given = parser.parse_args()
    training = Training.from_environment()  # before torch, so that a SIGTERM during start-up is heeded
    # Threads that wait asleep: on cores shared with others a spinning wait trains four times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from graphmer.loop import Schedule, train

    schedule = Schedule(given.steps, given.micro_batch, given.accumulate, given.precision, given.seed)
    try:
        train(config.read(given.config), schedule, training)
    except ValueError as error:
        sys.exit(f"graphmer: {error}")


if __name__ == "__main__":
    main()
