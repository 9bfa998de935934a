"""`new`: writes a first job file for a script or notebook.

Decides its place, its name and its profiles: those of the platforms in the config. Replaces nothing unasked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import catalog
from orchestrator.config import Config
from orchestrator.core.accelerators import Accelerator
from orchestrator.core.job import Kind, Precision
from orchestrator.core.own_accelerators import row_named
from orchestrator.drafting import script as scripts
from orchestrator.drafting.words import Machine, job_file, lacking
from orchestrator.errors import InputError
from orchestrator.files import write_whole
from orchestrator.platforms.catalog import TYPES
from orchestrator.spec.fields import NAME_LENGTH_MAX

if TYPE_CHECKING:
    from orchestrator.client.client import Client

_HERE = "cpu"
_ENVIRONMENTS = (".venv", "venv")


@dataclass(frozen=True)
class Drafted:
    """The job file that was written. `missing`: what an exact resume still needs, in sentences."""

    path: Path
    script: scripts.Script
    missing: tuple[str, ...]


def draft(client: Client, script: Path, target: Path | None, *, force: bool) -> Drafted:
    """See `Jobs.draft`."""
    found = scripts.read(script)
    path = target or script.with_name(f"{script.stem}.yaml")
    if path.exists() and not force:
        raise InputError(f"{path} exists: give another file with -o, or --force to replace it")
    machines = tuple(_machines(client.wired().config, found))
    try:
        source = _source(script, path)
        python = _environment(script.absolute().parent, source, os.environ)
        text = job_file(found, _name(script), source, script.name, machines, python).encode()
        write_whole(path, text, mode=0o644)
    except UnicodeEncodeError as error:
        raise InputError(f"{script!r}: its name is not UTF-8; rename it") from error
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): give another file with -o") from error
    return Drafted(path, found, tuple(lacking(found)))


def _source(script: Path, target: Path) -> str:
    """The folder of the script, relative to the job file if that lies above it or beside it."""
    here, folder = target.absolute().parent.resolve(), script.absolute().parent.resolve()
    return folder.relative_to(here).as_posix() if folder.is_relative_to(here) else str(folder)


def _environment(folder: Path, source: str, variables: Mapping[str, str]) -> str | None:
    """The virtual environment beside the script, which lies in `folder`, as the job names it. None if there
    is none, or if one is active: then that is the user's choice, and `submit` finds it."""
    if variables.get("VIRTUAL_ENV") or variables.get("CONDA_DEFAULT_ENV", "base") != "base":
        return None
    for name in _ENVIRONMENTS:
        place = folder / name
        if (place / "pyvenv.cfg").is_file() and os.access(place / "bin" / "python", os.X_OK):
            return None if place.samefile(sys.prefix) else f"{'' if source == '.' else f'{source}/'}{name}"
    return None


def _name(script: Path) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")
    return plain[:NAME_LENGTH_MAX].strip("-") or "job"


def _machines(config: Config, script: scripts.Script) -> Iterator[Machine]:
    """A profile for each accelerator that the config's platforms offer; without any, for this machine. TPUs
    only for a script that knows them."""
    seen: set[str] = set()
    for each in config.platforms:
        for name in _accelerators(each.name, each.type, each.options):
            row = row_named(name, config.accelerators)
            if (
                row is None
                or row.retired
                or name in seen
                or (row.kind is Kind.TPU and not script.runs_on_tpu)
            ):
                continue
            seen.add(name)
            yield Machine(name, row.devices, _precision(row, script.precision), f"{each.name} ({each.type})")
    if not seen:
        yield Machine(_HERE, 1, Precision.FP32.value, "this machine")


def _accelerators(name: str, type: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What a platform offers by its options, defaults included. Asks no platform."""
    found = catalog.checked("platform", name, type, options, TYPES)
    one = getattr(found, "accelerator", None)
    return tuple(getattr(found, "accelerators", ())) or ((one,) if isinstance(one, str) else ())


def _precision(row: Accelerator, wanted: Precision) -> str:
    """What the script computes in, or else the widest that the accelerator has. A CPU computes in fp32."""
    if row.kind is Kind.CPU:
        return Precision.FP32.value
    order = (wanted, Precision.FP32, Precision.BF16, Precision.FP16)
    return next((each.value for each in order if each in row.peak_flops), wanted.value)
