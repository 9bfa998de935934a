"""`new`: writes a first job file for a script or notebook.

Decides its place, its name and its profiles: those of the platforms in the config. Replaces nothing unasked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.accelerators import catalogue
from orchestrator.core.job import DEFAULT, Precision
from orchestrator.drafting import script as scripts
from orchestrator.drafting.words import Machine, job_file, lacking
from orchestrator.errors import InputError
from orchestrator.files import write_whole
from orchestrator.spec.fields import NAME_LENGTH_MAX

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.config import Config

_PREFERRED = (Precision.BF16, Precision.FP16, Precision.FP32)


@dataclass(frozen=True)
class Drafted:
    """The job file that was written. `missing`: what an exact resume still needs, in sentences."""

    path: Path
    script: scripts.Script
    missing: tuple[str, ...]


def draft(client: Client, script: Path, target: Path | None, *, force: bool) -> Drafted:
    """See `Client.draft`."""
    found = scripts.read(script)
    path = target or script.with_name(f"{script.stem}.yaml")
    if path.exists() and not force:
        raise InputError(f"{path} exists: give another file with -o, or --force to replace it")
    source, entry = _source(script, path)
    text = job_file(found, _name(script), source, entry, tuple(_machines(client.wired().config)))
    try:
        write_whole(path, text.encode(), mode=0o644)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): give another file with -o") from error
    return Drafted(path, found, tuple(lacking(found)))


def _source(script: Path, target: Path) -> tuple[str, str]:
    """The source folder, relative to the job file, and the script in it."""
    here, folder = target.absolute().parent.resolve(), script.absolute().parent.resolve()
    if folder.is_relative_to(here):
        return folder.relative_to(here).as_posix(), script.name
    return str(folder), script.name


def _name(script: Path) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")
    return plain[:NAME_LENGTH_MAX].strip("-") or "job"


def _machines(config: Config) -> Iterator[Machine]:
    """A profile for each accelerator that the config's platforms name; else the default one."""
    seen: set[str] = set()
    for each in config.platforms:
        given = each.options.get("accelerators") or [each.options.get("accelerator")]
        names = [given] if isinstance(given, str) else list(given)
        if each.type == "process" and names == [None]:
            names = ["cpu"]
        for name in names:
            if name in catalogue and name not in seen:
                seen.add(name)
                yield Machine(name, _precision(name), f"{each.name} ({each.type})")
    if not seen or any(each.type in ("kaggle", "colab", "docker") for each in config.platforms):
        yield Machine(DEFAULT, Precision.FP32.value, "any other accelerator")


def _precision(accelerator: str) -> str:
    native = catalogue[accelerator].precisions
    return next((each.value for each in _PREFERRED if each in native), Precision.FP32.value)
