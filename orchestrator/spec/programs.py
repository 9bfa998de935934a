"""Programs that people start on their own machine and that a session cannot or need not start.

Decides only what to write instead. Must never look at files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

_ENVIRONMENT = (
    "an environment of your machine: name it as `python` for sessions there, and list its packages for "
    "other platforms in a file that `requirements` names; begin with the program"
)
_CONTAINER = "sessions cannot start containers; name the image as `image`, and begin with the program in it"
_QUEUE = "sessions have no queue of their own; begin with the program that the batch script starts"
_STAYS = "a session keeps its command running by itself; leave it out"
_INSTEAD = {
    **dict.fromkeys(("conda", "mamba", "micromamba", "pyenv", "workon"), _ENVIRONMENT),
    **dict.fromkeys(("docker", "podman", "apptainer", "singularity"), _CONTAINER),
    **dict.fromkeys(("sbatch", "srun", "qsub", "salloc", "sky"), _QUEUE),
    **dict.fromkeys(("nohup", "tmux", "screen", "setsid"), _STAYS),
    "sudo": "a session asks for no password and needs no other user; leave it out",
    "ssh": "sessions run where they are sent; begin with the program itself",
}
_SERVERS = ("notebook", "lab")


def not_in_a_session(words: Sequence[str]) -> str:
    """Why this command does not work in a session, and what to write; empty if nothing speaks against it."""
    first = words[0]
    name = PurePosixPath(first).name
    if name in ("source", ".") and len(words) > 1 and PurePosixPath(words[1]).name.startswith("activate"):
        return f"{' '.join(words[:2])[:60]}: {_ENVIRONMENT}"
    if "/" in first and "venv" in first:
        return f"{first[:60]}: {_ENVIRONMENT}, such as python"
    if name in ("jupyter", "jupyter-notebook", "jupyter-lab") and (len(words) == 1 or words[1] in _SERVERS):
        return (
            f"{name} is a server, which never ends; to run a notebook, write its name: `command: NAME.ipynb`"
        )
    if name in _INSTEAD and "/" not in first:
        shown = f"{name} {words[1]}" if len(words) > 1 and words[1].isalpha() else name
        return f"{shown}: {_INSTEAD[name]}"
    if "/" not in first and name.endswith(".py"):
        return f"{name[:60]} is a script, not a program; write `python {name[:60]}`"
    if "/" not in first and name.endswith(".sh"):
        return f"{name[:60]} is a script, not a program; write `bash {name[:60]}`"
    return ""
