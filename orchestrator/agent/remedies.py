"""What a failure means in a session, where that is known: what to do about it, or which run it waits for.

Goes by the exception that ended the command, and looks at the source and at who holds a port. Changes nothing
there. Must never know a platform.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from orchestrator.agent import ports
from orchestrator.agent.causes import said
from orchestrator.agent.exceptions import Raised, raised
from orchestrator.core.order import GIT_COMMIT, Order, Outcome, Result

_NO_REPOSITORY = re.compile(
    r"not a git repository|InvalidGitRepositoryError|NotGitRepository|not inside (?:of )?a git repository"
    r"|unable to detect version for|GitError: Repository not found"
    r"|No such file or directory: '(?:git'|(?:\./)?\.git\b)",
    re.IGNORECASE,
)
_GIT_FAILED = re.compile(r"\bCalledProcessError: Command .*\bgit\b.* non-zero exit status 128")
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")


def explained(result: Result, output: str, source: Path, order: Order, session: str) -> Result:
    """The result of a command that failed by itself, with what is known of the reason. `session`: the
    session's folder, as it is marked in the environment of its processes."""
    if result.outcome is not Outcome.CRASHED:
        return result
    error = raised(output) or Raised(said(output))
    hints = [*order.command, *(value for name, value in order.env if "PORT" in name)]
    held = ports.holder(error, hints, session)
    if held is not None and held.run:  # it takes no try from the run: there will be room
        return replace(result, outcome=Outcome.NO_CAPACITY, error="", message=f"{held}: waiting for that run")
    told = f"; {held}" if held is not None else ""
    if not told and _lacks_git(error, source):
        told = f"; {_git_text(order)}"
        result = replace(result, hopeless=True)
    told = told or next(_outside_path(error, source), "")
    return replace(result, message=f"{result.message.rstrip('.')}{told}") if told else result


def _lacks_git(error: Raised, source: Path) -> bool:
    if any((folder / ".git").exists() for folder in (source, *source.parents)):
        return False
    words = f"{error.line}\n{error.text}"
    return _NO_REPOSITORY.search(words) is not None or _GIT_FAILED.search(error.line) is not None


def _git_text(order: Order) -> str:
    stays = ".git stays at home, so a session has no repository"
    if dict(order.env).get(GIT_COMMIT):
        return f"{stays}; {GIT_COMMIT} in the environment is the commit of the source"
    return f"{stays}; nor was the source in one when it was submitted"


def _outside_path(error: Raised, source: Path) -> Iterator[str]:
    """A module of the source that Python does not look for, as it would not by hand."""
    found = _NO_MODULE.search(error.line)
    if found is None:
        return
    name = found[1].replace(".", "/")
    for root, path in (("the source's root", "."), ("src", "src")):
        if (source / path / f"{name}.py").is_file() or (source / path / name).is_dir():
            yield (
                f"; it lies in {root}, where Python looks only if it is told: write "
                f"`env: {{PYTHONPATH: {path}}}` into the job, or start the script with `python -m`"
            )
