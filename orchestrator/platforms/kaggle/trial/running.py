"""Which trials of this home are under way. Each holds the lock of a folder of its own; the system releases it
when the trial ends or dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.files import held_folder, is_locked

JOB = "kaggle-trial"
PACKING = "packing"


@contextmanager
def running(trials: Path, run: str) -> Iterator[Path]:
    """The folder of the trial `run`, while that is under way. A controller's start removes it if we die."""
    folder = trials / PACKING / run
    with held_folder(folder):
        yield folder


def under_way(trials: Path) -> frozenset[str]:
    """The names of the trials that are under way. `trials` is the folder of all trials of a platform."""
    folders = (trials / PACKING).glob(f"{JOB}-*")
    return frozenset(each.name for each in folders if each.exists() and is_locked(each))
