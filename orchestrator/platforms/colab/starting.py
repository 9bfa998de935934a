"""Starts the processes of Colab's command line, by forking one that has imported it, or plainly.

Both are the same to the caller: a process of its own for each errand, in a session of its own. Decides only
how it is started and killed. Knows neither errands nor answers, and keeps no secret.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.platforms.colab import errand, forker

ERRAND = errand.__file__
_HOME = "home"  # of the forker while it imports: see forker.py
_SEND_SECONDS, _DEATH_SECONDS = 5.0, 5.0
_DEATHS_MAX = 3  # of forkers; then this process does without


class Running(Protocol):
    """A process that was started."""

    def ended(self, seconds: float) -> bool:
        """Whether it has ended, at most so many seconds from now."""

    def kill(self) -> None:
        """Kills it and its children, if it has not ended. Returns when it is dead."""


@dataclass(frozen=True)
class Start:
    """What a process gets: the words of its command line, its whole environment, its folder, and a descriptor
    for what it prints."""

    words: Sequence[str]
    variables: Mapping[str, str]
    folder: Path
    output: int

    def command(self, python: Path) -> list[str]:
        return [str(python), "-I", "-u", ERRAND, *self.words]


def start(python: Path, wanted: Start) -> Running:
    """Starts an errand with the command line's interpreter."""
    with _lock:
        forks = _forks.setdefault(python, Forks(python))
    try:
        return forks.start(wanted)
    except OSError:
        return Plain(python, wanted)


def run_on_terminal(python: Path, wanted: Start) -> None:
    """Runs an errand that asks the person on this terminal."""
    subprocess.run(
        wanted.command(python), env=dict(wanted.variables), cwd=wanted.folder, umask=0o077, check=False
    )


class Plain:
    """A process that imports everything itself."""

    def __init__(self, python: Path, wanted: Start) -> None:
        self._process = subprocess.Popen(
            wanted.command(python), env=dict(wanted.variables), cwd=wanted.folder, umask=0o077,
            stdin=subprocess.DEVNULL, stdout=wanted.output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def ended(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        if self._process.poll() is None:  # its pid is its own until it is waited for
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Forks:
    """The forker of one interpreter, for all threads of this process. Started with the first errand, replaced
    if it has died."""

    def __init__(self, python: Path, program: str = ERRAND) -> None:
        self._python = python
        self._program = program
        self._lock = threading.Lock()
        self._forker: _Forker | None = None
        self._deaths = 0

    def start(self, wanted: Start) -> Forked:
        """Raises OSError if that is not possible now, and in this process never again after some deaths."""
        name = secrets.token_hex(8)
        message = {
            "start": name, "words": list(wanted.words), "variables": dict(wanted.variables),
            "folder": str(wanted.folder),
        }  # fmt: skip
        life, held = os.pipe()
        try:
            with self._lock:
                forker_ = self._living()
                forker_.send(message, [wanted.output, held])
        except OSError:
            os.close(life)
            raise
        finally:
            os.close(held)
        return Forked(name, life, forker_)

    def _living(self) -> _Forker:
        if self._forker is not None and not self._forker.is_alive():
            self.close()
            self._deaths += 1
        if self._deaths >= _DEATHS_MAX:
            raise ChildProcessError("it died too often")
        if self._forker is None:
            self._forker = _Forker(self._python, self._program)
        return self._forker

    def close(self) -> None:
        if self._forker is not None:
            self._forker.end()
        self._forker = None


class _Forker:
    """The running program forker.py."""

    def __init__(self, python: Path, program: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_SEND_SECONDS)
        kept = {"LANG": "C.UTF-8"} | {
            each: os.environ[each] for each in ("PATH", "LANG") if each in os.environ
        }
        with theirs:
            self.process = subprocess.Popen(
                [str(python), "-I", "-u", forker.__file__, program], stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", umask=0o077,
                env=kept | {"HOME": _HOME, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "1000"},
                start_new_session=True,
            )  # fmt: skip

    def send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        if len(data) > forker.MESSAGE_BYTES_MAX:
            raise OSError("the message is too large")
        socket.send_fds(self._control, [data], list(descriptors))

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Its errands end with it."""
        self._control.close()
        if self.is_alive():
            self.process.kill()
        self.process.wait()


@dataclass
class Forked:
    """A process that the forker made. `life`: a pipe that it holds the other end of."""

    name: str
    life: int
    forker: _Forker
    _ended: bool = field(default=False)

    def ended(self, seconds: float) -> bool:
        if not self._ended and select.select([self.life], [], [], seconds)[0]:
            os.close(self.life)
            self._ended = True
        return self._ended

    def kill(self) -> None:
        """The forker does it, because only it knows that the pid was not used again. If it does not answer,
        it is killed itself, and all its errands with it."""
        if self.ended(0.0):
            return
        with suppress(OSError):
            self.forker.send({"kill": self.name})
        if not self.ended(_DEATH_SECONDS):
            self.forker.process.kill()
            with suppress(subprocess.TimeoutExpired):  # it closes its files before it is dead
                self.forker.process.wait(_DEATH_SECONDS)
            self.ended(_DEATH_SECONDS)


_lock = threading.Lock()
_forks: dict[Path, Forks] = {}


@atexit.register
def _close() -> None:
    for each in _forks.values():
        each.close()
