"""Two ranks of which only the first saves: it waits for the other, and says why. Then the other gives up."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from orchestrator.training import Training, saving
from orchestrator.training.devices import spread

saving.LATE_SECONDS = 0.1
FOLDER, TOLD = Path(sys.argv[1]), Path(sys.argv[2])


def lead() -> None:
    Training(FOLDER).save(1, {"weights": torch.zeros(3)})


def follow(_rank: int) -> None:
    while not TOLD.exists():
        TOLD.parent.stat()
    raise RuntimeError("the planted fault")


if __name__ == "__main__":
    spread(lead, follow, 2, "cpu")
