"""Looks at one run, once or until it rests. Decides when a run rests; shows nothing and changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.client import foreseen, live
from orchestrator.client.live import Live
from orchestrator.client.progress import Progress, progress
from orchestrator.core.checkpoint import newest
from orchestrator.core.foreseen import Forecast
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.core.slices import in_slices

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.ledger import Owner, Stored

LOOK_SECONDS = 0.25
OWNER_SECONDS = 2.0


@dataclass(frozen=True)
class Look:
    """A run at one moment. `now` is the wall clock; `monotonic` is for pauses between looks.

    `live` is the newest reading of its session; None while a fault holds the run, because then nobody reads
    it. `preparing` is what is being done for its next one. `forecast` says when the run will end, if that is
    known. `events` are the events since the previous look;
    the first look has all of them. `alone_seconds`: for how long these looks have seen no controller.
    """

    record: RunRecord
    live: Live | None
    now: float
    monotonic: float
    preparing: str = ""
    events: tuple[Stored, ...] = ()
    controller: Owner | None = None
    alone_seconds: float = 0.0
    forecast: Forecast | None = None

    @property
    def progress(self) -> Progress:
        best = newest(self.record.accepted)
        step, record = best.ref.step if best else None, self.record
        return progress(record.job.work.total, step, self.live, record.phase, record.reason)

    @property
    def in_slices(self) -> bool:
        """Whether it sleeps between the times that its schedule gives it."""
        return in_slices(self.record) and not self.record.phase.final

    @property
    def rests(self) -> bool:
        """Whether nothing more happens until somebody asks for it."""
        return rests(self.record)


def rests(record: RunRecord) -> bool:
    """Whether the run is over, or held until a person acts. A wish from before a fault does not end that."""
    held = record.phase in (Phase.HELD, Phase.FAILED) and record.wish is None
    over = record.phase.final and record.phase is not Phase.FAILED
    return over or held or bool(record.fault)


def look(client: Client, run: str) -> Look:
    """One look, with all events. Raises InputError if there is no run of this name."""
    return next(looks(client, run))


def looks(client: Client, run: str) -> Iterator[Look]:
    """Yields a look every LOOK_SECONDS. The last one shows the run at rest."""
    clock, folders, never = client.clock, client.home.folders, threading.Event()
    seq = 0
    owner: Owner | None = None
    expected: Forecast | None = None
    asked_at = float("-inf")  # the last check for a controller and its forecast
    seen_at = clock.monotonic()  # the last time that one was seen
    with client.ledgers.runs() as ledger:
        while True:
            record = ledger.record(run)  # before its events, so that the last look has the last of them
            events = ledger.history(run, after=seq)
            seq = events[-1].seq if events else seq
            session = record.session.name if record.session else None
            now = clock.monotonic()
            if now - asked_at >= OWNER_SECONDS:
                asked_at, owner = now, ledger.owner()
                expected = foreseen.forecasts(folders, clock.now()).get(run)
            seen_at = seen_at if owner is None else now
            found = Look(
                record,
                None if record.fault else live.read(folders, run, session),
                clock.now(),
                now,
                live.preparing(folders, run) if record.phase is Phase.PREPARING else "",
                events,
                owner,
                now - seen_at,
                None if rests(record) else expected,
            )
            yield found
            if found.rests:
                return
            clock.wait(never, LOOK_SECONDS)
