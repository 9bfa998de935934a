"""How much a session uses its GPUs, as its agent sums it up, and what to say of it.

Pure; ships with the agent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GPUS_MAX = 64
LOW_PERCENT = 30.0
LOW_SECONDS = 300.0  # before that, a training still loads, compiles and fills its caches
HOW_TO_USE_MORE = (
    "the GPU waits: give the data loader more workers, a larger micro-batch, or precision fp16 or bf16"
)


@dataclass(frozen=True)
class GpuUse:
    """Of the session's own `gpus`, over `seconds` of its training.

    `percent` is the mean share of the time in which they computed, `recent` the same in the last minutes.
    `memory_gb`: the most that one of them had in use, in units of 1e9 bytes. `watts` (of all) and `celsius`
    (of the hottest) are the newest. None for what the driver does not say.
    """

    gpus: int
    seconds: float
    percent: float
    recent: float
    memory_gb: float | None = None
    watts: float | None = None
    celsius: float | None = None

    @property
    def is_low(self) -> bool:
        return self.seconds >= LOW_SECONDS and self.percent < LOW_PERCENT


def within_bounds(use: GpuUse | None) -> GpuUse | None:
    """The same without what no machine does; None if little is left of it."""
    if use is None or not 1 <= use.gpus <= GPUS_MAX:
        return None
    if not (0 <= use.seconds <= 1e9 and 0 <= use.percent <= 100 and 0 <= use.recent <= 100):
        return None
    memory, watts, celsius = (
        value if value is not None and math.isfinite(value) and 0 <= value <= most else None
        for value, most in ((use.memory_gb, 1e5), (use.watts, 1e6), (use.celsius, 1e3))
    )
    return GpuUse(use.gpus, use.seconds, use.percent, use.recent, memory, watts, celsius)


def use_text(use: GpuUse) -> str:
    """`84 % busy (92 % lately), 21.3 GB, 310 W, 66 °C`."""
    parts = [f"{use.percent:.0f} % busy ({use.recent:.0f} % lately)"]
    if use.memory_gb is not None:
        parts.append(f"{use.memory_gb:.1f} GB")
    if use.watts is not None:
        parts.append(f"{use.watts:.0f} W")
    if use.celsius is not None:
        parts.append(f"{use.celsius:.0f} °C")
    return ", ".join(parts)
