"""Commits saved checkpoints one after the other, in its own thread, while the training goes on.

The newest comes first: an older one may be large, and be superseded by then. Decides what happens to a save
that could not be committed: it is retried until newer ones supersede it, and told once. Reports what happened
as news, and never touches the status.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.checkpoint import Manifest
from orchestrator.files import Lack
from orchestrator.session.committing import Hollow, Outbox, Unfit, remove, step_of

_PAUSE_SECONDS_MAX = 600.0


@dataclass(frozen=True)
class Committed:
    manifest: Manifest
    seconds: float


@dataclass(frozen=True)
class NotCommitted:
    """`again`: the save is still there and will be retried. `unfit`: what was saved can never be a
    checkpoint. `hollow`: because it is almost all holes."""

    step: int
    reason: str
    again: bool
    unfit: bool = False
    hollow: bool = False


@dataclass
class Pending:
    """A save to commit. `failures`: how often it was begun in vain; until `due` it is not begun again.
    `told`: that it was not committed yet."""

    saved: Path
    tried: bool = False
    failures: int = 0
    due: float = 0.0
    told: bool = False


class Committer(threading.Thread):
    """`news` has one reader, which empties it. `bug` is the exception that ended the thread too early."""

    def __init__(self, outbox: Outbox, clock: Clock, retry_seconds: float) -> None:
        super().__init__(name="committer", daemon=True)
        self._outbox = outbox
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._offers: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._pending: dict[int, Pending] = {}
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
        """Waits for an offer, or until the next retry is due."""
        try:
            self._take(self._offers.get(timeout=self._retry_seconds if self._pending else None))
        except queue.Empty:
            return

    def _take_all(self) -> None:
        """Takes every offer that waits."""
        try:
            while True:
                self._take(self._offers.get_nowait())
        except queue.Empty:
            return

    def _take(self, saved: Path | None) -> None:
        if saved is None:
            self._last = True
            for each in self._pending.values():
                each.tried = False
            return
        step = step_of(saved)
        if step is not None:
            self._pending[step] = Pending(saved)

    def _commit_pending(self) -> None:
        """Tries each once, and what was offered meanwhile before the older ones that are left."""
        for each in self._pending.values():
            each.tried = not self._last and self._clock.monotonic() < each.due
        self._take_all()
        while steps := [step for step, each in self._pending.items() if not each.tried]:
            self._commit(max(steps), self._pending[max(steps)])
            self._drop_superseded()
            self._take_all()

    def _drop_superseded(self) -> None:
        """At once, because a command that saves without a pause lets none of the older ones have its turn."""
        for step, each in list(self._pending.items()):
            if self._outbox.supersede(each.saved):
                del self._pending[step]
                remove(each.saved)

    def _commit(self, step: int, pending: Pending) -> None:
        began = self._clock.monotonic()
        pending.tried = True
        try:
            manifest = self._outbox.commit(pending.saved, last=self._last)
        except Unfit as error:
            self._give_up(step, pending, str(error), error)
        except OSError as error:
            self._keep(step, pending, error)
        else:
            del self._pending[step]
            if manifest is not None:
                self.news.append(Committed(manifest, self._clock.monotonic() - began))

    def _keep(self, step: int, pending: Pending, error: OSError) -> None:
        """Keeps the save for another try, which costs nothing as long as it is seen not to fit. After another
        failure, which may have filled the disk, the pauses double."""
        reason = f"{error.strerror or error}{': free some there' if isinstance(error, Lack) else ''}"
        newer = [each.saved for at, each in self._pending.items() if at > step]
        if self._last or self._outbox.supersede(pending.saved, newer):
            self._give_up(step, pending, reason)
            return
        if not isinstance(error, Lack):
            pending.failures += 1
            pause = min(self._retry_seconds * 2.0**pending.failures, _PAUSE_SECONDS_MAX)
            pending.due = self._clock.monotonic() + pause
        if not pending.told:
            pending.told = True
            self.news.append(NotCommitted(step, reason, again=True))

    def _give_up(self, step: int, pending: Pending, reason: str, unfit: Unfit | None = None) -> None:
        """What is not fit stays where it is: it may be all that the session leaves. So does what is left at
        the end."""
        del self._pending[step]
        if unfit is None and not self._last:
            remove(pending.saved)
        hollow = isinstance(unfit, Hollow)
        self.news.append(NotCommitted(step, reason, again=False, unfit=unfit is not None, hollow=hollow))
