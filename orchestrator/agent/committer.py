"""Commits saved checkpoints one after the other, in its own thread, while the training goes on.

Decides what happens to a save that could not be committed: it is retried until a newer save replaces it.
Reports what happened as news, and never touches the status.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.checkpoint import Manifest
from orchestrator.session.committing import Outbox, Unfit, remove, step_of


@dataclass(frozen=True)
class Committed:
    manifest: Manifest
    seconds: float


@dataclass(frozen=True)
class NotCommitted:
    """`again`: the save is still there and will be retried. `unfit`: what was saved can never be a
    checkpoint."""

    step: int
    reason: str
    again: bool
    unfit: bool = False


class Committer(threading.Thread):
    """`news` has one reader, which empties it. `bug` is the exception that ended the thread too early."""

    def __init__(self, outbox: Outbox, clock: Clock, retry_seconds: float) -> None:
        super().__init__(name="committer", daemon=True)
        self._outbox = outbox
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._offers: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._pending: dict[int, Path] = {}
        self._last = False
        self.news: deque[Committed | NotCommitted] = deque()
        self.bug: Exception | None = None

    def offer(self, saved: Path) -> None:
        """Hands over a `step-<n>` folder, which is removed once it is committed."""
        self._offers.put(saved)

    def finish(self) -> None:
        """Ends the thread, after one more try for each pending save. Offer nothing after this call."""
        self._offers.put(None)

    def run(self) -> None:
        try:
            while not self._last:
                self._gather()
                self._commit_pending()
        except Exception as error:  # noqa: BLE001 - the main thread reports it as the agent's own bug
            self.bug = error

    def _gather(self) -> None:
        """Waits for an offer, or until the next retry is due, and then takes every waiting offer."""
        try:
            self._take(self._offers.get(timeout=self._retry_seconds if self._pending else None))
            while True:
                self._take(self._offers.get_nowait())
        except queue.Empty:
            return

    def _take(self, saved: Path | None) -> None:
        if saved is None:
            self._last = True
            return
        step = step_of(saved)
        if step is not None:
            self._pending[step] = saved

    def _commit_pending(self) -> None:
        for step in sorted(self._pending):
            newer = step < max(self._pending)
            if not self._commit(step, self._pending[step], newer) and not newer:
                return

    def _commit(self, step: int, saved: Path, newer: bool) -> bool:
        began = self._clock.monotonic()
        try:
            manifest = self._outbox.commit(saved)
        except Unfit as error:
            self._give_up(step, saved, str(error), unfit=True)
            return False
        except OSError as error:
            if newer:
                self._give_up(step, saved, error.strerror or str(error))
            else:
                self.news.append(NotCommitted(step, error.strerror or str(error), again=True))
            return False
        del self._pending[step]
        if manifest is not None:
            self.news.append(Committed(manifest, self._clock.monotonic() - began))
        return True

    def _give_up(self, step: int, saved: Path, reason: str, *, unfit: bool = False) -> None:
        """What is not fit stays where it is: it may be all that the session leaves."""
        del self._pending[step]
        if not unfit:
            remove(saved)
        self.news.append(NotCommitted(step, reason, again=False, unfit=unfit))
