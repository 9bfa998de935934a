"""How the client uses the ledger: opened for one call, or once for all calls of a `with` block.

Decides when it is opened and closed. Must never know what it is used for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from orchestrator.client.home import Home
    from orchestrator.ledger import Ledger, Owner

Found = TypeVar("Found", "Ledger", "Ledger | None")


class Ledgers:
    """Opens the ledger of one home. Between `hold` and `let_go` all uses share one connection."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._holders = 0
        self._held: Ledger | None = None

    @contextmanager
    def existing(self) -> Iterator[Ledger | None]:
        """The ledger; None if there is none yet, because reading must create nothing."""
        with self._open(self._home.existing_ledger) as ledger:
            yield ledger

    @contextmanager
    def runs(self) -> Iterator[Ledger]:
        """The ledger, for a question about a run. Raises InputError if there is none yet."""
        with self._open(self._home.runs) as ledger:
            yield ledger

    @contextmanager
    def made(self) -> Iterator[Ledger]:
        """The ledger, created if there is none yet."""
        with self._open(self._home.ledger) as ledger:
            yield ledger

    def owner(self) -> Owner | None:
        """The controller that decides for these runs; None if none runs."""
        with self.existing() as ledger:
            return ledger.owner() if ledger is not None else None

    def hold(self) -> None:
        """From now on the ledger stays open once it is opened."""
        with self._lock:
            self._holders += 1

    def let_go(self) -> None:
        """Ends one `hold`; the last one closes the ledger."""
        with self._lock:
            self._holders -= 1
            last, self._held = (self._held, None) if not self._holders else (None, self._held)
        if last is not None:
            last.close()

    @contextmanager
    def _open(self, opened: Callable[[], Found]) -> Iterator[Found]:
        with self._lock:
            if self._holders and self._held is None:
                self._held = opened()
            shared = self._held
        if shared is not None:
            yield shared
            return
        ledger = opened()
        try:
            yield ledger
        finally:
            if ledger is not None:
                ledger.close()
