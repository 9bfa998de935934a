"""Who holds a port that the training wanted: another run of this home, or any other program of this machine.

Reads the machine's sockets and the environments of its processes. Where it cannot, nobody is found. Does not
decide what follows from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent.exceptions import Raised
from orchestrator.core.order import run_of
from orchestrator.processes import SESSION, bearers, program

_IN_USE = re.compile(
    r"EADDRINUSE|[Aa]ddress already in use|[Ee]rrno:? 98\b|\bport\b.*\b(?:in use|taken|another process)"
)
_NUMBER = re.compile(r"\d{2,5}")
_TCP = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


@dataclass(frozen=True)
class Holder:
    """`port`: 0 if nobody said which one. `run`: the run of this home that holds it, or holds some port if it
    is not known which one was wanted; empty if another `program` does."""

    port: int
    run: str = ""
    program: str = ""

    def __str__(self) -> str:
        if self.run and not self.port:
            return f"a port is in use, probably by {self.run}, another run on this machine"
        owner = f"{self.run}, another run on this machine" if self.run else self.program
        return f"port {self.port} is in use by {owner}"


def holder(error: Raised, hints: Iterable[str], session: str) -> Holder | None:
    """Who holds the port, if that is why the training ended, and if somebody can be found. `hints`: words
    that may name the port if the exception does not. `session`: the folder of our own session."""
    if _IN_USE.search(error.line) is None:
        return None
    sockets = _sockets()
    named = _ports(error.line, sockets) or _ports(" ".join([error.text, *hints]), sockets)
    others = [
        (Path(folder).name, pids)
        for folder, pids in sorted(bearers(SESSION).items())
        if folder != session and Path(folder).parent.parent == Path(session).parent.parent
    ]
    for port in named or (0,):
        wanted = sockets[port] if port else frozenset().union(*sockets.values())
        for name, pids in others:
            if any(wanted & set(_held(pid)) for pid in pids):
                return Holder(port, run_of(name))
    for port in named:
        for pid in sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()):
            if sockets[port] & set(_held(pid)):
                return Holder(port, program=f"{program(pid) or 'a program'} (process {pid})")
    return None


def _ports(text: str, sockets: dict[int, frozenset[str]]) -> list[int]:
    """The ports in use among the numbers in the text."""
    return list(dict.fromkeys(port for each in _NUMBER.findall(text) if (port := int(each)) in sockets))


def _sockets() -> dict[int, frozenset[str]]:
    """The TCP ports on which somebody listens here, and the numbers of their sockets."""
    found: dict[int, frozenset[str]] = {}
    for path in _TCP:
        with suppress(OSError):
            for line in path.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS:
                    port = int(fields[1].rpartition(":")[2], 16)
                    found[port] = found.get(port, frozenset()) | {fields[9]}
    return found


def _held(pid: int) -> Iterator[str]:
    """The numbers of the sockets that a process has open."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - hundreds of names, no need of paths
            with suppress(OSError):
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - it is no path
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]
