"""How fast an uplink may go: its pauses, a day's bytes, and its patience after errors.

Times come from the caller, except for one that outlives the process: when the next checkpoint may go. Must
never know what is sent, nor where to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from orchestrator.errors import AccessDenied, QuotaExhausted, Rejected
from orchestrator.files import read_small, write_whole
from orchestrator.session.words import Word

DAY_SECONDS = 86400.0
_TRIES_TOLD = 3  # a short outage is no warning
_DOUBLINGS_MAX = 20
_NUMBER_BYTES_MAX = 64


@dataclass(frozen=True)
class Pace:
    """All in seconds. A heartbeat every `beat`; log and progress every `ship`, and a checkpoint at most that
    often. `daily_bytes` limits what is sent in a day, on average. After an error, it tries again after
    `again`, doubled each time up to `again_max`; after one that needs a person, after `person`."""

    beat: float = 5.0
    ship: float = 60.0
    daily_bytes: float | None = None
    again: float = 1.0
    again_max: float = 60.0
    person: float = 300.0


class Allowance:
    """What a day's bytes allow. Everything that was sent counts, also for a checkpoint that is not complete
    yet. `file` hands it on to the next uplink of this machine."""

    def __init__(self, daily_bytes: float | None, file: Path) -> None:
        self._daily_bytes = daily_bytes
        self._file = file
        self.free_at = _number(file)  # when what was sent is covered, in monotonic seconds

    def spend(self, size: int, now: float) -> None:
        if self._daily_bytes is None:
            return
        self.free_at = max(self.free_at, now) + size * DAY_SECONDS / self._daily_bytes
        with suppress(OSError):  # a full disk must not stop an upload
            write_whole(self._file, repr(self.free_at).encode(), sync=False)


def _number(file: Path) -> float:
    try:
        found = float(read_small(file, _NUMBER_BYTES_MAX) or b"0")
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


class Patience:
    """How long to wait after errors in a row, and what the agent hears of them."""

    def __init__(self, pace: Pace, chance: Random, tell: Callable[[Word], None] = lambda _: None) -> None:
        self._pace = pace
        self._chance = chance
        self._tell = tell
        self._failures = 0
        self._told = ""

    def after(self, error: Exception, *, progressed: bool = False) -> float:
        """Seconds until the next try, shortened at random by up to half, so that sessions do not come at
        once. A try that `progressed` is the first to fail again."""
        if progressed:
            self._failures = 0
        doublings = min(self._failures, _DOUBLINGS_MAX)
        self._failures += 1
        self._say(error)
        again = min(self._pace.again_max, self._pace.again * 2.0**doublings)
        return (self._pace.person if _needs_person(error) else again) * self._chance.uniform(0.5, 1.0)

    def over(self) -> None:
        """A try has succeeded."""
        if self._failures:
            self._tell(Word("the uplink reaches the store again"))
        self._failures, self._told = 0, ""

    def _say(self, error: Exception) -> None:
        """Once for each kind of trouble in a row: its text for the log, and a warning that never changes."""
        trouble = _trouble(error)
        if self._failures == 1:
            self._tell(Word(f"the uplink failed, and tries again: {error}"))
        if trouble != self._told and (_needs_person(error) or self._failures >= _TRIES_TOLD):
            self._told = trouble
            self._tell(Word(f"the uplink still fails: {error}", trouble=trouble))


def _needs_person(error: Exception) -> bool:
    return isinstance(error, AccessDenied | QuotaExhausted | Rejected)


def _trouble(error: Exception) -> str:
    if isinstance(error, AccessDenied):
        return "the home store refuses the uplink: new checkpoints stay in the session until it accepts them"
    if isinstance(error, QuotaExhausted):
        return "the home store is full: new checkpoints stay in the session until there is room"
    if isinstance(error, Rejected):
        return "the home store rejects what the uplink ships: the session's log says why"
    if isinstance(error, OSError):
        return "the uplink cannot use the session's disk: new checkpoints stay in the session until it can"
    return "the uplink cannot reach the home store: new checkpoints stay in the session until it can"
