"""Waits for this process's turn to control a ledger.

Decides how often it looks. Must never know what a controller does with its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from orchestrator.clock import Clock
from orchestrator.errors import BackendError
from orchestrator.ledger import Ledger, Takeover

NAME = "up --standby"
LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # after a server did not answer


def turn(
    ledger: Ledger,
    clock: Clock,
    home_store: str,
    stopped: Callable[[], bool],
    say: Callable[[str], None],
) -> Takeover | None:
    """Waits until nobody else controls the ledger, and takes control. None: it was `stopped` before.

    Waits for a server that does not answer. Raises InputError if a newer version has upgraded the ledger.
    """
    never, trouble, waits = threading.Event(), "", False
    with ledger.stand_by(NAME, now=clock.now()) as waiting:
        while not stopped():
            pause = LOOK_SECONDS
            try:
                takeover = waiting.attempt(clock.now(), clock.monotonic(), home_store)
                if takeover is not None:
                    return takeover
                if trouble or not waits:
                    say(f"standing by for {ledger.owner() or 'the next controller'}")
                trouble, waits = "", True
            except BackendError as error:
                if str(error) != trouble:
                    say(f"standing by; the ledger does not answer, trying again: {error}")
                trouble, pause = str(error), RETRY_SECONDS
            clock.wait(never, pause)
    return None
