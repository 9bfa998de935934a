"""The controller: engine ticks until there is nothing left to do, or somebody says stop.

Wires nothing and knows no platform; gets an engine and drives it. Its death at any line loses nothing: the
next one takes over the ledger and looks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from orchestrator.clock import Clock
from orchestrator.engine.engine import Engine
from orchestrator.errors import BackendError, Fenced
from orchestrator.unforeseen import Unforeseen, raise_again

LINGER_SECONDS = 3.0  # a detached controller waits so long for another submit before it leaves
LEDGER_RETRY_SECONDS = 2.0
ANEW_SECONDS = 30.0


def run(
    engine: Engine,
    clock: Clock,
    wake: threading.Event,
    stopped: Callable[[], bool],
    *,
    leave_when_idle: bool,
    outdated: Callable[[], bool],
    say: Callable[[str], None],
    unforeseen: Unforeseen = raise_again,
) -> bool:
    """Ticks until `stopped` says so, or (if asked to) until nothing is left to do or to wait for, or until it
    is `outdated`: then returns True, and whoever wired this engine wires another.

    A ledger that does not answer is waited for; another controller's takeover ends this one with `Fenced`.
    After an exception that nobody foresaw and that is no one run's, it pauses and returns True: what was in
    memory may be half done, and all of it is found again by looking.
    """
    idle_since: float | None = None
    while not stopped():
        wake.clear()
        try:
            pause = engine.tick()
            idle = engine.idle
        except Fenced:
            raise
        except BackendError as error:
            say(f"the ledger does not answer, trying again: {error}")
            clock.wait(wake, LEDGER_RETRY_SECONDS)
            continue
        except Exception as error:  # noqa: BLE001 the barrier: told, and begun anew
            unforeseen("a tick", error)
            return _pause(clock, stopped)
        idle_since = (idle_since or clock.monotonic()) if idle else None
        if leave_when_idle and idle_since is not None and clock.monotonic() - idle_since >= LINGER_SECONDS:
            say("nothing is left to do")
            return False
        if outdated():
            return True
        clock.wait(wake, pause)
    return False


def _pause(clock: Clock, stopped: Callable[[], bool]) -> bool:
    """Waits ANEW_SECONDS; returns whether to begin anew then: not where somebody says stop meanwhile."""
    never = threading.Event()
    ends = clock.monotonic() + ANEW_SECONDS
    while not stopped():
        if clock.monotonic() >= ends:
            return True
        clock.wait(never, 0.5)
    return False
