"""How busy a run's GPUs are: lines of `show`, columns of `ps --wide`."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.client.looking import Look
from orchestrator.client.sessions import SessionSummary
from orchestrator.client.status import RunStatus
from orchestrator.core.gpu_use import HOW_TO_USE_MORE, GpuUse, use_text

HEADERS = ("GPU", "GPU MEM", "WATTS", "TEMP")


def newest_use(look: Look, history: Sequence[SessionSummary]) -> GpuUse | None:
    """That of the session now, else of the last one that had GPUs."""
    status = look.live.observation.status if look.live is not None else None
    if status is not None and status.gpu_use is not None:
        return status.gpu_use
    return next((each.gpu_use for each in reversed(history) if each.gpu_use is not None), None)


def facts(look: Look, history: Sequence[SessionSummary]) -> list[tuple[str, str]]:
    use = newest_use(look, history)
    if use is None:
        return []
    count = f"{use.gpus} GPUs " if use.gpus > 1 else ""
    return [("gpu use", count + use_text(use)), *([("", HOW_TO_USE_MORE)] if use.is_low else [])]


def cells(status: RunStatus) -> tuple[str, ...]:
    """Of one run, for HEADERS."""
    use = status.gpu_use
    if use is None:
        return ("–",) * len(HEADERS)
    values = ((use.recent, "%"), (use.memory_gb, " GB"), (use.watts, " W"), (use.celsius, " °C"))
    return tuple("–" if value is None else f"{value:.0f}{unit}" for value, unit in values)
