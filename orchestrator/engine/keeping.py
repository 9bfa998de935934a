"""Keeps this process's control of the ledger: a heartbeat in a thread of its own, so that slow ticks do not
look like a lost controller.

Decides when a controller that hangs may be replaced: after HANGS_SECONDS without a tick its heart stops.
Knows nothing of what is controlled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from orchestrator.clock import Clock
from orchestrator.errors import Fenced, OrchestratorError
from orchestrator.ledger import Takeover

BEAT_SECONDS = 1.0
HANGS_SECONDS = 60.0  # a tick takes milliseconds, and at most half a minute when it waits for a lock


class Keeper:
    """The heartbeat of one takeover. `say` is called in its thread; `wake` is set when control was lost."""

    def __init__(
        self, takeover: Takeover, clock: Clock, say: Callable[[str], None], wake: threading.Event
    ) -> None:
        self._takeover = takeover
        self._clock = clock
        self._say = say
        self._wake = wake
        self._over = threading.Event()
        self._fenced: Fenced | None = None
        self._ticked_at = clock.monotonic()
        self._trouble = False

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Beats while the context is open, if control can be lost at all."""
        thread = threading.Thread(target=self._work, name="keeping", daemon=True)
        if self._takeover.may_be_lost:
            thread.start()
        try:
            yield
        finally:
            self._over.set()

    def ticked(self) -> None:
        """To call after each tick. Raises Fenced if another controller has taken over."""
        self._ticked_at = self._clock.monotonic()
        if self._fenced is not None:
            raise self._fenced

    def _work(self) -> None:
        while not self._over.is_set() and self._fenced is None:
            if self._clock.monotonic() - self._ticked_at < HANGS_SECONDS:
                self._beat()
            self._clock.wait(self._over, BEAT_SECONDS)

    def _beat(self) -> None:
        try:
            kept = self._takeover.keep()
        except Fenced as error:
            self._fenced = error
            self._wake.set()
        except OrchestratorError as error:
            if not self._trouble:
                self._say(f"control of the ledger is in doubt, trying to keep it: {error}")
            self._trouble = True
        else:
            if not kept or self._trouble:
                self._say("still in control of the ledger")
            self._trouble = False
