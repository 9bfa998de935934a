"""Finds an interpreter: by what a user wrote, or the one that is active where `submit` runs.

Decides which one is the user's. A message says what was given, what is valid, and what to do.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator import user
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError
from orchestrator.interpreters import OLDEST, Interpreter, Unusable, ask
from orchestrator.pythons import conda, ours

VALID = "the path of an interpreter, of a virtual environment or of a conda environment, or the name of one"
_PROGRAM = re.compile(r"python[0-9.]*")
_PROGRAMS = ("python", "python3")
_OLDEST = ".".join(map(str, OLDEST))


class NoPython(InputError):
    """No usable interpreter: the message says which one was meant, and what to do."""


def named(text: str, variables: Mapping[str, str], folder: Path | None = None) -> Path:
    """The interpreter that a user means by a path or a name. A path is relative to `folder`; without one it
    must be absolute. Raises NoPython."""
    given = text.strip()
    if not given:
        raise NoPython(f"given '', valid is {VALID}")
    if "/" in given or given.startswith(("~", ".")):
        return _in_path(_absolute(given, folder))
    if folder is not None and (found := _inside(folder / given)) is not None:
        return found
    known = conda.environments(variables)
    prefix = known.get(given) or (conda.asked(given, variables) if not _PROGRAM.fullmatch(given) else None)
    if prefix is not None:
        return _in_path(prefix)
    if _PROGRAM.fullmatch(given):
        program = shutil.which(given, path=variables.get("PATH"))
        if program is not None:
            return Path(program)
        raise NoPython(f"given {given!r}, which is not in PATH; valid is {VALID}")
    if folder is not None and (gone := _base_gone(folder / given)):
        raise NoPython(gone)
    told = unknown(f"conda environment {given!r}", given, sorted(known)) if known else (
        f"given {given!r}, but this machine has no conda environment of that name"
    )  # fmt: skip
    raise NoPython(f"{told}; valid is {VALID}")


def _absolute(given: str, folder: Path | None) -> Path:
    try:
        path = user.expanded(Path(given))
    except user.NoHome as error:
        raise NoPython(str(error)) from None
    if not path.is_absolute() and folder is None:
        raise NoPython(f"given {given!r}: write the whole path, beginning with / or ~")
    return path if folder is None else folder / path


def _in_path(path: Path) -> Path:
    shown = os.path.normpath(path)
    if path.is_dir():
        found = _inside(path)
        if found is None and (gone := _base_gone(path)):
            raise NoPython(gone)
        if found is None and conda.is_environment(path):
            raise NoPython(
                f"{shown} is a conda environment without Python: "
                f"`conda install -p {shlex.quote(shown)} python`"
            )
        if found is None:
            raise NoPython(f"{shown} is a folder without bin/python; valid is {VALID}")
        return found
    if not path.exists():
        if path.name in _PROGRAMS and (gone := _base_gone(path.parent.parent)):
            raise NoPython(gone)
        raise NoPython(f"{shown} does not exist; valid is {VALID}")
    if not os.access(path, os.X_OK):
        raise NoPython(f"{shown} is not a program that can be started; valid is {VALID}")
    return Path(shown)


def _inside(folder: Path) -> Path | None:
    """The interpreter of an environment's folder."""
    places = (Path(os.path.normpath(folder)) / "bin" / name for name in _PROGRAMS)
    return next((path for path in places if os.access(path, os.X_OK)), None)


def _base_gone(folder: Path) -> str:
    """What to say if the environment's interpreter is a link to one that was removed; empty if it is none."""
    link = Path(os.path.normpath(folder)) / "bin" / _PROGRAMS[0]
    if not link.is_symlink() or link.exists():
        return ""
    return (
        f"{link} leads to {os.path.realpath(link)}, which does not exist: the Python that this environment "
        "was made with is gone; make the environment again"
    )


def checked(path: str | os.PathLike[str]) -> Interpreter:
    """What the interpreter says of itself. Raises NoPython if it cannot run a session's programs."""
    try:
        found = ask(path)
    except Unusable as error:
        raise NoPython(str(error)) from error
    if found.too_old:
        raise NoPython(
            f"{found.path} is Python {found.version_text}; a session needs Python {_OLDEST} or newer"
        )
    return found


def active(variables: Mapping[str, str]) -> tuple[Interpreter, str]:
    """The interpreter that is active where these variables come from, and why it is that one.

    An activated environment comes first, then our own if it is the user's, then the first in PATH. An
    environment that holds only us never counts. Raises NoPython.
    """
    for prefix, why in _activated(variables):
        found = _inside(prefix)
        if found is not None and not _is_only_us(found):
            return checked(found), why
    if not ours.only_us() and (sys.prefix != sys.base_prefix or conda.is_environment(Path(sys.prefix))):
        return checked(sys.executable), "the environment that the orchestrator is installed in"
    for found in _in_search_path(variables):
        try:
            there = ask(found)
        except Unusable:
            continue  # such as a version manager's, for which no version is chosen
        if there.version[0] > 2 and not _is_only_us(Path(there.path)):
            return checked(there.path), "the first in PATH"
    below = getattr(sys, "_base_executable", "") or sys.executable
    return checked(below), "the one that the orchestrator's own environment was made with"


def _activated(variables: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if prefix := variables.get("VIRTUAL_ENV"):
        yield Path(prefix), "the activated virtual environment"
    prefix = variables.get("CONDA_PREFIX")
    if not prefix:
        return
    name = variables.get("CONDA_DEFAULT_ENV") or conda.name_of(Path(prefix))
    # Conda activates `base` in every shell unless told not to: that is nobody's choice.
    if name != "base" or ours.only_us() or sys.prefix == sys.base_prefix:
        yield Path(prefix), f"the activated conda environment {name}"


def _in_search_path(variables: Mapping[str, str]) -> Iterator[Path]:
    for folder in (variables.get("PATH") or os.defpath).split(os.pathsep):
        if folder and not (ours.is_own_folder(folder) and ours.only_us()):
            for name in ("python3", "python"):
                path = Path(folder, name)
                if path.is_file() and os.access(path, os.X_OK):
                    yield path.absolute()
                    break


def _is_only_us(python: Path) -> bool:
    return ours.only_us() and ours.is_own_folder(str(python.parent))
