"""How far a run is, from its newest accepted checkpoint and the newest reading of its session.

Imported for every listing, so it imports little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.lifecycle import Phase
from orchestrator.core.save_pattern import COUNTED

if TYPE_CHECKING:
    from orchestrator.client.live import Live


@dataclass(frozen=True)
class Progress:
    """How far a run is. `step` is the last reported one, else the newest checkpoint's; rates are the
    session's. `counted`: the run is done, and `step` is how often its file without a number was saved."""

    step: int
    total: int
    steps_per_second: float | None = None
    loss: float | None = None
    counted: bool = False

    @property
    def share(self) -> float:
        return 1.0 if self.counted else min(1.0, self.step / self.total) if self.total else 1.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds of training left at the present rate; None if the rate is unknown."""
        return max(0, self.total - self.step) / self.steps_per_second if self.steps_per_second else None


def progress(total: int, accepted_step: int | None, live: Live | None, phase: Phase, reason: str) -> Progress:
    """How far a run of `total` steps is, by its newest accepted checkpoint and the reading of its session."""
    status = live.observation.status if live else None
    if status is None or status.step is None:
        counted = phase is Phase.DONE and reason.startswith(COUNTED)
        return Progress(accepted_step or 0, total, counted=counted)
    return Progress(max(status.step, accepted_step or 0), total, status.steps_per_second, status.loss)
