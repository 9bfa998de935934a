"""The variables that make a session's programs those of an interpreter's environment, like its activation.

Decides the order of PATH. Runs no activation script. Must never put our own folder in front.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.files import make_folder, write_whole
from orchestrator.interpreters import Interpreter
from orchestrator.pythons import conda, ours

_SYSTEM = frozenset({"/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin"})
_PYTHONS = ("python", "python3")
_LEFT_OUT = re.compile(
    r"PYTHONHOME|__PYVENV_LAUNCHER__|VIRTUAL_ENV|VIRTUAL_ENV_PROMPT|CONDA_PREFIX(_\d+)?|CONDA_DEFAULT_ENV"
    r"|CONDA_SHLVL|CONDA_PROMPT_MODIFIER"
)


def entered(python: Interpreter, variables: Mapping[str, str], links: Path) -> dict[str, str]:
    """The variables of a session that uses this interpreter. `links` is a folder that may be made for
    programs whose names would lead elsewhere, such as `python` where there is only python3."""
    found = {name: value for name, value in variables.items() if not _LEFT_OUT.fullmatch(name)}
    folders = _folders(variables.get("PATH") or os.defpath, python)
    if python.is_virtual:
        found["VIRTUAL_ENV"] = python.prefix
    elif python.is_conda:
        found |= {"CONDA_PREFIX": python.prefix, "CONDA_DEFAULT_ENV": conda.name_of(Path(python.prefix))}
    path = os.pathsep.join(folders)
    if wrong := [name for name in _PYTHONS if not _leads_to(name, path, python)]:
        _link(links, python, wrong)
        path = os.pathsep.join((str(links), path))
    return found | {"PATH": path}


def _folders(path: str, python: Interpreter) -> Iterator[str]:
    """PATH with the environment's programs first. A system's Python leaves the order as it is."""
    own = str(python.scripts)
    others = [
        folder
        for folder in path.split(os.pathsep)
        if folder and not (ours.only_us() and ours.is_own_folder(folder) and folder != own)
    ]
    if python.is_virtual or own not in _SYSTEM:
        yield own
        yield from (folder for folder in others if folder != own)
    else:
        yield from others
        if own not in others:
            yield own


def _leads_to(name: str, path: str, python: Interpreter) -> bool:
    """Whether the name starts this interpreter. Links to one binary are different interpreters in different
    virtual environments, so there the folder counts."""
    found = shutil.which(name, path=path)
    if found is None:
        return False
    place = Path(found)
    if python.is_virtual:
        return place.parent == python.scripts and place.resolve() == Path(python.path).resolve()
    is_virtual = any((folder / "pyvenv.cfg").exists() for folder in (place.parent, place.parent.parent))
    return not is_virtual and place.resolve() == Path(python.path).resolve()


def _link(links: Path, python: Interpreter, names: list[str]) -> None:
    """Programs of these names that start the interpreter. A link would lead away from its environment."""
    make_folder(links, 0o700)
    start = f"#!/bin/sh\nexec {shlex.quote(python.path)}"
    for name in names:
        _program(links / name, f'{start} "$@"\n')
    for name in ("pip", "pip3"):
        _program(links / name, f'{start} -m pip "$@"\n')


def _program(path: Path, text: str) -> None:
    write_whole(path, text.encode(), sync=False, mode=0o700)
