"""The processes of the training: who of them wants to hear SIGTERM, and how much they compute.

A command may be a shell or a launcher that has the training as its child. Knows nothing where there is no
/proc. Decides nothing.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TERM = 1 << (signal.SIGTERM - 1)


@dataclass(frozen=True)
class Member:
    """One process. `seconds` of processor time, its own and that of its children that have ended."""

    pid: int
    parent: int
    seconds: float


def members(leader: int) -> dict[int, list[Member]]:
    """The processes below the leader by their parents, and the leader under 0."""
    children: defaultdict[int, list[Member]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            found = _member(int(path.parent.name), path.read_bytes())
            children[found.parent if found.pid != leader else 0].append(found)
    return children


def seconds(leader: int) -> float:
    """The processor time of the leader and everything below it; it falls when a process ends unnoticed."""
    children = members(leader)
    total, waiting = 0.0, list(children.get(0, ()))
    while waiting:
        member = waiting.pop()
        total += member.seconds
        waiting += children.get(member.pid, ())
    return total


def listeners(leader: int) -> list[int]:
    """The processes that SIGTERM is for: the topmost ones that handle it, or else the leader.

    A shell or a launcher that would only die of it passes it on to whom it started. Data-loader workers are
    below a process that handles it, so they are spared (docs/training-contract.md).
    """
    if _handles(leader):
        return [leader]
    children = members(leader)
    found, waiting = [], list(children.get(leader, ()))
    while waiting:
        member = waiting.pop()
        if _handles(member.pid):
            found.append(member.pid)
        else:
            waiting += children.get(member.pid, ())
    return sorted(found) or [leader]


def terminate(leader: int) -> None:
    """Sends SIGTERM to those that it is for. Call it before the leader is reaped: its number is still its
    own then."""
    for pid in listeners(leader):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)


def _member(pid: int, stat: bytes) -> Member:
    fields = stat.rpartition(b")")[2].split()  # proc(5), from the third field on
    ticks = sum(map(int, fields[11:15]))
    return Member(pid, int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))


def _handles(pid: int) -> bool:
    try:
        lines = Path("/proc", str(pid), "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) & _TERM)
