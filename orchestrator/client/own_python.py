"""The Python of a job on the user's own machine, as it is told. Loads the config only if that is needed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.job import Python
from orchestrator.core.run import RunRecord
from orchestrator.errors import OrchestratorError

if TYPE_CHECKING:
    from orchestrator.client.client import Client


@dataclass(frozen=True)
class Told:
    """The Python that a job's sessions get on a platform. `trouble`: why there is none; empty if there is."""

    platform: str
    path: str = ""
    version: str = ""
    torch: str = ""
    why: str = ""
    trouble: str = ""

    @classmethod
    def frozen(cls, platform: str, python: Python) -> Told:
        return cls(platform, python.path, python.version, python.torch, python.why)

    @property
    def text(self) -> str:
        if self.trouble:
            return self.trouble
        torch = f"with torch {self.torch}" if self.torch else "without torch"
        return f"{self.path} ({self.version or 'version unknown'}, {torch}; {self.why})"


def of_run(client: Client, record: RunRecord) -> tuple[Told, ...]:
    """The Python on each platform that may still run it there. What a run that is over had is known without
    the config, which may be wrong by now."""
    job = record.job
    if record.phase.final:
        return () if job.python is None else (Told.frozen("", job.python),)
    with suppress(OrchestratorError, OSError):
        from orchestrator.client import pythons

        return pythons.told(client.wired(), job)
    return ()
