"""The command as it is executed: with `{resume}` filled or taken out, with a shell if it is a script, and
with our runner if it is a notebook."""

from __future__ import annotations

import re
import shlex
import shutil
import sys

from orchestrator.core import notebook
from orchestrator.core.order import RESUME, Order

_SCRIPT = ("-c", "-lc", "-ec")  # the word after it is a shell's script
_PIPEFAIL = "if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi"  # not every sh has it
_IN_SCRIPT = re.compile(r"""(?:(?<=\s)-{1,2}[\w.-]+(?:=|\s+))?["']?\{resume\}["']?""")


def executed(order: Order, resume: str | None, python: str | None = None) -> tuple[str, ...]:
    """The program and its arguments. `resume` is the path of what to resume; None: there is nothing.
    `python` runs a notebook; None: ours does.

    A script stops at the first command that fails, also in the middle of a pipe.
    """
    if not order.shell:
        command = with_resume(order.command, resume)
        is_notebook = notebook.of_command(command) is not None
        return (python or sys.executable, "-m", notebook.RUNNER, *command) if is_notebook else command
    [script] = order.command
    script = _in_script(script, resume)
    if shutil.which("bash") is not None:
        return "bash", "-e", "-o", "pipefail", "-c", script
    return "sh", "-e", "-c", f"{_PIPEFAIL}\n{script}"


def with_resume(command: tuple[str, ...], path: str | None) -> tuple[str, ...]:
    """The command with the path of what to resume.

    Without one, every word with `{resume}` is left out, and the option before a word that is nothing else. In
    the script of a shell the path is quoted, and the option before it goes likewise.
    """
    found: list[str] = []
    for number, word in enumerate(command):
        if RESUME not in word:
            found.append(word)
        elif number and command[number - 1] in _SCRIPT:
            found.append(_in_script(word, path))
        elif path is not None:
            found.append(word.replace(RESUME, path))
        elif word == RESUME and found and found[-1].startswith("-"):
            found.pop()
    return tuple(found)


def _in_script(script: str, path: str | None) -> str:
    if path is not None:
        return re.sub(r"""["']?\{resume\}["']?""", lambda _: shlex.quote(path), script)
    return _IN_SCRIPT.sub("", script)
