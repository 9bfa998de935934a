"""Ends sessions on request, and keeps as much of their output as Kaggle allows.

Must never end what nobody asked to end. Remembers in memory only when Kaggle was asked.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.clock import Clock
from orchestrator.core.session import StopReply
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.endings import OVER, SAVING, WAITING
from orchestrator.platforms.kaggle.finding import Finder
from orchestrator.platforms.kaggle.leaving import Leavings
from orchestrator.platforms.kaggle.logs import Told
from orchestrator.platforms.kaggle.memory import Memory
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.session import saying

_LEAVING = frozenset({"committing", "shipping"})  # states of an agent whose training has left
CANCEL_SECONDS_MAX = 600.0  # after an accepted cancel that ends nothing, the kernel is deleted


class Stopper:
    """Stops sessions of one account. `listen` returns what a session's runner has printed; it gets the names
    of the session and of its kernel."""

    def __init__(
        self,
        client: Callable[[], KaggleClient],
        memory: Memory,
        finder: Finder,
        leavings: Leavings,
        options: KaggleOptions,
        clock: Clock,
        *,
        listen: Callable[[str, str], Told],
    ) -> None:
        self._client = client
        self._memory = memory
        self._finder = finder
        self._leavings = leavings
        self._options = options
        self._clock = clock
        self._listen = listen
        self._asked_at: dict[str, float] = {}  # sessions with an uplink that were asked to leave
        self._saving_since: dict[str, float] = {}  # sessions asked to stop while being saved
        self._cancelled_at: dict[str, float] = {}  # sessions that Kaggle was asked to cancel

    def stop(self, name: str) -> StopReply:
        """Cancels the session if Kaggle allows that, which keeps its output. Otherwise deletes the kernel,
        which loses its unpublished output (docs/references/kaggle.md#cancelling-and-deleting). So callers
        stop a session only if the user agreed to that, or if nobody needs its output. A session with an
        uplink, which hears of it through the home store, first has its grace period to save and leave.

        Once this returns ENDED, nothing more of its output is waited for.
        """
        found = self._finder.find(name, fresh=True)
        status, there = found.status, found.slug
        if status is not None and status.state in OVER:
            grows = self._leavings.may_grow(name, there, status, lambda: self._listen(name, there))
            return StopReply.REQUESTED if grows else StopReply.ENDED
        self._memory.note(name, stopped=True)  # from now on nothing of this name is launched
        if status is None:
            may_appear = found.listed or self._finder.may_appear(self._memory.of(name))
            return StopReply.REQUESTED if may_appear else StopReply.ENDED
        if self._is_being_saved(name, there, status.state) or self._may_leave(name, there, status.state):
            return StopReply.REQUESTED
        if self._is_cancelled(name):
            return StopReply.REQUESTED
        self._client().delete_kernel(there)
        self._memory.note(name, pushed_at=None, over=True)
        return StopReply.ENDED

    def forget(self, name: str) -> None:
        self._asked_at.pop(name, None)
        self._saving_since.pop(name, None)
        self._cancelled_at.pop(name, None)

    def _is_being_saved(self, name: str, there: str, state: str) -> bool:
        """Whether Kaggle may still be saving its output, which takes minutes per gigabyte. A deletion now
        would lose it."""
        now = self._clock.monotonic()
        if state != SAVING and not self._listen(name, there).left:
            return False
        return now - self._saving_since.setdefault(name, now) < self._options.saving_seconds

    def _may_leave(self, name: str, there: str, state: str) -> bool:
        """Whether a session with an uplink may still leave by itself. It may take longer than its grace
        period if it says that it ships what it saved."""
        if state in WAITING or not self._memory.of(name).ships:
            return False
        now = self._clock.monotonic()
        waited = now - self._asked_at.setdefault(name, now)
        if waited < self._options.grace_seconds:
            return True
        told = self._listen(name, there).status
        status = None if told is None else saying.status(told.encode())
        is_leaving = status is not None and status.state in _LEAVING
        return is_leaving and waited < self._options.saving_seconds

    def _is_cancelled(self, name: str) -> bool:
        """Whether Kaggle has been asked to cancel the session, and may still do so."""
        now, asked_at = self._clock.monotonic(), self._cancelled_at.get(name)
        if asked_at is not None:
            return now - asked_at < CANCEL_SECONDS_MAX
        session_id = self._memory.of(name).session_id
        if session_id is None:
            return False
        accepted = self._client().cancel(session_id)
        self._cancelled_at[name] = now if accepted else now - CANCEL_SECONDS_MAX
        return accepted
