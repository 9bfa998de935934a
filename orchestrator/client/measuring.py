"""`doctor --measure`: how fast this machine's devices compute, as rows for `accelerators` in the config.

Runs a small program with torch in the Python that sessions would use. Writes nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.client import matmuls
from orchestrator.config import as_block
from orchestrator.core.accelerators import split
from orchestrator.core.gpu_names import accelerator_of
from orchestrator.core.job import Precision
from orchestrator.core.own_accelerators import OwnAccelerator
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError
from orchestrator.pythons import named

if TYPE_CHECKING:
    from orchestrator.client.client import Client

SECONDS_MAX = 300.0
TYPE = "process"
_DEVICES_MAX = 64
_SAID_BYTES_MAX = 1_000_000


@dataclass(frozen=True)
class Device:
    """A device as torch sees it. `row`: what the config would say of it, as measured with one large product
    of matrices. `known`: the catalogue's name for it, with which it needs no row."""

    title: str
    row: OwnAccelerator
    known: str | None

    @property
    def yaml(self) -> str:
        """The row as the config has it."""
        figures = {precision.value: figure for precision, figure in self.row.teraflops}
        names = {"gpu_names": list(self.row.gpu_names)} if self.row.gpu_names else {}
        table = {"memory_gb": self.row.memory_gb, "arch": self.row.arch, "teraflops": figures, **names}
        return as_block({"accelerators": {self.row.name: table}})


@dataclass(frozen=True)
class Measured:
    """`python` is the interpreter, `torch` its version. `lack`: why there is no GPU among the devices."""

    python: str
    torch: str
    devices: tuple[Device, ...]
    lack: str = ""


def measure(client: Client, names: tuple[str, ...], *, seconds_max: float = SECONDS_MAX) -> Measured:
    """Measures, for up to a minute per device. `names`: at most one platform, of type process.

    Raises InputError if the platform is none of this machine, or if there is no torch here.
    """
    configured = _checked(client, names)
    python = _python(os.environ) if configured is None else str(named(configured, os.environ))
    said = _ran(python, seconds_max)
    if "without" in said:
        raise InputError(
            f"{python} has no torch ({_words(said['without'])}): install it there, or activate the "
            "environment that your jobs use (VIRTUAL_ENV), then measure again"
        )
    rows = said.get("devices")
    devices = tuple(_devices(rows if isinstance(rows, list) else []))
    return Measured(python, _words(said.get("torch")), devices, _words(said.get("lack")))


def _checked(client: Client, names: tuple[str, ...]) -> str | None:
    """The Python that the named platform is configured with, if it has one."""
    if not names:
        return None
    if len(names) > 1:
        raise InputError("--measure takes one platform at most, because it measures this machine")
    platforms = {each.name: each for each in client.wired().config.platforms}
    if names[0] not in platforms:
        raise InputError(unknown(f"platform {names[0]!r}", names[0], platforms))
    found = platforms[names[0]]
    if found.type != TYPE:
        raise InputError(
            f"--measure measures this machine, and {names[0]} is of type {found.type}: give a "
            f"platform of type {TYPE}, or none; on another machine, run it there"
        )
    python = found.options.get("python")
    return python if isinstance(python, str) else None


def _python(variables: Mapping[str, str]) -> str:
    """The first that has torch of: the active environment, ours, those on the PATH. Else the first."""
    active = Path(variables.get("VIRTUAL_ENV") or "/nonexistent") / "bin" / "python"
    found = [str(active)] if active.is_file() else []
    found += [sys.executable, *(path for name in ("python3", "python") if (path := shutil.which(name)))]
    return next((each for each in dict.fromkeys(found) if _has_torch(each)), found[0])


def _has_torch(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _ran(python: str, seconds_max: float) -> dict[str, Any]:
    source = Path(matmuls.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-c", source], capture_output=True, timeout=seconds_max, check=False,
            stdin=subprocess.DEVNULL, cwd="/",  # -c looks for modules in the present folder first

        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(f"{python} did not finish the measurement within {seconds_max:g} s") from None
    except OSError as error:
        raise InputError(f"{python} cannot be run: {error.strerror}") from error
    last = done.stdout[-_SAID_BYTES_MAX:].decode(errors="replace").strip().rpartition("\n")[2]
    try:
        said = json.loads(last)
    except ValueError:
        said = None
    if done.returncode or not isinstance(said, dict):
        words = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InputError(
            f"the measurement failed in {python}: {_words(words) or f'exit code {done.returncode}'}"
        )
    return said


def _devices(rows: list[Any]) -> Iterator[Device]:
    """Those that make sense; one for each kind."""
    seen: set[str] = set()
    for row in rows[:_DEVICES_MAX]:
        title, memory = _words(row.get("name")), row.get("memory_gb")
        figures = row.get("teraflops")
        if not title or not _is_figure(memory) or not isinstance(figures, dict):
            continue
        teraflops = tuple(
            (each, float(figures[each.value])) for each in Precision if _is_figure(figures.get(each.value))
        )
        name = row_name(title)
        if not teraflops or name in seen:
            continue
        seen.add(name)
        arch = _words(row.get("arch"))
        is_gpu = bool(re.fullmatch(r"sm_[0-9]{2,3}", arch))
        known = accelerator_of(title, float(memory)) if is_gpu else "cpu"
        yield Device(
            title,
            OwnAccelerator(
                name, float(memory), arch if is_gpu else "cpu", teraflops, 0.0, (title,) if is_gpu else ()
            ),
            known,
        )


def row_name(title: str) -> str:
    """A name that the config accepts: not one of the catalogue, and not one that counts."""
    plain = re.sub(r"[^a-z0-9]+", "-", title.lower().replace("nvidia", "")).strip("-")[:40].strip("-")
    counts = not plain or split(f"my-{plain}") is not None
    return f"my-{plain or 'device'}-1" if counts else f"my-{plain}"


def _is_figure(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 < value < 1e6
        and math.isfinite(value)
    )


def _words(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return "".join(each for each in text if each.isprintable())[:200]
