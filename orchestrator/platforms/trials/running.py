"""Which trials of this home are under way. Each holds the lock of a folder of its own; the system releases it
when the trial ends or dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import Transient
from orchestrator.files import held_folder, is_locked

TRIALS = "trials"  # in a platform's folder: that of all its trials
PACKING = "packing"


@contextmanager
def running(trials: Path, run: str) -> Iterator[Path]:
    """The folder of the trial `run`, while that is under way. A controller's start removes it if we die."""
    folder = trials / PACKING / run
    with held_folder(folder):
        yield folder


def under_way(trials: Path) -> frozenset[str]:
    """The names of the trials that are under way. `trials` is the folder of all trials of a platform."""
    folders = (trials / PACKING).glob("*-trial-*")
    return frozenset(each.name for each in folders if each.exists() and is_locked(each))


def check_alone(trials: Path, platform: str) -> None:
    """Raises Transient if another trial is under way."""
    for other in sorted(under_way(trials)):
        text = f"{other} is under way: wait for its end, or end it with Ctrl-C where it runs"
        raise Transient(text, backend=platform, operation="trial")
