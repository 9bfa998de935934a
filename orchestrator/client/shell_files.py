"""The files from which shells load completion scripts: where they lie, and which of them are ours.

Writes and finds them. Replaces no file that somebody else wrote. Knows nothing of what is in a script, and
never touches a shell's own start-up files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator import user
from orchestrator.errors import InputError
from orchestrator.files import write_whole

MARK = "# Written by `orchestrator completion --install`, which may replace this file."
_DATA, _CONFIG = ("XDG_DATA_HOME", ".local/share"), ("XDG_CONFIG_HOME", ".config")
# shell → the variable and default of the folder, the path below it with the program's name. bash: its package
# bash-completion loads these; zsh: a folder of its fpath.
PLACES = {
    "bash": (_DATA, "bash-completion/completions/{program}"),
    "zsh": (_DATA, "zsh/site-functions/_{program}"),
    "fish": (_CONFIG, "fish/completions/{program}.fish"),
}
PROGRAMS = ("orchestrator", "submit")


def path_of(shell: str, program: str) -> Path:
    """Where this shell looks for the script of a program. Raises InputError for a shell without a place."""
    if shell not in PLACES:
        raise InputError(f"--install knows no place for {shell}: print its script and load it yourself")
    (variable, default), pattern = PLACES[shell]
    given = os.environ.get(variable, "")
    try:
        folder = Path(given) if given.startswith("/") else user.home() / default
    except user.NoHome as error:
        raise user.NoHome(f"{error}; set HOME or {variable}") from None
    return folder / pattern.format(program=program)


def install(shell: str, scripts: Mapping[str, str]) -> list[Path]:
    """Writes the script of each program. Raises InputError, before it writes any, if a file is in the way
    that is not ours."""
    targets = {path_of(shell, program): script for program, script in scripts.items()}
    for path in targets:
        if (path.is_symlink() or path.exists()) and not is_ours(path):
            raise InputError(f"{path} exists and is not ours: move it away, then try again")
    try:
        for path, script in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, f"{script}\n{MARK}\n".encode(), mode=0o644)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written: {error.strerror}") from error
    return [*targets]


def installed() -> list[Path]:
    """All files that `install` wrote, for every shell."""
    return [path for shell in PLACES for program in PROGRAMS if is_ours(path := path_of(shell, program))]


def is_ours(path: Path) -> bool:
    try:
        return path.is_file() and path.read_text("utf-8").rstrip().endswith(MARK)
    except (OSError, ValueError):
        return False
