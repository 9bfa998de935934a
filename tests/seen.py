"""What the engine makes of a platform's answers: observations, and outboxes fetched into a folder."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import wire
from orchestrator.core.order import AgentStatus, Outcome, Result
from orchestrator.core.session import Observation
from orchestrator.engine.readings import observation
from orchestrator.errors import BackendError
from orchestrator.platforms.platform import Platform, Sight
from orchestrator.session.folder import SessionFolder
from orchestrator.session.layout import INCARNATION, STATUS
from orchestrator.session.outbox import Collected, FolderOutbox, Growth, collect


def observed(platform: Platform, names: Iterable[str]) -> dict[str, Observation]:
    """One reading of each session, without the unreadable ones; raises what the platform raises."""
    found = {}
    for name, sight in platform.observe(names).items():
        with suppress(BackendError, OSError):
            found[name] = observation(sight)
    return found


def collected(platform: Platform, name: str, into: Path) -> Collected:
    return collect(platform.open(name), into)


def reading(session: SessionFolder) -> Observation:
    """A reading of a session whose agent is dead or never existed."""
    sight = Sight(session.sighting(), FolderOutbox(session.outbox), ending=Outcome.LOST)
    return observation(sight)


@dataclass(frozen=True)
class Canned:
    """An outbox with given answers and without a checkpoint."""

    incarnations: tuple[str, ...] = ()
    status: AgentStatus | None = None
    result: Result | None = None

    def small(self, name: str) -> bytes | None:
        if name == INCARNATION:
            return "\n".join(self.incarnations).encode() or None
        said = self.status if name == STATUS else self.result
        return None if said is None else wire.encode(said)

    def checkpoints(self) -> Iterable[str]:
        return ()

    def manifest(self, name: str) -> bytes | None:
        del name
        return None

    def blob(self, sha256: str, target: Path) -> bool:
        del sha256, target
        return False

    def growing(self, here: Path, folder: Path) -> Growth:
        del here
        return Growth(folder)
