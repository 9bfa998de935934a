"""The conda environments of this machine, by name: from the usual places, and else from conda itself.

Decides which folders count as an environment. Starts conda only if the wanted name is in none of these
places, because it takes seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator import user

_SECONDS_MAX = 20.0
_USUAL = (
    "~/miniconda3", "~/anaconda3", "~/miniforge3", "~/mambaforge", "~/micromamba", "/opt/conda",
    "/opt/miniconda3", "/opt/anaconda3", "/opt/miniforge3",
)  # fmt: skip
_LISTED_BYTES_MAX = 1_000_000


def environments(variables: Mapping[str, str]) -> dict[str, Path]:
    """The environments in the usual places; of several of one name, the one nearest to the active one."""
    home = Path(variables["HOME"]) if variables.get("HOME") else user.known_home()
    found: dict[str, Path] = {}
    for root in _roots(variables, home):
        if is_environment(root):
            found.setdefault("base", root)
        for path in _inside(root / "envs"):
            found.setdefault(path.name, path)
    own = home / ".conda" if home is not None else None
    for path in (*_inside(own / "envs"), *_listed(own / "environments.txt")) if own is not None else ():
        found.setdefault(path.name, path)
    return found


def asked(name: str, variables: Mapping[str, str]) -> Path | None:
    """The environment of this name by `conda info`; None if there is no conda, or it does not know it."""
    conda = variables.get("CONDA_EXE") or shutil.which("conda", path=variables.get("PATH"))
    if conda is None:
        return None
    try:
        said = subprocess.run(
            [conda, "info", "--envs", "--json"], env=dict(variables), stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_SECONDS_MAX, check=True,
        )  # fmt: skip
        known = [Path(str(each)) for each in json.loads(said.stdout)["envs"]]
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError):
        return None
    return next((path for path in known if path.name == name and is_environment(path)), None)


def is_environment(path: Path) -> bool:
    return (path / "conda-meta").is_dir()


def name_of(prefix: Path) -> str:
    """The name that conda shows for an environment: `base` for an installation of conda itself."""
    return "base" if (prefix / "condabin").is_dir() else prefix.name


def _roots(variables: Mapping[str, str], home: Path | None) -> Iterator[Path]:
    if executable := variables.get("CONDA_EXE"):
        yield Path(executable).parent.parent
    if root := variables.get("MAMBA_ROOT_PREFIX"):
        yield Path(root)
    if active := variables.get("CONDA_PREFIX"):
        prefix = Path(active)
        yield prefix.parent.parent if prefix.parent.name == "envs" else prefix
    for usual in _USUAL:
        if home is not None or not usual.startswith("~"):
            yield home / usual[2:] if home is not None and usual.startswith("~") else Path(usual)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if is_environment(path))
    except OSError:
        return []


def _listed(file: Path) -> list[Path]:
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            lines = stream.read(_LISTED_BYTES_MAX).splitlines()
    except OSError:
        return []
    return [path for line in lines if line.strip() and is_environment(path := Path(line.strip()))]
