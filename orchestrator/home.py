"""The layout of a user's home, as paths only.

Reads and writes nothing, and does not know what is in a file. docs/home.md describes the layout for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Rejected

CONFIG = "config.yaml"
LEDGER = "ledger.sqlite"  # if the config names no database
CONTROLLER_LOG = "controller.log"
SUBMIT_LOCK = "submit.lock"  # held while a submit checks whether its job has an active run
BUNDLES = "bundles"
IMAGES = "images"
INPUTS = "inputs"
STAGED = "staged"
RUNS = "runs"
PLATFORMS = "platforms"
HOME_ID = "home-id"  # in a platform's own folder: by it this home knows its own things there
HOME_ID_BEFORE = "home-id.before"  # the id that another one took the place of
RESULTS = "results"
TRIALS = "trials"  # the reports of `doctor --live`
LIVE = "live.json"
FORECASTS = "forecasts.json"  # when each run is expected to end, for viewers; not durable
PREPARING = "preparing"
UPLINK = "uplink.pyz"  # beside agent.pyz; for sessions that ship their own outbox
PULLED = "pulled.json"  # the folders that `pull` wrote; no source has them
DEPOSITED = "deposited"  # what the run's home store was last told of it

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,200}")


def _part(name: str) -> str:
    if not _PART.fullmatch(name):
        raise Rejected(f"{name!r} is not the name of a run, a session or a file of ours: nothing was touched")
    return name


@dataclass(frozen=True)
class Folders:
    """The paths below one home. Every part of a path is checked here: raises Rejected for a name that could
    lead outside."""

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
        """The frozen folders that an image is built from."""
        return self.home / IMAGES / f"{_part(sha256)}.tar.gz"

    @property
    def inputs(self) -> Path:
        """Verified copies of jobs' inputs, named by their content."""
        return self.home / INPUTS

    def staged(self, session: str) -> Path:
        """The checkpoint to resume, staged for a session."""
        return self.home / STAGED / _part(session)

    def platform(self, name: str) -> Path:
        """A platform's own folder."""
        return self.home / PLATFORMS / _part(name)

    def run(self, run: str) -> Path:
        return self.home / RUNS / _part(run)

    def collected(self, run: str, session: str) -> Path:
        """What was collected from a session's outbox. Blobs are removed once they are in the store."""
        return self.run(run) / _part(session)

    def live(self, run: str) -> Path:
        """The newest reading of the run's session, for viewers. Not durable."""
        return self.run(run) / LIVE

    def preparing(self, run: str) -> Path:
        """Progress of preparing the run's next session, for viewers. Not durable."""
        return self.run(run) / PREPARING

    def result(self, run: str, step: int) -> Path:
        """Where `submit --follow` puts a finished run's checkpoint."""
        return self.home / RESULTS / _part(run) / f"step-{step}"
