"""Whose Python a job gets on the platforms that run in the user's own environment: frozen, and told.

Decides when it is looked up: at submit, because the controller may have been started from elsewhere. Must
never import a package of that environment.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from orchestrator.client.own_python import Told
from orchestrator.client.wiring import Wired
from orchestrator.config import PlatformConfig
from orchestrator.core.job import Job, Python
from orchestrator.errors import InputError, SpecError
from orchestrator.interpreters import Interpreter
from orchestrator.platforms import catalog
from orchestrator.pythons import NoPython, active, checked, named
from orchestrator.pythons.choosing import IN_CONFIG, IN_JOB
from orchestrator.spec import Parsed

_TO_DO = "activate the environment that the job needs before the command, or give it as `python:` in the job"


def frozen(wired: Wired, parsed: Parsed) -> Parsed:
    """The same job with its interpreter, as far as a platform of the config may run it in the user's own
    environment. Raises SpecError or InputError for one that cannot be used."""
    job, given = parsed.job, parsed.job.python
    there = _platforms(wired, job)
    if given is not None:
        try:
            with parsed.at("python"):
                found = checked(named(given.path, os.environ, Path(parsed.file).absolute().parent))
        except SpecError:
            if there:
                raise
            return replace(parsed, job=replace(job, python=None))  # no session of this job would use it
        return replace(parsed, job=replace(job, python=_python(found, IN_JOB, given=True)))
    for each in there:
        if (configured := _configured(each)) is not None:
            try:
                checked(named(configured, os.environ))
            except NoPython as error:
                path = ("platforms", each.name, "python")
                raise SpecError((wired.config.mistake(*path, message=str(error)),)) from error
    if all(_configured(each) is not None for each in there):
        return parsed
    try:
        found, why = active(os.environ)
    except NoPython as error:
        raise InputError(f"{error}: {_TO_DO}") from error
    return replace(parsed, job=replace(job, python=_python(found, why)))


def told(wired: Wired, job: Job) -> tuple[Told, ...]:
    """The Python on each platform that may run the job in the user's own environment."""
    return tuple(_told(each, job.python) for each in _platforms(wired, job))


def _told(platform: PlatformConfig, job: Python | None) -> Told:
    configured = _configured(platform)
    if job is not None and (job.given or configured is None):
        return Told.frozen(platform.name, job)
    try:
        if configured is not None:
            found, why = checked(named(configured, os.environ)), IN_CONFIG
        else:
            found, why = active(os.environ)
    except NoPython as error:
        return Told(platform.name, trouble=str(error))
    return Told(platform.name, found.path, found.version_text, found.torch, why)


def _python(found: Interpreter, why: str, *, given: bool = False) -> Python:
    return Python(found.path, given, why, found.version_text, found.torch)


def _platforms(wired: Wired, job: Job) -> list[PlatformConfig]:
    wanted = job.route.platforms
    return [
        each
        for each in wired.config.platforms
        if each.type in catalog.OWN_PYTHON and (not wanted or each.name in wanted)
    ]


def _configured(platform: PlatformConfig) -> str | None:
    given = platform.options.get("python")
    return given if isinstance(given, str) else None  # the catalogue reports another type
