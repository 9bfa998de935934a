"""Nothing of the training outlives the agent: a second process that notices its death and kills the rest.

The training is found by its process group and by a mark in its environment, so that launchers which put
their workers into sessions of their own (torchrun does) do not escape. Decides nothing else.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn

from orchestrator import processes

MARK = "ORCHESTRATOR_INCARNATION"


class Guardian:
    """Started before the agent has any thread, because it is a plain fork. It shares the agent's lock, so
    the session counts as alive until it has cleaned up."""

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
        """From now on this group is the training's; None before its leader is reaped and frees its number."""
        self._group = group
        with suppress(BrokenPipeError):
            os.write(self._pipe, b"none\n" if group is None else b"%d\n" % group)

    def kill(self) -> None:
        """Kills all that is left of the training; returns when it is gone."""
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
    """SIGKILL to the group and to every process that carries the mark; returns when they are dead.

    The group's number must still be held: by its unreaped leader, or by the death of the one who would
    have reaped it.
    """
    mark = f"{MARK}={incarnation}"
    marked = processes.find(mark)  # before the first signal: the dying lose their environment first
    if group is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    processes.kill(marked)
    processes.end(mark)  # what was born meanwhile
