"""The command `python -m graphmer.train`: arguments in, exit code out; the loop does the rest."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from graphmer import config
from orchestrator.training import Training
from orchestrator.training.determinism import CUBLAS
from orchestrator.training.devices import BACKENDS, backend_for

if TYPE_CHECKING:
    from graphmer.loop import Schedule

_UNDETERMINED = " does not have a deterministic implementation"  # torch's words


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m graphmer.train", description="Train GraphMER.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--steps", type=_positive, required=True)
    parser.add_argument("--micro-batch", type=_positive, required=True)
    parser.add_argument("--accumulate", type=_positive, default=1)
    parser.add_argument("--devices", type=_positive, default=1, help="number of processes, one for each GPU")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="fp32")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--backend", choices=BACKENDS, help="back end (default: the best available)")
    given = parser.parse_args()
    try:
        training = Training.from_environment()  # before torch, so that a SIGTERM during start-up is handled
        # Threads sleep while they wait: on shared cores, training with a spinning wait is four times slower.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault(CUBLAS, ":4096:8")  # for deterministic matrix products; before `find`
        from graphmer.loop import Schedule

        schedule = Schedule(
            given.steps, given.micro_batch, given.accumulate, given.precision, given.seed, given.devices
        )
        backend = given.backend or backend_for(training.accelerator)
        _run(config.read(given.config), schedule, training, backend)
    except ValueError as error:
        sys.exit(f"graphmer: {error}")
    except RuntimeError as error:
        operation, found, _ = str(error).partition(_UNDETERMINED)
        if not found:
            raise
        sys.exit(
            f"graphmer: {operation}{found} here. Set `deterministic: false` in {given.config} to train "
            "without; a resume is then state-exact, not bitwise"
        )
    except OSError as error:
        sys.exit(f"graphmer: {error.filename}: {error.strerror}" if error.filename else f"graphmer: {error}")


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return int(text)


def _run(settings: config.Config, schedule: Schedule, training: Training, backend: str | None) -> None:
    from graphmer.loop import train
    from orchestrator.training.devices import find, spread

    def lead() -> None:
        train(settings, schedule, training, find(backend, 0, schedule.devices))

    spread(lead, partial(_follow, settings, schedule, backend), schedule.devices, backend)


def _follow(settings: config.Config, schedule: Schedule, backend: str | None, rank: int) -> None:
    from graphmer.loop import train
    from orchestrator.training.devices import find

    train(settings, schedule, Training.from_environment(), find(backend, rank, schedule.devices))


if __name__ == "__main__":
    main()
