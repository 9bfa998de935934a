"""What a run is doing right now, for people: the newest reading, stored beside the ledger.

It may be lost: the controller writes it, views read it, and nothing is decided from it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator import files
from orchestrator.core import bounds, wire
from orchestrator.core.session import Observation, Sighting
from orchestrator.files import Odd, write_whole
from orchestrator.home import Folders
from orchestrator.session.saying import within_bounds

if TYPE_CHECKING:
    from orchestrator.core.run import RunRecord

LIVE_BYTES_MAX = 1 << 20
PREPARING_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class Live:
    """The newest reading of a run's session, taken `at` by the controller's clock.

    `trouble` is why there is no newer one: its platform or its store did not answer. `launched_at` is the
    session's launch; both times in unix seconds.
    """

    session: str
    at: float
    observation: Observation
    trouble: str = ""
    launched_at: float | None = None

    @property
    def waits_since(self) -> float | None:
        """Since when the session has waited in its platform's queue; None if it does not wait."""
        return self.launched_at if self.observation.sighting is Sighting.PENDING else None

    @property
    def saves(self) -> bool:
        """Whether the session is over, and its platform still saves what it left."""
        return self.observation.sighting is Sighting.SAVING

    @property
    def saving_text(self) -> str:
        """How people see a session that `saves`."""
        return f"over; {self.observation.detail or 'its platform still saves what it left'}"


@dataclass(frozen=True)
class Writer:
    """Keeps `live.json` of each run current. If the disk is full, only the view suffers."""

    folders: Folders

    def reading(self, record: RunRecord, observation: Observation, now: float) -> None:
        if record.session is not None:
            session = record.session
            self._write(record.run, Live(session.name, now, observation, launched_at=session.launched_at))

    def silence(self, record: RunRecord, trouble: str) -> None:
        found = read(self.folders, record.run, record.session.name if record.session else None)
        if found is not None and found.trouble != trouble:
            self._write(record.run, replace(found, trouble=trouble))

    def _write(self, run: str, found: Live) -> None:
        path = self.folders.live(run)
        with contextlib.suppress(OSError, ValueError):
            data = wire.encode(found)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, sync=False)


def read(folders: Folders, run: str, session: str | None) -> Live | None:
    """The newest reading of this session of the run, or None."""
    if session is None:
        return None
    try:
        path = folders.live(run)
        found = wire.decode(Live, files.read(path.parent, path.name, LIVE_BYTES_MAX))
    except (OSError, ValueError, Odd):
        return None
    status = found.observation.status
    if status is not None:  # perhaps another version wrote it and checked less
        observation = replace(found.observation, status=within_bounds(status))
        found = replace(found, observation=observation, at=bounds.moment(found.at) or 0.0)
    return found if found.session == session else None


def preparing(folders: Folders, run: str) -> str:
    """What is being done for the run's next session; empty if that is unknown."""
    path = folders.preparing(run)
    try:
        data = files.read(path.parent, path.name, PREPARING_BYTES_MAX)
    except (OSError, Odd):
        return ""
    return "" if data is None else data.decode(errors="replace")
