"""A Python interpreter of this machine: what it is, asked by running it, and when it is too old.

Must never import a package to learn its version: the interpreter reads the metadata of its own packages.
Decides nothing about which interpreter is taken. Ships with the agent.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

OLDEST = (3, 9)
"""The oldest Python that can import what a session offers a script: `orchestrator.training`."""
SECONDS_MAX = 30.0
ALL = ("*",)
ADVICE = (
    "put that environment back, or give another one as `python:` in the job's file; then "
    "`orchestrator retry` the run with that file"
)
_SAID_MAX = 200
_ANSWER_BYTES_MAX = 8 << 20
_PIPE_SECONDS = 1.0  # for what was said before the interpreter ended
# Runs in any Python from 2.7 on, so that one which is too old can say so. What `-c` puts in front of the path
# is left out: a folder that we were started in is none of its packages.
_SCRIPT = r"""
import sys
sys.path[:] = [path for path in sys.path if path]
import json
there = {}
try:
    from importlib import metadata
    if sys.argv[1:] == ["*"]:
        found = metadata.distributions()
    else:
        found = [each for name in sys.argv[1:] for each in metadata.distributions(name=name)]
    for each in found:
        name = each.metadata["Name"]
        if name and name not in there:
            there[name] = each.version or ""
except Exception:
    pass
sys.stdout.write("\n" + json.dumps({
    "path": sys.executable, "prefix": sys.prefix, "base": getattr(sys, "base_prefix", sys.prefix),
    "version": list(sys.version_info[:3]), "folders": sys.path, "packages": there,
}) + "\n")
"""


class Unusable(Exception):
    """This is no Python that can run: the message says why."""


@dataclass(frozen=True)
class Interpreter:
    """`path` is how it calls itself. `folders` are those that it imports from, `packages` what is installed
    there: name → version."""

    path: str
    prefix: str
    base: str
    version: tuple[int, int, int]
    folders: tuple[str, ...]
    packages: Mapping[str, str]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def torch(self) -> str:
        """The version of its torch; empty if it has none."""
        return self.packages.get("torch", "")

    @property
    def scripts(self) -> Path:
        """The folder with its programs."""
        return Path(self.path).parent

    @property
    def is_virtual(self) -> bool:
        return self.prefix != self.base

    @property
    def is_conda(self) -> bool:
        return not self.is_virtual and (Path(self.prefix) / "conda-meta").is_dir()

    @property
    def too_old(self) -> bool:
        return self.version[:2] < OLDEST


def ask(
    path: str | os.PathLike[str], packages: tuple[str, ...] = ("torch",), seconds: float = SECONDS_MAX
) -> Interpreter:
    """What the interpreter says of itself and of these packages (ALL: of all). It is run, unless it is our
    own. Raises Unusable."""
    asked = os.fspath(path)
    if os.path.abspath(asked) == os.path.abspath(sys.executable):  # noqa: PTH100 - links stay as they are
        return _ourselves(packages)
    try:
        running = subprocess.Popen(
            [asked, "-c", _SCRIPT, *packages], cwd="/", env=_variables(), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Unusable(f"{asked} cannot be started: {why}") from None
    assert running.stdout is not None
    assert running.stderr is not None
    said, wrong = _Reader(running.stdout), _Reader(running.stderr)
    try:
        code = running.wait(seconds)
    except BaseException as error:
        with suppress(OSError):
            os.killpg(running.pid, signal.SIGKILL)  # also what it started
        running.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Unusable(f"{asked} did not answer within {seconds:.0f} s") from None
        raise
    for each in (said, wrong):
        each.join(_PIPE_SECONDS)
    if code:
        last = wrong.text.strip().splitlines()[-1:] or ["it said nothing"]
        raise Unusable(f"{asked} does not work (exit code {code}): {last[0][:_SAID_MAX]}")
    return _read(asked, said.text)


class _Reader(threading.Thread):
    """Reads a pipe until its end or a limit. What the interpreter started may keep the pipe open, and only
    this thread waits for that."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(name="python's answer", daemon=True)
        self._pipe, self._read = pipe, bytearray()
        self.start()

    def run(self) -> None:
        with suppress(OSError), self._pipe as pipe:
            while len(self._read) < _ANSWER_BYTES_MAX and (data := os.read(pipe.fileno(), 1 << 16)):
                self._read += data

    @property
    def text(self) -> str:
        return bytes(self._read).decode(errors="replace")


def _read(asked: str, said: str) -> Interpreter:
    """The last of its lines that is an answer; what is printed around it comes from the user's own start-up
    files."""
    for line in reversed(said.splitlines()):
        try:
            told = json.loads(line)
            major, minor, micro = map(int, told["version"])
            return Interpreter(
                str(told["path"]) or asked,
                str(told["prefix"]),
                str(told["base"]),
                (major, minor, micro),
                tuple(map(str, told["folders"])),
                {str(name): str(version) for name, version in told["packages"].items()},
            )
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    raise Unusable(f"{asked} is not a Python interpreter: it did not run our question")


def _variables() -> dict[str, str]:
    """Our environment without what would change what another Python imports."""
    told = re.compile(r"PYTHON\w*|__PYVENV_LAUNCHER__|ORCHESTRATOR_\w+")
    return {name: value for name, value in os.environ.items() if not told.fullmatch(name)}


def _ourselves(packages: tuple[str, ...]) -> Interpreter:
    found = (
        metadata.distributions()
        if packages == ALL
        else (each for name in packages for each in metadata.distributions(name=name))
    )
    there: dict[str, str] = {}
    for each in found:
        if name := each.metadata["Name"]:
            there.setdefault(name, each.version or "")
    # In a session, the path begins with the agent's own zip, which no other Python imports from.
    folders = tuple(path for path in sys.path if path and not Path(path).is_file())
    return Interpreter(sys.executable, sys.prefix, sys.base_prefix, sys.version_info[:3], folders, there)
