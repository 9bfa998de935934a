"""What people do while their runs go on: submit, cancel, hold, change their mind, release held runs.

Some of it happens between a decision of the controller and its journal entry. Like a command line, this knows
only the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from orchestrator.core.event import Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.ledger import Proposal
from tests.simulation.clock import VirtualClock
from tests.simulation.ledger import SimulatedLedger


class Users:
    """If `busy`, they make other wishes besides releasing held runs. Once `calm`, they only release.

    `impatience`: how often they release a run whose session or output is still waited for.
    """

    def __init__(self, ledger: SimulatedLedger, clock: VirtualClock, random: Random) -> None:
        self._ledger = ledger
        self._clock = clock
        self._random = random
        self.busy = random.random() < 0.4
        self._between = random.choice((0.0, 0.05, 0.3))
        self.impatience = 0.003
        self.calm = False

    def act(self, runs: Sequence[str]) -> None:
        """What they do once in a while."""
        for run in runs:
            record = self._ledger.latest(run)
            if record.awaits is not None:
                self._look_at(run)
            elif record.standing is Phase.HELD and self._random.random() < (0.2 if self.calm else 0.04):
                self._wish(run, Wish.RELEASE)
            elif self.busy and not self.calm and not record.phase.final and self._random.random() < 0.004:
                self._wish(run, self._random.choice((Wish.CANCEL, Wish.HOLD)))

    def _look_at(self, run: str) -> None:
        """What they do about a session whose output does not appear. It may still appear by itself."""
        if self._random.random() < (0.003 if self.calm else 0.001):
            self._ledger.wish(run, Wished(self._clock.now(), Wish.RELEASE, discard=True))
        elif not self.calm and self._random.random() < self.impatience:
            self._wish(run, Wish.RELEASE)

    def interfere(self, proposals: Sequence[Proposal]) -> None:
        """What they do at the moment in which something is journalled: mostly actions that change nothing."""
        if self.calm or not self.busy:
            return
        for run in (proposal.record.run for proposal in proposals):
            if not self._ledger.latest(run).phase.final and self._random.random() < self._between:
                rare = self._random.random() < 0.05
                self._wish(run, self._random.choice((Wish.CANCEL, Wish.HOLD)) if rare else Wish.RELEASE)

    def _wish(self, run: str, wish: Wish) -> None:
        discard = wish is Wish.CANCEL and self._random.random() < 0.5
        self._ledger.wish(run, Wished(self._clock.now(), wish, discard))
