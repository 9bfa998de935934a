"""How long the agent's checkpoints have waited for the uplink. Pure: knows steps and times only.

An uplink ships the newest checkpoint, so a shipped step covers every step before it.
"""

from __future__ import annotations


class Backlog:
    """What was committed and is not in the home store yet."""

    def __init__(self) -> None:
        self._committed: dict[int, float] = {}  # step → when, in monotonic seconds
        self._shipped = -1

    def committed(self, step: int, now: float) -> None:
        if step > self._shipped:
            self._committed.setdefault(step, now)

    def shipped(self, step: int) -> None:
        self._shipped = max(self._shipped, step)
        self._committed = {each: at for each, at in self._committed.items() if each > self._shipped}

    def seconds(self, now: float, reached_at: float | None) -> float | None:
        """For how long the store may lack work: the age of the oldest that was not shipped, or the time since
        the uplink reached the store. None if it never did."""
        if reached_at is None:
            return None
        return max(0.0, now - min([reached_at, *self._committed.values()]))
