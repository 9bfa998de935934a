"""Processes of this machine by a mark in their environment, and their end.

A process hands its environment on to its children, so the mark finds what a dead parent has left. Every
signal goes through a descriptor that was taken before the look: a number that is used again is never hit.
Decides nothing about when. What clears its environment and leaves its session is not found.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

SESSION = "ORCHESTRATOR_SESSION"  # the session's folder, for agent, guardian and training alike
_ROUNDS = 20
_DEATH_MILLISECONDS = 2000  # a process in the middle of a disk write dies late


def end(mark: str, *, sessions: bool = False) -> bool:
    """Kills every process whose environment holds `mark` (as NAME=value); returns when they are dead, and
    whether there was one.

    `sessions`: also what shares a session with one of them, for programs that overwrite their environment.
    Only of sessions led by a marked process, or by one that has died: never a user's shell.
    """
    found = False
    for _ in range(_ROUNDS):  # again, for what was born meanwhile
        doomed = find(mark, sessions=sessions)
        if not doomed:
            break
        found = True
        kill(doomed)
    return found


def kill(doomed: Iterable[int]) -> None:
    """SIGKILL to each of these descriptors of processes; returns when they are dead, or do not die for two
    seconds. Closes them."""
    doomed = list(doomed)
    for process in doomed:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    for process in doomed:
        dead = select.poll()
        dead.register(process, select.POLLIN)
        dead.poll(_DEATH_MILLISECONDS)
        os.close(process)


def find(mark: str, *, sessions: bool = False) -> list[int]:
    """Descriptors of the living processes that `end` means; a descriptor outlives a pid's reuse."""
    wanted = mark.encode()
    marked: dict[int, int] = {}
    leaders: dict[int, int] = {}
    for pid in _pids():
        with suppress(OSError):
            leaders[pid] = os.getsid(pid)
            process = _held(pid, lambda pid=pid: wanted in _environment(pid))  # type: ignore[misc]
            if process is not None:
                marked[pid] = process
    led = {leaders[pid] for pid in marked} - {os.getsid(0)} if sessions else set()
    led = {leader for leader in led if leader in marked or _is_dead(leader)}
    others = [pid for pid, leader in leaders.items() if leader in led and pid not in marked]
    held = [_held(pid, lambda pid=pid: os.getsid(pid) in led) for pid in others]  # type: ignore[misc]
    return [*marked.values(), *(process for process in held if process is not None)]


def _held(pid: int, is_wanted: Callable[[], bool]) -> int | None:
    """A descriptor of the process if, looked at through it, it is wanted."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return None
    with suppress(OSError):
        if is_wanted():
            return process
    os.close(process)
    return None


def _is_dead(pid: int) -> bool:
    """Whether no process has the number, or one that has died and was not reaped."""
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
    except (OSError, IndexError):
        return True


def values(name: str, prefix: str) -> set[str]:
    """The values that start so of the variable `name`, in all environments that this user may read."""
    start = f"{name}={prefix}".encode()
    found = set()
    for pid in _pids():
        for variable in _environment(pid):
            if variable.startswith(start):
                found.add(os.fsdecode(variable.partition(b"=")[2]))
    return found


def _pids() -> Iterator[int]:
    """All but this one; none on a system without /proc."""
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of names, no need of paths
            if name.isdecimal() and int(name) != os.getpid():
                yield int(name)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []
