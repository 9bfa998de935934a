"""An outbox's small files as an observation: the same rules for every platform that can read one.

Knows neither how the bytes were come by nor what is decided on them. Layout: docs/session-folder.md.
"""

from __future__ import annotations

from orchestrator.core import wire
from orchestrator.core.session import AgentStatus, Observation, Outcome, Result, Sighting


def status(data: bytes | None) -> AgentStatus | None:
    """The agent's last status; None where there is none that can be read."""
    try:
        return None if data is None else wire.decode(AgentStatus, data)
    except ValueError:
        return None


def ended(seen: tuple[str, ...], status: AgentStatus | None, marker: bytes) -> Observation:
    """A session that has left its result, the incarnations `seen` of it being these."""
    try:
        return Observation(Sighting.ENDED, seen, status, wire.decode(Result, marker))
    except ValueError as error:
        detail = f"its result cannot be read: {error}"
        return Observation(Sighting.ENDED, seen, status, ending=Outcome.CRASHED, detail=detail)
