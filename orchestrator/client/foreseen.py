"""When each run is expected to end: the controller's newest forecasts, and what it made them from.

One file of the home. It may be lost: the controller writes it every few seconds, views read the part that
they need, and nothing is decided from it. Imported for listings, so it imports little.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from orchestrator import files
from orchestrator.core import wire
from orchestrator.core.foreseen import Forecast
from orchestrator.files import Odd, write_whole
from orchestrator.home import FORECASTS, Folders

if TYPE_CHECKING:
    from orchestrator.core.scene import Scene, Watched

T = TypeVar("T")
BYTES_MAX = 8 << 20
STALE_SECONDS = 120.0  # older ones are those of a controller that is gone


@dataclass(frozen=True)
class Foreseen:
    run: str
    forecast: Forecast


@dataclass(frozen=True)
class Forecasts:
    """What was foreseen at `at`, in unix seconds by the controller's clock. `sliced`: the runs without a
    forecast that sleep between slices, so that the training that is left says nothing of their end."""

    at: float
    runs: tuple[Foreseen, ...] = ()
    sliced: tuple[str, ...] = ()


@dataclass(frozen=True)
class Writer:
    """Keeps the file current. If the disk is full, only the views suffer."""

    folders: Folders

    def __call__(self, scene: Scene, found: Mapping[str, Forecast]) -> None:
        from orchestrator.core.scene import Sightings
        from orchestrator.core.slices import in_slices

        known = (each for each in (*scene.running, *scene.waiting) if each.run not in found)
        sliced = tuple(each.run for each in known if in_slices(each))
        told = Forecasts(scene.now, tuple(Foreseen(run, each) for run, each in found.items()), sliced)
        seen = Sightings(scene.now, tuple(scene.watched.values()))
        with contextlib.suppress(OSError, ValueError):
            write_whole(path(self.folders), wire.encode(wire.to_json(seen) | wire.to_json(told)), sync=False)


def path(folders: Folders) -> Path:
    return folders.home / FORECASTS


def forecasts(folders: Folders, now: float) -> dict[str, Forecast]:
    """The newest forecasts by run; empty if no controller of this home has made any lately."""
    return {each.run: each.forecast for each in newest(folders, now).runs}


def newest(folders: Folders, now: float) -> Forecasts:
    """What the controller of this home has foreseen lately; nothing if there is none."""
    found = _read(Forecasts, path(folders))
    return Forecasts(now) if found is None or abs(now - found.at) > STALE_SECONDS else found


def watched(folders: Folders, now: float) -> dict[str, Watched]:
    """What the controller of this home has lately seen of its sessions, by run."""
    from orchestrator.core.scene import Sightings

    found = _read(Sightings, path(folders))
    if found is None or abs(now - found.at) > STALE_SECONDS:
        return {}
    return {each.run: each for each in found.watched}


def _read(of: type[T], file: Path) -> T | None:
    try:
        return wire.decode(of, files.read(file.parent, file.name, BYTES_MAX))
    except (OSError, ValueError, Odd):
        return None
