"""A home with one run, as a controller left it; no controller runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator import Client
from orchestrator.client import Run
from orchestrator.core.event import Event, Submitted
from orchestrator.ledger import Ledger
from tests.core.runs import NOW, RUN, job
from tests.simulation.clock import VirtualClock


def ledger_of(home: Path) -> Ledger:
    return Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}")


def append(home: Path, events: Sequence[Event]) -> None:
    with ledger_of(home) as ledger:
        ledger.append(ledger.record(RUN), events, due_at=None)


def run_after(home: Path, *events: Event) -> Run:
    """The run after these events. Its clock stands still until somebody waits."""
    with ledger_of(home) as ledger:
        ledger.submit(Submitted(RUN, job(), NOW, store="home"))
    if events:
        append(home, events)
    return Client(home, clock=VirtualClock(NOW)).run(RUN)
