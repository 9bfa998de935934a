"""When each run is expected to end: the controller's newest forecasts, and what it made them from.

Two files of the home. They may be lost: the controller writes them every few seconds, views read them, and
nothing is decided from them. Imported for listings, so it imports little.
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
from orchestrator.home import Folders

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
    """What was foreseen at `at`, in unix seconds by the controller's clock."""

    at: float
    runs: tuple[Foreseen, ...] = ()


@dataclass(frozen=True)
class Writer:
    """Keeps the files current. If the disk is full, only the views suffer."""

    folders: Folders

    def __call__(self, scene: Scene, found: Mapping[str, Forecast]) -> None:
        from orchestrator.core.scene import Sightings

        forecasts = Forecasts(scene.now, tuple(Foreseen(run, each) for run, each in found.items()))
        watched = Sightings(scene.now, tuple(scene.watched.values()))
        for path, value in ((self.folders.forecasts, forecasts), (self.folders.watched, watched)):
            with contextlib.suppress(OSError, ValueError):
                write_whole(path, wire.encode(value), sync=False)


def forecasts(folders: Folders, now: float) -> dict[str, Forecast]:
    """The newest forecasts by run; empty if no controller of this home has made any lately."""
    found = _read(Forecasts, folders.forecasts)
    if found is None or abs(now - found.at) > STALE_SECONDS:
        return {}
    return {each.run: each.forecast for each in found.runs}


def watched(folders: Folders, now: float) -> dict[str, Watched]:
    """What the controller of this home has lately seen of its sessions, by run."""
    from orchestrator.core.scene import Sightings

    found = _read(Sightings, folders.watched)
    if found is None or abs(now - found.at) > STALE_SECONDS:
        return {}
    return {each.run: each for each in found.runs}


def _read(of: type[T], path: Path) -> T | None:
    try:
        return wire.decode(of, files.read(path.parent, path.name, BYTES_MAX))
    except (OSError, ValueError, Odd):
        return None
