"""Waits for this process's turn to control a ledger.

Decides how often it looks. Must never know what a controller does with its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from orchestrator.clock import Clock
from orchestrator.errors import BackendError, HostUnknown, Transient
from orchestrator.ledger import Ledger, Takeover

Answer = TypeVar("Answer")
NAME = "up --standby"
LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # after a server did not answer


def opened(
    ledger: Callable[[], Ledger], clock: Clock, stopped: Callable[[], bool], say: Callable[[str], None]
) -> Ledger | None:
    """Opens the ledger as soon as its server answers. None: it was `stopped` before.

    Raises what opening raises if waiting does not help: a wrong address, database, user or password.
    """
    return answered(ledger, clock, stopped, say, unless=(HostUnknown,))


def answered(
    ask: Callable[[], Answer],
    clock: Clock,
    stopped: Callable[[], bool],
    say: Callable[[str], None],
    *,
    unless: tuple[type[Transient], ...] = (),
) -> Answer | None:
    """What the ledger answers, as soon as its server does. None: it was `stopped` before. Raises what asking
    raises, except Transient; also that if it is one of `unless`."""
    never, told = threading.Event(), False
    while not stopped():
        try:
            return ask()
        except unless:
            raise
        except Transient as error:
            if not told:
                say(f"standing by; the ledger does not answer, trying again: {error}")
            told = True
        clock.wait(never, RETRY_SECONDS)
    return None


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
