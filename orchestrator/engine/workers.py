"""Where verbs run: a few threads per lane, so that a platform that hangs delays no other.

Knows tasks and their results, but not runs or platforms. The simulation uses its own workers.
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
        """Runs the task at some time. A later `finished` returns its result. If the task cannot be started,
        `failed` is called with the reason instead, and the task never runs. Raises nothing."""

    def finished(self) -> list[R]:
        """The results since the last call. Never blocks."""


class ThreadWorkers(Generic[R]):
    """One small thread pool per lane. Sets `wake` whenever a task has finished."""

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
        turn = threading.Lock()  # if no thread starts, the task stays queued: only one side may take it
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
        except BaseException as bug:  # tasks report every expected error, so this is a bug of ours
            self._bug = bug
            raise
        finally:
            self._wake.set()

    def finished(self) -> list[R]:
        """The results since the last call. Raises the bug if a task died of one."""
        if self._bug is not None:
            raise self._bug
        found: list[R] = []
        while not self._done.empty():
            found.append(self._done.get_nowait())
        return found

    def close(self) -> None:
        """Does not wait. Tasks under way are idempotent, and the next controller decides on them again."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
