"""When an uplink beats and ships: at its pace, and again after errors, for as long as the session lasts.

Holds back after each checkpoint, so that shipping takes neither the whole connection nor more than a day's
bytes. Once the agent has written its result, ships everything without a pause. Must never know which store it
ships to, nor stop because of an error: only `Superseded` ends it early.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from orchestrator.clock import Clock
from orchestrator.core.checkpoint import Manifest
from orchestrator.errors import AccessDenied, OrchestratorError, QuotaExhausted, Rejected, Superseded
from orchestrator.files import Odd
from orchestrator.session.layout import RESULT
from orchestrator.session.words import Word
from orchestrator.uplink.latest import Latest
from orchestrator.uplink.shipping import Uplink

DAY_SECONDS = 86400.0
_UPLOAD_FACTOR = 1.2  # between the starts of two uploads: the connection stays free for a sixth of the time
_LOOK_SECONDS = 1.0  # how soon it notices the result
_HURRY_SECONDS = 0.2
_TRIES_TOLD = 3  # a short outage is no warning
_DOUBLINGS_MAX = 20


@dataclass(frozen=True)
class Pace:
    """All in seconds. A heartbeat every `beat`; log and progress every `ship`, and a checkpoint at most that
    often. `daily_bytes` limits what checkpoints send in a day, on average. After an error, it tries again
    after `again`, doubled each time up to `again_max`; after one that needs a person, after `person`."""

    beat: float = 5.0
    ship: float = 60.0
    daily_bytes: float | None = None
    again: float = 1.0
    again_max: float = 60.0
    person: float = 300.0


class Driver:
    """Drives the uplink of one session. `latest` is the outbox that the uplink reads, and `tell` takes what
    the agent should hear."""

    def __init__(
        self,
        uplink: Uplink,
        latest: Latest,
        pace: Pace,
        clock: Clock,
        chance: Random,
        tell: Callable[[Word], None],
    ) -> None:
        self._uplink = uplink
        self._latest = latest
        self._pace = pace
        self._clock = clock
        self._tell = tell
        self._beats = Patience(pace, chance)
        self._ships = Patience(pace, chance)
        self._next_at = 0.0  # when the next checkpoint may be sent
        self._told = ""
        self._told_to_leave = False
        self._known: set[str] = {blob for each in uplink.published.values() for blob in each.blobs()}
        self._ended = threading.Event()
        self._error: BaseException | None = None
        latest.published = uplink.published

    def run(self) -> None:
        """Beats and ships in two threads until the result is in the store. Raises Superseded, and any error
        that is not of the store, without waiting for an upload under way."""
        for act in (self._keep_beating, self._keep_shipping):
            threading.Thread(target=self._guarded, args=(act,), name=act.__name__, daemon=True).start()
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def beat(self) -> float:
        """Writes a heartbeat. Returns the seconds until the next."""
        try:
            self._uplink.beat()
        except Superseded:
            raise
        except (OrchestratorError, OSError) as error:
            return self._beats.after(error)
        self._beats.failures = 0
        if self._uplink.asked_to_leave and not self._told_to_leave:
            self._told_to_leave = True
            self._tell(Word("the controller asks through the store to save and leave", leave=True))
        return self._pace.beat

    def ship(self) -> float:
        """Ships what is due, and deletes what it replaces. Returns the seconds until the next time."""
        over = self.is_over()
        self._latest.held = not over and self._clock.monotonic() < self._next_at
        try:
            self._ship()
            gone = self._uplink.retire()
        except Superseded:
            raise
        except (OrchestratorError, OSError) as error:
            seconds = self._ships.after(error)
            self._say_trouble(error)
            return seconds
        if gone:
            self._tell(Word(f"deleted from the store: {', '.join(gone)}"))
        if self._ships.failures:
            self._tell(Word("the uplink reaches the store again"))
        self._ships.failures, self._told = 0, ""
        return _HURRY_SECONDS if over else self._pace.ship

    def is_over(self) -> bool:
        """Whether the agent has written its result: nothing new will come."""
        try:
            return self._latest.small(RESULT) is not None
        except (Odd, OSError):
            return False

    def _ship(self) -> None:
        steps = self._uplink.ship()
        while True:
            began, before = self._clock.monotonic(), set(self._uplink.published)
            more = next(steps, self) is None
            for name in self._uplink.published.keys() - before:
                self._sent(self._uplink.published[name], began, self._clock.monotonic() - began)
            if not more:
                return

    def _sent(self, manifest: Manifest, began: float, seconds: float) -> None:
        blobs: Mapping[str, int] = manifest.blobs()
        new = sum(size for sha256, size in blobs.items() if sha256 not in self._known)
        self._known |= blobs.keys()
        daily = self._pace.daily_bytes
        capped = 0.0 if daily is None else new * DAY_SECONDS / daily
        self._next_at = began + max(self._pace.ship, _UPLOAD_FACTOR * seconds, capped)
        text = f"shipped {manifest.name}, {new / 1e6:.1f} MB in {seconds:.1f} s"
        self._tell(Word(text, shipped_seconds=seconds, shipped_step=manifest.ref.step))

    def _say_trouble(self, error: Exception) -> None:
        """Once for each kind of trouble in a row: its text for the log, and a warning that never changes."""
        trouble = _trouble(error)
        if self._ships.failures == 1:
            self._tell(Word(f"the uplink failed, and tries again: {error}"))
        if trouble != self._told and (_needs_person(error) or self._ships.failures >= _TRIES_TOLD):
            self._told = trouble
            self._tell(Word(f"the uplink still fails: {error}", trouble=trouble))

    # --- The threads ------------------------------------------------------------------------------------

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._error = self._error or error
        self._ended.set()

    def _keep_beating(self) -> None:
        while not self._clock.wait(self._ended, self.beat()):
            pass

    def _keep_shipping(self) -> None:
        while not self._uplink.done:
            hurried = self.is_over()
            until = self._clock.monotonic() + self.ship()
            while (left := until - self._clock.monotonic()) > 0 and not self._ended.is_set():
                if not hurried and self.is_over():
                    break
                self._clock.wait(self._ended, min(_LOOK_SECONDS, left))
            if self._ended.is_set():
                return


class Patience:
    """How long to wait after errors in a row."""

    def __init__(self, pace: Pace, chance: Random) -> None:
        self._pace = pace
        self._chance = chance
        self.failures = 0

    def after(self, error: Exception) -> float:
        """Seconds until the next try, shortened at random by up to half, so that sessions do not come at
        once."""
        doublings = min(self.failures, _DOUBLINGS_MAX)
        self.failures += 1
        again = min(self._pace.again_max, self._pace.again * 2.0**doublings)
        return (self._pace.person if _needs_person(error) else again) * self._chance.uniform(0.5, 1.0)


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
