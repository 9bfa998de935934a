"""Keeps an exception that nobody foresaw away from every run but one. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.errors import OrchestratorError


class Barrier:
    """Passes an unexpected exception to `hold`. It is entered for every reading of a tick, so it is small."""

    __slots__ = ("_doing", "_hold", "_run")

    def __init__(self, hold: Callable[[str, str, Exception], None], run: str, doing: str) -> None:
        self._hold = hold
        self._run = run
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, OrchestratorError):
            return False
        self._hold(self._run, self._doing, error)
        return True
