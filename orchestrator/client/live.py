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
from orchestrator.files import Odd, make_folder, write_whole
from orchestrator.home import Folders
from orchestrator.session.saying import within_bounds

if TYPE_CHECKING:
    from orchestrator.core.run import RunRecord

LIVE_BYTES_MAX = 1 << 20
PREPARING_BYTES_MAX = 1 << 16
TRAINING = frozenset({"training", "saving"})  # what an agent says once its command has come to a step
# A training that has come to no other step for so long is said to stand still. Its agent ends it later.
STALLED_SECONDS = 120.0
STALLED_STEPS = 10  # of the expected duration
STALLED_SECONDS_UNTIMED = 600.0  # while nobody knows how long a step takes: it may compile, or load data


@dataclass(frozen=True)
class Live:
    """The newest reading of a run's session, taken `at` by the controller's clock.

    `trouble` is why there is no newer one: its platform or its store did not answer. `launched_at` is the
    session's launch, and `moved_at` when its training was first seen at its present step.
    Times in unix seconds.
    """

    session: str
    at: float
    observation: Observation
    trouble: str = ""
    launched_at: float | None = None
    moved_at: float | None = None

    @property
    def stalled_seconds(self) -> float | None:
        """For how long its training has not come to another step, if that is longer than it should be."""
        status = self.observation.status
        if status is None or self.moved_at is None or self.observation.sighting is not Sighting.RUNNING:
            return None
        if status.state not in TRAINING:
            return None
        rate = status.steps_per_second
        expected = STALLED_STEPS / rate if rate else STALLED_SECONDS_UNTIMED
        still = self.at - self.moved_at
        return still if still >= max(STALLED_SECONDS, expected) else None

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
            found = Live(session.name, now, observation, launched_at=session.launched_at)
            self._write(record.run, replace(found, moved_at=self._moved_at(record.run, found)))

    def silence(self, record: RunRecord, trouble: str) -> None:
        found = read(self.folders, record.run, record.session.name if record.session else None)
        if found is not None and found.trouble != trouble:
            self._write(record.run, replace(found, trouble=trouble))

    def _moved_at(self, run: str, found: Live) -> float:
        before = read(self.folders, run, found.session)
        if before is None or before.moved_at is None or _step(before) != _step(found):
            return found.at
        return before.moved_at

    def _write(self, run: str, found: Live) -> None:
        path = self.folders.live(run)
        with contextlib.suppress(OSError, ValueError):
            data = wire.encode(found)
            make_folder(path.parent)
            write_whole(path, data, sync=False)


def _step(found: Live) -> int | None:
    return None if found.observation.status is None else found.observation.status.step


def read(folders: Folders, run: str, session: str | None) -> Live | None:
    """The newest reading of this session of the run, or None."""
    found = None if session is None else last(folders, run)
    return found if found is not None and found.session == session else None


def last(folders: Folders, run: str) -> Live | None:
    """The newest reading of any session of the run, also if it is over; None if there is none."""
    try:
        path = folders.live(run)
        found = wire.decode(Live, files.read(path.parent, path.name, LIVE_BYTES_MAX))
    except (OSError, ValueError, Odd):
        return None
    status = found.observation.status
    if status is not None:  # perhaps another version wrote it and checked less
        observation = replace(found.observation, status=within_bounds(status))
        found = replace(found, observation=observation, at=bounds.moment(found.at) or 0.0)
    return found


def preparing(folders: Folders, run: str) -> str:
    """What is being done for the run's next session; empty if that is unknown."""
    path = folders.preparing(run)
    try:
        data = files.read(path.parent, path.name, PREPARING_BYTES_MAX)
    except (OSError, Odd):
        return ""
    return "" if data is None else data.decode(errors="replace")
