"""Takes the snapshots: the tick's own from memory, and those of the ledger in a thread of their own.

Decides how often. A tick only hands over what it has; what needs the ledger or the disk is read elsewhere, on
another connection, so that metrics never delay a tick. An error here is told once and costs only figures.
"""

from __future__ import annotations

import queue
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product

from orchestrator import __version__
from orchestrator.client.metrics.families import USES, Families, Snapshot
from orchestrator.client.metrics.serving import Server
from orchestrator.clock import Clock
from orchestrator.config import Config
from orchestrator.core.charges import Charge, charges
from orchestrator.core.event import Ended, Event
from orchestrator.core.lifecycle import Kind
from orchestrator.core.run import RunRecord
from orchestrator.engine.engine import Engine
from orchestrator.errors import OrchestratorError
from orchestrator.ledger import Ledger

SNAPSHOT_SECONDS = 5.0
LEDGER_SECONDS = 15.0
ENDED_MAX = 10_000  # sessions whose charge is not read yet; beyond that they are not counted
_JOURNAL = frozenset({Kind.HELD, Kind.GAVE_UP, Kind.FAULTED})


class Measuring:
    """The metrics of one controller, from its takeover on. `unforeseen` says how many exceptions nobody
    foresaw."""

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        clock: Clock,
        warn: Callable[[str], None],
        unforeseen: Callable[[], int],
    ) -> None:
        self._config = config
        self._unforeseen = unforeseen
        self._ledger = ledger
        self._clock = clock
        self._warn = warn
        self._families = Families()
        self._since = clock.now()
        self._taken_at = -SNAPSHOT_SECONDS
        self._errors: Counter[str] = Counter()
        self._outcomes: Counter[tuple[str, ...]] = Counter()
        self._used: dict[tuple[str, ...], float] = {}
        self._ended: queue.Queue[tuple[str, str]] = queue.Queue(ENDED_MAX)
        self._over = threading.Event()
        self._told = ""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Serves and reads the ledger while the context is open. Leaving it waits for nothing."""
        assert self._config.metrics is not None
        server = Server(self._config.metrics, self._families.text, self._warn)
        threading.Thread(target=self._work, args=(server,), name="metrics", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()
            server.close()

    # --- Called by the tick's thread ------------------------------------------------------------------------

    def told(self, record: RunRecord, event: Event) -> None:
        """An event was journalled."""
        if event.kind in _JOURNAL:
            self._errors["journal"] += 1
        if event.kind is Kind.ACTION_FAILED:
            self._errors["action"] += 1
        if isinstance(event, Ended):
            session = record.session
            name, platform = (session.name, session.order.platform) if session is not None else ("", "")
            self._outcomes[platform, event.outcome.value] += 1
            if name and not self._ended.full():
                self._ended.put_nowait((record.run, name))

    def ticked(self, engine: Engine, seconds: float | None) -> None:
        """A tick took so long; None: the ledger did not answer."""
        if seconds is None:
            self._errors["ledger"] += 1
            return
        self._families.tick.observe(seconds)
        monotonic = self._clock.monotonic()
        if monotonic - self._taken_at < SNAPSHOT_SECONDS:
            return
        self._taken_at = monotonic
        records, offers = engine.seen
        orders = [each.session.order for each in records if each.session is not None and each.holds_slot]
        self._errors["unforeseen"] = self._unforeseen()
        self._families.publish("tick", Snapshot({
            "controller_info": {(__version__, socket.gethostname()): 1.0},
            "controller_started_timestamp_seconds": {(): self._since},
            "last_tick_timestamp_seconds": {(): self._clock.now()},
            "sessions": Counter((each.platform, each.accelerator) for each in orders),
            "quota_left_seconds": {
                (each.platform, each.accelerator): each.quota.left_seconds
                for each in offers if each.quota is not None
            },
            "offers_closed": Counter((each.platform,) for each in offers if each.unavailable is not None),
            "errors_total": {(name,): count for name, count in self._errors.items()},
            "sessions_ended_total": {key: float(count) for key, count in self._outcomes.items()},
        }))  # fmt: skip

    # --- A thread of its own ----------------------------------------------------------------------------

    def _work(self, server: Server) -> None:
        while not self._over.is_set():
            try:
                server.ensure()
                self._charge()
                self._families.publish("ledger", Snapshot(self._of_ledger()))
            except (OrchestratorError, OSError) as error:
                self._tell(f"metrics of the ledger are not updated: {error}")
            except Exception as error:  # noqa: BLE001 the barrier: figures are missing, and nothing else
                self._tell(f"metrics of the ledger are not updated: {type(error).__name__}: {error}")
            self._clock.wait(self._over, LEDGER_SECONDS)

    def _tell(self, text: str) -> None:
        if text != self._told and not self._over.is_set():
            self._told = text
            self._warn(text)

    def _charge(self) -> None:
        """Adds the charges of sessions that have ended."""
        while not self._ended.empty():
            ended = self._ended.get_nowait()
            try:
                found = self._charges(*ended)
            except OrchestratorError:
                with suppress(queue.Full):
                    self._ended.put_nowait(ended)  # for the next look
                raise
            for charge, use in product(found, USES):
                key = charge.platform, use
                self._used[key] = self._used.get(key, 0.0) + getattr(charge.spent, use)

    def _charges(self, run: str, session: str) -> list[Charge]:
        events = (stored.event for stored in self._ledger.entries(run))
        return [each for each in charges(events, self._clock.now()) if each.session == session]

    def _of_ledger(self) -> dict[str, dict[tuple[str, ...], float]]:
        counts = self._ledger.counts()
        found: dict[str, dict[tuple[str, ...], float]] = {
            "runs": {(phase,): float(count) for phase, count in counts.phases.items()},
            "notifications": {(state,): float(count) for state, count in counts.notifications.items()},
            "session_seconds_total": dict(self._used),
            "ledger_bytes": {(): float(self._ledger.size())},
            "home_free_bytes": {(): float(shutil.disk_usage(self._config.home).free)},
        }
        if counts.next_fire is not None:
            found["schedule_next_fire_timestamp_seconds"] = {(): counts.next_fire}
        return found
