"""The controller: ticks an engine until there is nothing left to do, or somebody stops it.

Creates nothing and knows no platform: it gets an engine and drives it. If it dies at any line, nothing is
lost: the next controller takes over the ledger and looks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from orchestrator.clock import Clock
from orchestrator.engine.engine import Engine
from orchestrator.errors import BackendError, Fenced
from orchestrator.unforeseen import Unforeseen, raise_again

LINGER_SECONDS = 3.0  # a detached controller waits this long for another submit before it exits
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
    warn: Callable[[str], None] | None = None,
    ticked: Callable[[float | None], None] = lambda _seconds: None,
    unforeseen: Unforeseen = raise_again,
    awaits: Callable[[], bool] = lambda: False,
) -> bool:
    """Ticks until `stopped` is true, or until it is `outdated`, or (with `leave_when_idle`) until nothing is
    left to do or to wait for; while it `awaits` something, there is. Returns whether the caller should create
    a new engine: if it is `outdated`.

    `ticked` is told how many seconds each tick took, or None if the ledger did not answer, which is tried
    again. Raises `Fenced` if another controller takes over. After an unexpected exception that belongs to no
    single run, it pauses and returns True: the state in memory may be incomplete, and a new engine finds
    everything again by looking.
    """
    idle_since: float | None = None
    told = False
    while not stopped():
        wake.clear()
        began = clock.monotonic()
        try:
            pause = engine.tick()
            idle = engine.idle and not awaits()
            if idle and leave_when_idle:
                stays = engine.stays
                if stays and not told:
                    say(stays)
                told, idle = told or bool(stays), not stays
        except Fenced:
            raise
        except BackendError as error:
            ticked(None)
            (warn or say)(f"the ledger does not answer, trying again: {error}")
            clock.wait(wake, LEDGER_RETRY_SECONDS)
            continue
        except Exception as error:  # noqa: BLE001 the barrier: reported, then started again
            unforeseen("a tick", error)
            return _pause(clock, stopped)
        ticked(clock.monotonic() - began)
        idle_since = (idle_since or clock.monotonic()) if idle else None
        if leave_when_idle and idle_since is not None and clock.monotonic() - idle_since >= LINGER_SECONDS:
            say("nothing is left to do")
            return False
        if outdated():
            return True
        clock.wait(wake, pause)
    return False


def _pause(clock: Clock, stopped: Callable[[], bool]) -> bool:
    """Waits ANEW_SECONDS. Returns whether to start again: False if it is stopped meanwhile."""
    never = threading.Event()
    ends = clock.monotonic() + ANEW_SECONDS
    while not stopped():
        if clock.monotonic() >= ends:
            return True
        clock.wait(never, 0.5)
    return False
