"""Whether the environment that this program runs in is the user's, or holds nothing but this program.

pipx and `uv tool` make an environment for one program. Its interpreter has none of the user's packages, so a
training must not run there. Decides by what is installed, not by who installed it: a package that was added
to such an environment makes it the user's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

OURS = "accelerator-orchestrator"
# Extras that belong to this program. With the others (`training`, `test`) a user adds torch and the like.
_EXTRAS = frozenset({"drive", "notify", "postgresql"})
_TOOLS = frozenset({"pip", "setuptools", "wheel", "uv", "pkg-resources", "distribute"})
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?([^;]*)(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


@cache
def only_us() -> bool:
    """Whether this is a virtual environment that holds this program and what it needs, and nothing else."""
    if sys.prefix == sys.base_prefix:
        return False  # a system's Python or a conda environment is always somebody's
    there = set(_names(_packages(Path(sys.prefix))))
    return OURS in there and there <= _closure() | _TOOLS


def is_own_folder(folder: str) -> bool:
    """Whether it is the folder of this environment's programs."""
    try:
        return bool(folder) and Path(folder).samefile(Path(sys.prefix) / "bin")
    except OSError:
        return False


def _packages(prefix: Path) -> list[Path]:
    return [*prefix.glob("lib*/python3*/site-packages")]


def _names(folders: Iterable[Path]) -> Iterable[str]:
    for folder in folders:
        for path in folder.glob("*.*-info"):
            if path.suffix in (".dist-info", ".egg-info"):
                yield _normal(path.stem.partition("-")[0])


def _closure() -> set[str]:
    """We, and all that we require, by the metadata of what is installed."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting: list[tuple[str, frozenset[str]]] = [(OURS, _EXTRAS)]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += _required(*each)
    return {name for name, _ in found}


def _required(name: str, extras: frozenset[str]) -> Iterable[tuple[str, frozenset[str]]]:
    try:
        lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None:
            continue
        wanted = set(_EXTRA.findall(match[4] or ""))
        if not wanted or wanted & extras:
            more = frozenset(_normal(each) for each in (match[2] or "").split(",") if each.strip())
            yield _normal(match[1]), more


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
