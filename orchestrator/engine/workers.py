"""Where verbs run: a few threads a lane, so that one platform that hangs delays no other.

Knows tasks and what they return; nothing of runs or platforms. The simulation passes its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

R = TypeVar("R")


class Workers(Protocol[R]):
    def start(self, lane: str, task: Callable[[], R], failed: Callable[[str], R]) -> None:
        """Runs the task some time; what it returns is among what `finished` gives later. Where it cannot be
        begun, `failed` is called instead with the reason, and the task never runs. Raises nothing."""

    def finished(self) -> list[R]:
        """What has been returned since the last call; never blocks."""


class ThreadWorkers(Generic[R]):
    """One small pool a lane. `wake` is set whenever a task has finished."""

    def __init__(self, wake: threading.Event, threads_per_lane: int = 4) -> None:
        self._wake = wake
        self._threads = threads_per_lane
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._done: queue.SimpleQueue[R] = queue.SimpleQueue()
        self._bug: BaseException | None = None

    def start(self, lane: str, task: Callable[[], R], failed: Callable[[str], R]) -> None:
        pool = self._pools.get(lane)
        if pool is None:
            pool = self._pools[lane] = ThreadPoolExecutor(self._threads, thread_name_prefix=lane)
        turn = threading.Lock()  # of a pool without a new thread the task stays in its queue: one may have it
        try:
            pool.submit(self._run, task, turn)
        except RuntimeError as error:
            if turn.acquire(blocking=False):
                self._done.put(failed(f"this machine has no thread for it: {error}"))
                self._wake.set()

    def _run(self, task: Callable[[], R], turn: threading.Lock) -> None:
        if not turn.acquire(blocking=False):
            return
        try:
            self._done.put(task())
        except BaseException as bug:  # a task turns every expected error into a report; this one is ours
            self._bug = bug
            raise
        finally:
            self._wake.set()

    def finished(self) -> list[R]:
        """What has been returned since the last call. Raises the bug that a task died of, if one did."""
        if self._bug is not None:
            raise self._bug
        found: list[R] = []
        while not self._done.empty():
            found.append(self._done.get_nowait())
        return found

    def close(self) -> None:
        """Waits for nothing: tasks under way are idempotent and are decided again by the next controller."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
