"""A second process that kills the training when the agent dies, so that nothing of it outlives the agent.

It finds the training by its process group and by a mark in its environment. The mark also finds workers that
a launcher puts into their own sessions, as torchrun does. Decides nothing else.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn

from orchestrator import processes

MARK = "ORCHESTRATOR_INCARNATION"


class Guardian:
    """It is a plain fork, so it must start before the agent has any threads. It shares the agent's lock, so
    the session counts as alive until the guardian has cleaned up."""

    def __init__(self, pid: int, pipe: int, incarnation: str) -> None:
        self._pid = pid
        self._pipe = pipe
        self._incarnation = incarnation
        self._group: int | None = None

    @classmethod
    def start(cls, incarnation: str) -> Guardian:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            _guard(reading, incarnation)
        os.close(reading)
        return cls(pid, writing, incarnation)

    def watch(self, group: int | None) -> None:
        """Sets the training's process group. Pass None before the leader is reaped and frees its number."""
        self._group = group
        with suppress(BrokenPipeError):
            os.write(self._pipe, b"none\n" if group is None else b"%d\n" % group)

    def kill(self) -> None:
        """Kills everything that is left of the training, and returns once it is gone."""
        kill_all(self._group, self._incarnation)

    def dismiss(self) -> None:
        """Lets the guardian go without killing anything."""
        with suppress(BrokenPipeError):
            os.write(self._pipe, b"done\n")
        os.close(self._pipe)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _guard(pipe: int, incarnation: str) -> NoReturn:
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        heard = b""
        while data := os.read(pipe, 4096):
            heard += data
        words = heard.split()
        if b"done" not in words:
            kill_all(int(words[-1]) if words and words[-1] != b"none" else None, incarnation)
        status = 0
    finally:
        os._exit(status)


def kill_all(group: int | None, incarnation: str) -> None:
    """Sends SIGKILL to the group and to every process with the mark, and returns once they are dead.

    The group's number must still be taken, so that no other process can have it: either its leader has not
    been reaped yet, or the process that would have reaped it is dead.
    """
    mark = f"{MARK}={incarnation}"
    marked = processes.find(mark)  # before the first signal: a dying process loses its environment first
    if group is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    processes.kill(marked)
    processes.end(mark)  # processes that started meanwhile
