"""Where things lie in a user's home: the layout, once, as paths only.

Reads and writes nothing, and knows nothing of what is in a file. docs/home.md has the layout for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Rejected

CONFIG = "config.yaml"
LEDGER = "ledger.sqlite"  # where the config names no database
CONTROLLER_LOG = "controller.log"
OLDER_CONTROLLER_LOG = "controller.log.1"
SUBMIT_LOCK = "submit.lock"  # held while a submit looks whether a run of its job is under way
BUNDLES = "bundles"
IMAGES = "images"
INPUTS = "inputs"
STAGED = "staged"
RUNS = "runs"
PLATFORMS = "platforms"
RESULTS = "results"
LIVE = "live.json"
PREPARING = "preparing"

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,200}")


def _part(name: str) -> str:
    if not _PART.fullmatch(name):
        raise Rejected(f"{name!r} is no name of a run, a session or a file of ours: nothing was touched")
    return name


@dataclass(frozen=True)
class Folders:
    """Where things lie below one home. What a path is made of is checked here, once for all: raises Rejected
    for a name that could lead anywhere else."""

    home: Path

    @property
    def config(self) -> Path:
        return self.home / CONFIG

    @property
    def controller_log(self) -> Path:
        return self.home / CONTROLLER_LOG

    @property
    def crash_log(self) -> Path:
        return self.home / "crash.log"

    @property
    def tick(self) -> Path:
        """The note of the controller's newest tick, for `health`."""
        return self.home / "tick.json"

    @property
    def agent(self) -> Path:
        return self.home / "agent.pyz"

    def bundle(self, sha256: str) -> Path:
        """Frozen source."""
        return self.home / BUNDLES / f"{_part(sha256)}.tar.gz"

    def image(self, sha256: str) -> Path:
        """The frozen folders an image is built from."""
        return self.home / IMAGES / f"{_part(sha256)}.tar.gz"

    @property
    def inputs(self) -> Path:
        """Verified copies of jobs' inputs, by their content."""
        return self.home / INPUTS

    def staged(self, session: str) -> Path:
        """The resume checkpoint on its way into a session."""
        return self.home / STAGED / _part(session)

    def platform(self, name: str) -> Path:
        """What a platform keeps here for itself."""
        return self.home / PLATFORMS / _part(name)

    def run(self, run: str) -> Path:
        return self.home / RUNS / _part(run)

    def collected(self, run: str, session: str) -> Path:
        """What was brought of a session's outbox; checkpoints leave again once they are in the store."""
        return self.run(run) / _part(session)

    def live(self, run: str) -> Path:
        """The newest reading of the run's session, for viewers; volatile."""
        return self.run(run) / LIVE

    def preparing(self, run: str) -> Path:
        """What is being done for the run's next session, for viewers; volatile."""
        return self.run(run) / PREPARING

    def result(self, run: str, step: int) -> Path:
        """Where `submit --follow` lays a finished run's checkpoint out."""
        return self.home / RESULTS / _part(run) / f"step-{step}"
