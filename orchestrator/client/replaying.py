"""Makes the ledger's decisions again: each run's journal → which decisions this version would make otherwise.

Only reads. `orchestrator.core.replay` judges; this module does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.core.replay import Answer, Step
from orchestrator.core.replay import replay as replayed

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.ledger import Ledger

__all__ = ["Answer", "Replay", "Step", "replay", "replays"]


@dataclass(frozen=True)
class Replay:
    """One run's journal, judged by this version. A step is a group of events that were appended together."""

    run: str
    steps: tuple[Step, ...]

    @cached_property
    def counts(self) -> Mapping[Answer, int]:
        """How many steps got each answer."""
        found = Counter(step.answer for step in self.steps)
        return {answer: found[answer] for answer in Answer}

    @property
    def same(self) -> bool:
        """Whether no decision differs. Those that cannot be judged do not count."""
        return not self.counts[Answer.DIFFERS]


def replay(client: Client, run: str) -> Replay:
    """See `Past.replay`."""
    with client.ledgers.runs() as ledger:
        return _replay(ledger, ledger.find(run))


def replays(client: Client, since_seconds: float | None) -> Iterator[Replay]:
    """See `Past.replays`."""
    since = 0.0 if since_seconds is None else client.clock.now() - since_seconds
    with client.ledgers.runs() as ledger:
        for run in ledger.under_way_since(since):
            yield _replay(ledger, run)


def _replay(ledger: Ledger, run: str) -> Replay:
    return Replay(run, tuple(replayed(ledger.entries(run), store=ledger.first_store())))
