"""The values of a ledger's lock, whichever database keeps it: who holds it, who waits, what became of it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

ATTEMPTS = 20
ATTEMPT_SECONDS = 0.05
MARK = 32  # digits
HOST_CHARS = 26  # of a standby's host: a PostgreSQL application_name has 63 bytes


@dataclass(frozen=True)
class Owner:
    """The running controller: the `name` it gave itself, its `pid` on `host`, and `since` in unix seconds."""

    name: str
    pid: int
    host: str
    since: float

    @property
    def mark(self) -> str:
        """Marks its lock, so that nobody takes it for an earlier controller's."""
        return hashlib.sha256(repr((self.name, self.pid, self.host, self.since)).encode()).hexdigest()[:MARK]

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid} on {self.host})" if self.pid else "one that is just starting"


@dataclass(frozen=True)
class Standby:
    """A controller that waits for its turn: its `pid` on `host` (a long name is cut), and since when, in
    unix seconds. `silent_seconds`: how long ago it last looked for its turn, if that is known."""

    pid: int
    host: str
    since: float
    silent_seconds: float = 0.0

    def is_on(self, host: str) -> bool:
        return bool(self.host) and self.host in (host, host[:HOST_CHARS])

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Held(Enum):
    """Whether a controller still holds the lock."""

    ALWAYS = auto()
    AGAIN = auto()  # it was free, and this controller took it again; somebody may have had it in between
    OTHERS = auto()  # another controller has it


def attempts(count: int = ATTEMPTS) -> Iterator[None]:
    """Pauses between several looks: a process that only checks the lock, or was just killed, may still hold
    it."""
    for number in range(count):
        if number:
            threading.Event().wait(ATTEMPT_SECONDS)
        yield
