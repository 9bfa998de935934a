"""Samples how busy the session's own GPUs are, in a thread. Decides nothing.

Without nvidia-smi, or while it hangs or talks nonsense, there is nothing to tell, and nothing else happens.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from orchestrator.clock import Clock
from orchestrator.core.gpu_use import GPUS_MAX, GpuUse
from orchestrator.nvidia import Asker, Load

_RECENT = 12  # samples


class GpuMeter(threading.Thread):
    """Tells `use` after each sample. `uuids` are the session's GPUs."""

    def __init__(
        self, uuids: Sequence[str], asker: Asker, clock: Clock, period: float, use: Callable[[GpuUse], None]
    ) -> None:
        super().__init__(name="gpus", daemon=True)
        self._uuids = tuple(uuids)[:GPUS_MAX]
        self._asker = asker
        self._clock = clock
        self._period = period
        self._use = use
        self._over = threading.Event()
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._sum, self._samples = 0.0, 0
        self._memory: float | None = None

    def finish(self) -> None:
        self._over.set()

    def run(self) -> None:
        began = self._clock.monotonic()
        while not self._over.is_set():
            self._add(self._asker.loads(self._uuids), self._clock.monotonic() - began)
            self._clock.wait(self._over, self._period)

    def _add(self, loads: Sequence[Load], seconds: float) -> None:
        busy = [each.percent for each in loads if each.percent is not None]
        if not busy:
            return
        mean = sum(busy) / len(busy)
        self._recent.append(mean)
        self._sum, self._samples = self._sum + mean, self._samples + 1
        memory = [each.memory_gb for each in loads if each.memory_gb is not None]
        self._memory = max([*memory, *([] if self._memory is None else [self._memory])], default=None)
        watts = [each.watts for each in loads if each.watts is not None]
        self._use(
            GpuUse(
                len(self._uuids),
                round(seconds, 1),
                round(self._sum / self._samples, 1),
                round(sum(self._recent) / len(self._recent), 1),
                None if self._memory is None else round(self._memory, 2),
                round(sum(watts), 1) if watts else None,
                max((each.celsius for each in loads if each.celsius is not None), default=None),
            )
        )


def own_gpus(variables: Mapping[str, str], given: str) -> tuple[str, ...]:
    """The UUIDs of the session's GPUs, as its platform gave them; none if it gave none by name."""
    return tuple(each for each in variables.get(given, "").split(",") if each.startswith("GPU-"))
