"""Prometheus metrics of the controller, off unless the config has `metrics`.

families.py   which metrics there are, and how a snapshot becomes their values
measuring.py  takes snapshots; a thread reads the ledger, so that no tick waits
serving.py    answers `GET /metrics`, and only to who may ask
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.clock import Clock
    from orchestrator.config import Config
    from orchestrator.core.event import Event
    from orchestrator.core.run import RunRecord
    from orchestrator.engine.engine import Engine
    from orchestrator.ledger import Ledger


class Metrics(Protocol):
    """What the controller tells its metrics. Nothing here blocks or raises."""

    def at_work(self) -> AbstractContextManager[None]: ...

    def told(self, record: RunRecord, event: Event) -> None: ...

    def ticked(self, engine: Engine, seconds: float | None) -> None: ...


class Unmeasured:
    """Without `metrics` in the config."""

    def at_work(self) -> AbstractContextManager[None]:
        return nullcontext()

    def told(self, record: RunRecord, event: Event) -> None:
        """Nobody asks."""

    def ticked(self, engine: Engine, seconds: float | None) -> None:
        """Nobody asks."""


def of(
    config: Config, ledger: Ledger, clock: Clock, warn: Callable[[str], None], unforeseen: Callable[[], int]
) -> Metrics:
    """The metrics that the config asks for. Imports nothing for a config that asks for none."""
    if config.metrics is None:
        return Unmeasured()
    from orchestrator.client.metrics.measuring import Measuring

    return Measuring(config, ledger, clock, warn, unforeseen)
