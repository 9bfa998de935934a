"""Samples how busy the session's own GPUs are, in a thread. Decides nothing.

Without nvidia-smi, or while it hangs or talks nonsense, there is nothing to tell, and nothing else happens.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.clock import Clock
from orchestrator.core.gpu_use import GPUS_MAX, GpuUse
from orchestrator.core.job import Kind
from orchestrator.core.order import Order
from orchestrator.core.own_accelerators import row_of
from orchestrator.nvidia import Asker, Gpu, Load, visible

_RECENT = 12  # samples
_PAUSE_PERIODS = 6  # a driver that does not answer is left alone for so long


@dataclass(frozen=True)
class Ours:
    """Which GPUs are the session's: `uuids`, if its platform named some. Otherwise those that the command
    sees by its CUDA_VISIBLE_DEVICES, `seen`, unless they are more than the order's `devices`."""

    uuids: tuple[str, ...] = ()
    devices: int = GPUS_MAX
    seen: str | None = None

    def among(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        """The UUIDs of the session's GPUs. Empty if there are more than it was ordered for: then the others
        may be somebody else's, and which the command uses is not known. The driver measures no slices."""
        found = visible(gpus, self.seen)
        return tuple(each.uuid for each in found if not each.mig) if len(found) <= self.devices else ()


def ours(order: Order, given: str | None, seen: str | None) -> Ours | None:
    """The session's GPUs; None if it has none that can be sampled.

    `given` are the UUIDs that its platform gave it, empty for none, and None where the platform names no
    GPUs. There a container or a machine of its own shows the session its GPUs alone.
    """
    if given is not None:
        uuids = tuple(each for each in given.split(",") if each.startswith("GPU-"))[:GPUS_MAX]
        return Ours(uuids) if uuids else None
    row = row_of(order)
    return Ours(devices=order.devices, seen=seen) if row is not None and row.kind is Kind.GPU else None


class GpuMeter(threading.Thread):
    """Tells `use` after each sample of the session's GPUs."""

    def __init__(
        self, gpus: Ours, asker: Asker, clock: Clock, period: float, use: Callable[[GpuUse], None]
    ) -> None:
        super().__init__(name="gpus", daemon=True)
        self._gpus = gpus
        self._uuids = gpus.uuids
        self._asker = asker
        self._clock = clock
        self._period = period
        self._use = use
        self._over = threading.Event()
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._sum, self._samples = 0.0, 0
        self._memory: float | None = None

    def finish(self) -> None:
        """Ends it. Does not wait for a driver that hangs."""
        self._over.set()
        self._asker.give_up()

    def run(self) -> None:
        began = self._clock.monotonic()
        while not self._over.is_set():
            if not self._uuids and (there := self._asker.gpus().gpus):
                self._uuids = self._gpus.among(there)
                if not self._uuids:
                    return
            loads = self._asker.loads(self._uuids) if self._uuids else ()
            self._add(loads, self._clock.monotonic() - began)
            self._clock.wait(self._over, self._period * (1 if loads else _PAUSE_PERIODS))

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
