"""Finds processes of this machine by a mark in their environment, and kills them.

Children inherit their parent's environment, so the mark also finds processes whose parent has died. Every
signal goes through a descriptor that was opened before the check, so it never hits a reused pid. Does not
decide when. Does not find a process that clears its environment and leaves its session.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

SESSION = "ORCHESTRATOR_SESSION"  # the session's folder, for agent, guardian and training alike
_ROUNDS = 20
_DEATH_MILLISECONDS = 2000  # a process in the middle of a disk write dies late


def end(mark: str, *, sessions: bool = False) -> bool:
    """Kills every process whose environment contains `mark` (as NAME=value). Waits until they are dead, and
    returns whether there were any.

    `sessions`: also kills processes in the same session as one of them, for programs that overwrite their
    environment. This applies only to sessions whose leader is marked or dead, so never to a user's shell.
    """
    found = False
    for _ in range(_ROUNDS):  # again, because new ones may have started meanwhile
        doomed = find(mark, sessions=sessions)
        if not doomed:
            break
        found = True
        kill(doomed)
    return found


def kill(doomed: Iterable[int]) -> None:
    """Sends SIGKILL to these processes, given as descriptors, and closes the descriptors. Waits for each to
    die, up to two seconds."""
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
    """Descriptors of the processes that `end` would kill. Unlike a pid, a descriptor is never reused."""
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
    """A descriptor of the process, if the process is wanted."""
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
    """Whether no process has this pid, or only a dead one that was not reaped."""
    try:
        return Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"
    except (OSError, IndexError):
        return True


def kept(descriptors: Sequence[int], first: int, *, streams: int) -> Iterator[tuple[int, ...]]:
    """File actions of `os.posix_spawn` by which the child keeps descriptors, from the number `first` on. The
    last `streams` of them become its standard input, output and error instead.

    Only the child duplicates them. If they were made inheritable here, a program that another thread starts
    at the same time could inherit them too. First all go out of the way, because the number of one may be the
    one that another shall have.
    """
    aside = max((*descriptors, first + len(descriptors))) + 1
    wanted = [*range(first, first + len(descriptors) - streams), *range(streams)]
    for number, descriptor in enumerate(descriptors):
        yield os.POSIX_SPAWN_DUP2, descriptor, aside + number
    for number, target in enumerate(wanted):
        yield os.POSIX_SPAWN_DUP2, aside + number, target
    for number in range(len(descriptors)):
        yield os.POSIX_SPAWN_CLOSE, aside + number


def values(name: str, prefix: str) -> set[str]:
    """The values of the variable `name` that start with `prefix`, in all environments that this user can
    read."""
    return {value for value in bearers(name) if value.startswith(prefix)}


def bearers(name: str) -> dict[str, list[int]]:
    """For each value that the variable `name` has in an environment that this user can read: the pids of the
    processes with it."""
    start = f"{name}=".encode()
    found: dict[str, list[int]] = {}
    for pid in _pids():
        for variable in _environment(pid):
            if variable.startswith(start):
                found.setdefault(os.fsdecode(variable.partition(b"=")[2]), []).append(pid)
    return found


def program(pid: int) -> str:
    """The name of what the process runs, fit for a terminal; empty if it is gone."""
    try:
        said = Path("/proc", str(pid), "comm").read_text(errors="replace")
    except OSError:
        return ""
    return "".join(each for each in said if each.isprintable())


def _pids() -> Iterator[int]:
    """All pids except our own; none on a system without /proc."""
    with suppress(FileNotFoundError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of names, no need of paths
            if name.isdecimal() and int(name) != os.getpid():
                yield int(name)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []
