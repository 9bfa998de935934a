"""One version of a kernel and its session, from the push to the outputs that are kept.

The states are the client's (docs/references/kaggle.md#status). How sessions end, and what is kept of them, is
in docs/references/kaggle.md#how-sessions-end. `advance` gets the time (monotonic seconds) and makes all
changes that are due. The caller holds the lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.stand_ins.kaggle.machine import Hardware, Machine
from tests.stand_ins.kaggle.settings import Settings, Warts

_TOO_LONG = "Your notebook was stopped because it exceeded the max allowed execution duration."
_NO_QUOTA = "Your notebook was stopped because the accelerator quota is exhausted."


class State(StrEnum):
    """The SDK's KernelWorkerStatus."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    ERROR = "ERROR"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    CANCEL_ACKNOWLEDGED = "CANCEL_ACKNOWLEDGED"
    NEW_SCRIPT = "NEW_SCRIPT"


ENDED = {State.COMPLETE, State.ERROR, State.CANCEL_ACKNOWLEDGED, State.NEW_SCRIPT}


@dataclass(frozen=True)
class _Ending:
    state: State
    message: str
    keeps_outputs: bool


class KernelSession:
    """`folder` is its /kaggle. `started_at` is in unix seconds, None before. No reply has the
    `session_id`."""

    def __init__(
        self,
        number: int,
        session_id: int,
        request: dict[str, Any],
        machine: Machine,
        hardware: Hardware,
        settings: Settings,
        warts: Warts,
        lock: threading.RLock,
    ) -> None:
        self.version = number
        self.session_id = session_id
        self.request = request
        self.kind = hardware.kind
        self.folder = machine.folder
        self.state = State.QUEUED
        self.failure = ""
        self.started_at: float | None = None
        self.outputs: list[tuple[str, Path]] = []
        self.published: tuple[str, ...] = ()  # the names of its outputs, also after its deletion
        self.deleted_in: State | None = None
        self.destroyed: tuple[str, ...] = ()  # what its deletion took before it was published
        self.machine = machine
        self.settings = settings  # a test may change them while it runs
        self._warts = warts
        self._lock = lock
        self.starts_at = time.monotonic()  # not before, although it was pushed
        self.may_start = True  # a slot is free
        self._pushed = time.monotonic()
        self._started: float | None = None
        self._stopped: float | None = None
        self._finished: float | None = None
        self._charged = 0.0
        self._ending: _Ending | None = None
        self._is_wedged = False

    @property
    def pid(self) -> int | None:
        return self.machine.pid

    @property
    def is_active(self) -> bool:
        """Whether it holds a slot: it is queued, running or wedged. Saving outputs needs no slot."""
        return self.state not in ENDED and self._stopped is None

    @property
    def wall_seconds(self) -> float:
        timeout = float(self.request.get("sessionTimeoutSeconds") or self._limit())
        return min(timeout, self._limit())

    def advance(self, now: float, start: Callable[[], None]) -> None:
        """`start` lays out the inputs and runs the script. It is called when the queue
        releases the session."""
        is_due = now - self._pushed >= self.settings.queue_seconds and now >= self.starts_at
        if self.state is State.QUEUED and is_due and self.may_start:
            start()
            self._started = self._charged = now
            self.started_at = time.time()
            self.state = State.RUNNING
        if self.state is State.RUNNING and self._stopped is None and not self._is_wedged:
            self._look(now)
        is_saving = self._ending is not None and self.state not in ENDED
        if is_saving and now - (self._stopped or 0) >= self.settings.publish_seconds:
            self._publish(now)

    @property
    def has_started(self) -> bool:
        return self._started is not None

    @property
    def ran(self) -> tuple[float, float]:
        """From when to when it ran and was billed, in monotonic seconds; empty if it never started."""
        if self._started is None:
            return 0.0, 0.0
        return self._started, time.monotonic() if self._stopped is None else self._stopped

    @property
    def shown_state(self) -> State:
        """The state as the status tells it."""
        is_saving = self._ending is not None and self._finished is None
        return State.RUNNING if is_saving and self._warts.saves_while_running else self.state

    def cancel(self) -> None:
        """Cancels like the button on the site (docs/references/kaggle.md#how-sessions-end)."""
        with self._lock:
            self._stop(_Ending(State.CANCEL_ACKNOWLEDGED, "", not self._warts.cancel_loses_outputs))

    def run_out(self) -> None:
        """Ends the running session, because the quota is used up."""
        state = State(self._warts.quota_end)
        words = _NO_QUOTA if state is State.ERROR else ""
        self._stop(_Ending(state, words, not self._warts.quota_loses_outputs))

    def kill(self) -> None:
        """The machine fails while the script runs, and Kaggle notices."""
        with self._lock:
            self._stop(
                _Ending(State.ERROR, "Your notebook's machine failed.", self._warts.death_keeps_outputs)
            )

    def wedge(self) -> None:
        """The machine fails and Kaggle does not notice: it stays RUNNING, and is billed until deleted."""
        with self._lock:
            self._is_wedged = True
            self.machine.end()

    def discard(self) -> None:
        """The kernel is deleted: it stops running, and nothing is kept."""
        self.machine.end()
        if self.deleted_in is None:
            self.deleted_in = self.state
            self.destroyed = () if self.state in ENDED else tuple(name for name, _ in self.machine.outputs())
        self._stopped = self._stopped or time.monotonic()
        self.state = State.CANCEL_ACKNOWLEDGED if self.state not in ENDED else self.state
        self.outputs = []

    def seconds_over(self, now: float) -> float:
        """How long ago it ended and its outputs and log were ready; negative before that."""
        return -1.0 if self._finished is None else now - self._finished

    def charge(self, until: float) -> float:
        if self._started is None:
            return 0.0
        end = until if self._stopped is None else min(until, self._stopped)
        seconds = max(0.0, end - self._charged)
        self._charged += seconds
        return seconds

    def reserved(self, now: float) -> float:
        if not self.is_active:
            return 0.0
        wall = self.wall_seconds if self._warts.timeout_shrinks_reservation else self._limit()
        all_of_it = wall if self.settings.reserve_seconds is None else self.settings.reserve_seconds
        return max(0.0, all_of_it - (0.0 if self._started is None else now - self._started))

    def _limit(self) -> float:
        return self.settings.tpu_wall_seconds if self.kind == "tpu" else self.settings.wall_seconds

    def _look(self, now: float) -> None:
        code = self.machine.exit_code()
        if code == 0:
            self._stop(_Ending(State.COMPLETE, "", keeps_outputs=True))
        elif code is not None:
            words = f"Your notebook's script ended with exit code {code}."
            self._stop(_Ending(State.ERROR, words, not self._warts.error_loses_outputs))
        elif now - (self._started or now) >= self.wall_seconds and not self._warts.wall_is_not_enforced:
            state = State(self._warts.wall_end)
            words = _TOO_LONG if state is State.ERROR else ""
            self._stop(_Ending(state, words, not self._warts.wall_loses_outputs))

    def _stop(self, ending: _Ending) -> None:
        if not self.is_active or self._is_wedged:
            return
        if self._warts.stays_running:
            self.wedge()
            return
        self.machine.end()
        self._stopped = time.monotonic()
        self._ending = ending
        if ending.state is State.CANCEL_ACKNOWLEDGED:
            self.state = State.CANCEL_REQUESTED
        if self.settings.publish_seconds == 0:
            self._publish(self._stopped)

    def _publish(self, now: float) -> None:
        ending = self._ending
        assert ending is not None
        self._finished = now
        self.outputs = self.machine.outputs() if ending.keeps_outputs else []
        self.published = tuple(name for name, _ in self.outputs)
        self.failure = ending.message
        self.state = ending.state
