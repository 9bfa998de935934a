"""The controller that runs on a home, also in the moment in which it restarts itself.

Imported by every probe of its health, so it imports little. Starts and stops nothing.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.clock import Clock

if TYPE_CHECKING:
    from orchestrator.ledger import Owner
    from orchestrator.ledger.reading import LedgerReader

POLL_SECONDS = 0.05
RESTART_SECONDS = 5.0


def running(ledger: LedgerReader, clock: Clock) -> Owner | None:
    """The controller that runs; None if none does.

    A controller restarts itself after a change of the config, and controls nothing for a moment then, nor
    after a restart of the ledger's server. As long as the process of the last one lives, or a standby waits
    for its turn, this waits for it, for up to RESTART_SECONDS.
    """
    owner = ledger.owner()
    last = None if owner is not None else ledger.owner(last=True)
    ends = clock.monotonic() + RESTART_SECONDS
    never = threading.Event()
    while owner is None and last is not None and clock.monotonic() < ends:
        if not _lives(last) and not ledger.standbys():
            break
        clock.wait(never, POLL_SECONDS)
        owner = ledger.owner()
    return owner


def _lives(owner: Owner) -> bool:
    """Whether this is another process of this machine that still runs our program."""
    is_here = owner.host == socket.gethostname() and owner.pid != os.getpid()
    return is_here and is_ours(owner.pid, unknown=False)


def is_ours(pid: int, *, unknown: bool) -> bool:
    """Whether this process of this machine runs our program; `unknown` if the system cannot tell."""
    try:
        return b"orchestrator" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return unknown and not Path("/proc/self").exists()
    except OSError:
        return unknown
