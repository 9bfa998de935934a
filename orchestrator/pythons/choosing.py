"""Which interpreter a session uses: the job's, else the configured one, else the one active at submit.

Decides the order only; `finding` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.job import Python
from orchestrator.interpreters import Interpreter
from orchestrator.pythons.finding import NoPython, active, checked, named

IN_JOB, IN_CONFIG = "`python` in the job", "`python` in the config"
_PUT_BACK = "put it back, and `orchestrator release` the run; or "
_IN_JOB_FILE = (
    "give another one as `python:` in the job's file, and `orchestrator retry` the run with that file"
)


def chosen(
    job: Python | None, configured: str | None, variables: Mapping[str, str]
) -> tuple[Interpreter, str]:
    """The interpreter, and where it comes from. `job` has an interpreter's path. Raises NoPython that says
    what a run that needs it can do."""
    if job is not None and (job.given or configured is None):
        try:
            return checked(job.path), IN_JOB if job.given else job.why
        except NoPython as error:
            raise NoPython(f"{error} (from {_origin(job)}): {_PUT_BACK}{_IN_JOB_FILE}") from error
    if configured is not None:
        try:
            return checked(named(configured, variables)), IN_CONFIG
        except NoPython as error:
            raise NoPython(
                f"{error} (from {IN_CONFIG}): {_PUT_BACK}correct the config, and release the run"
            ) from error
    return active(variables)


def _origin(job: Python) -> str:
    return IN_JOB if job.given else f"{job.why or 'the active one'} at submit"
