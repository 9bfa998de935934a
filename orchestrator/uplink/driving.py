"""When an uplink beats and ships: at its pace, and again after errors, for as long as the session lasts.

Holds back after each checkpoint, so that shipping takes neither the whole connection nor more than a day's
bytes. Once the agent has written its result, ships everything without a pause. Must never know which store it
ships to, nor stop because of an error: only `Superseded` ends it early.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

from orchestrator.clock import Clock
from orchestrator.core.checkpoint import Manifest
from orchestrator.errors import OrchestratorError, QuotaExhausted, Superseded
from orchestrator.files import Odd
from orchestrator.session.layout import RESULT
from orchestrator.session.words import Word
from orchestrator.uplink.fetching import Fetcher
from orchestrator.uplink.latest import Latest
from orchestrator.uplink.pace import Allowance, Pace, Patience
from orchestrator.uplink.shipping import Uplink

_UPLOAD_FACTOR = 1.2  # between the starts of two uploads: the connection stays free for a sixth of the time
_LOOK_SECONDS = 1.0  # how soon it notices the result
_HURRY_SECONDS = 0.2


class Driver:
    """Drives the uplink of one session. `latest` is the outbox that the uplink reads, and `tell` takes what
    the agent should hear. `fetcher` brings what the session still lacks."""

    def __init__(
        self,
        uplink: Uplink,
        latest: Latest,
        pace: Pace,
        clock: Clock,
        chance: Random,
        tell: Callable[[Word], None],
        fetcher: Fetcher | None = None,
    ) -> None:
        self._uplink = uplink
        self._fetcher = fetcher
        self._latest = latest
        self._pace = pace
        self._clock = clock
        self._tell = tell
        self._beats = Patience(pace, chance)
        self._ships = Patience(pace, chance, tell)
        self._next_at = 0.0  # when the next checkpoint may be sent
        self._told_to_leave = False
        self._allowance = Allowance(pace.daily_bytes, uplink.scratch / "allowance")
        self._bytes = 0  # sent by this uplink
        self._ended = threading.Event()
        self._error: BaseException | None = None
        latest.published, latest.begun = uplink.published, uplink.begun
        uplink.sent = self._sent
        if uplink.published:  # the uplink that shipped it may have died before it told
            tell(Word(shipped_step=max(each.ref.step for each in uplink.published.values())))

    def run(self) -> None:
        """Beats, ships and fetches in threads until the result is in the store. Raises Superseded, and any
        error that is not of the store, without waiting for an upload under way."""
        for act in (self._keep_beating, self._keep_shipping, self._keep_fetching):
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
        self._beats.over()
        asked = self._uplink.asked_to_leave and not self._told_to_leave
        self._told_to_leave |= asked
        said = "the controller asks through the store to save and leave" if asked else ""
        self._tell(Word(said, leave=asked, reached=True))
        return self._pace.beat

    def ship(self) -> float:
        """Ships what is due, and deletes what it replaces. Returns the seconds until the next time."""
        over, before = self.is_over(), self._bytes
        free_at = max(self._next_at, self._allowance.free_at)
        self._latest.held = not over and self._clock.monotonic() < free_at
        try:
            self._ship_or_make_room()
            self._retire()
        except Superseded:
            raise
        except (OrchestratorError, OSError) as error:
            return self._ships.after(error, progressed=self._bytes > before)
        self._ships.over()
        return _HURRY_SECONDS if over else self._pace.ship

    def is_over(self) -> bool:
        """Whether the agent has written its result: nothing new will come."""
        try:
            return self._latest.small(RESULT) is not None
        except (Odd, OSError):
            return False

    def _ship_or_make_room(self) -> None:
        try:
            self._ship()
        except QuotaExhausted:
            gone = self._retire()
            if not self._uplink.sweep() and not gone:
                raise
            self._ship()

    def _retire(self) -> bool:
        gone = self._uplink.retire()
        if gone:
            self._tell(Word(f"deleted from the store: {', '.join(gone)}"))
        return bool(gone)

    def _ship(self) -> None:
        steps = self._uplink.ship()
        while True:
            began, before, sent = self._clock.monotonic(), set(self._uplink.published), self._bytes
            more = next(steps, self) is None
            for name in self._uplink.published.keys() - before:
                self._shipped(self._uplink.published[name], began, self._bytes - sent)
            if not more:
                return

    def _sent(self, size: int) -> None:
        self._bytes += size
        self._allowance.spend(size, self._clock.monotonic())
        self._tell(Word(sent_bytes=size))

    def _shipped(self, manifest: Manifest, began: float, sent: int) -> None:
        seconds = self._clock.monotonic() - began
        self._next_at = began + max(self._pace.ship, _UPLOAD_FACTOR * seconds)
        text = f"shipped {manifest.name}, {sent / 1e6:.1f} MB in {seconds:.1f} s"
        self._tell(Word(text, shipped_seconds=seconds, shipped_step=manifest.ref.step))

    # --- The threads ------------------------------------------------------------------------------------

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._error = self._error or error
        self._ended.set()

    def _keep_fetching(self) -> None:
        while self._fetcher is not None and (pause := self._fetcher.fetch()) is not None:
            if self._clock.wait(self._ended, pause):
                return
        self._ended.wait()  # what is fetched is not the end

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
