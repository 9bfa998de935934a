"""An outbox's small files as an observation: the same rules for every platform that can read one.

What is beyond a bound is left out of the status and named in it. Knows neither how the bytes were come by
nor what is decided on them. Layout: docs/session-folder.md.
"""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.core import bounds, wire
from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.core.order import AgentStatus, Outcome, Result
from orchestrator.core.session import Observation, Sighting

_INCARNATION = re.compile(r"[0-9a-z]{1,32}")


def incarnation(data: bytes | None) -> str | None:
    """The id that an agent left; None where there is none, or none that an agent draws."""
    text = None if data is None else data.decode(errors="replace").strip()
    return text if text is not None and _INCARNATION.fullmatch(text) else None


def status(data: bytes | None) -> AgentStatus | None:
    """The agent's last status; None where there is none that can be read."""
    if data is None or len(data) > bounds.STATUS_BYTES_MAX:
        return None
    try:
        found = wire.decode(AgentStatus, data)
    except ValueError:
        return None
    return within_bounds(found) if _INCARNATION.fullmatch(found.incarnation) else None


def within_bounds(status: AgentStatus) -> AgentStatus:
    """The status without what is beyond a bound; a warning names what was left out."""
    ref = None if status.checkpoint is None else CheckpointRef.parse(status.checkpoint)
    kept = replace(
        status,
        heartbeat=min(max(status.heartbeat, -bounds.STEP_MAX), bounds.STEP_MAX),
        written_at=bounds.moment(status.written_at) or 0.0,
        state=bounds.text(status.state, bounds.STATE_BYTES_MAX),
        step=bounds.step(status.step),
        steps_per_second=bounds.rate(status.steps_per_second),
        loss=bounds.finite(status.loss),
        checkpoint=None if ref is None else ref.name,
        checkpoint_step=None if ref is None else bounds.step(status.checkpoint_step),
        save_seconds=bounds.seconds(status.save_seconds),
        deadline=bounds.moment(status.deadline),
    )
    beyond = [name for name in _CHECKED if getattr(kept, name) != getattr(status, name)]
    said = [f"its status has an impossible {name}, which is left out" for name in beyond]
    warnings = [bounds.text(each, bounds.WARNING_BYTES_MAX) for each in (*status.warnings, *said)]
    return replace(kept, warnings=tuple(warnings[-bounds.WARNINGS_MAX :]))


_CHECKED = (
    "heartbeat", "written_at", "step", "steps_per_second", "loss", "checkpoint", "checkpoint_step",
    "save_seconds", "deadline",
)  # fmt: skip


def ended(
    seen: tuple[str, ...], status: AgentStatus | None, marker: bytes, notes: tuple[str, ...] = ()
) -> Observation:
    """A session that has left its result, the incarnations `seen` of it being these."""
    try:
        if len(marker) > bounds.RESULT_BYTES_MAX:
            raise ValueError(f"it is larger than {bounds.size_text(bounds.RESULT_BYTES_MAX)}")
        result = _result(wire.decode(Result, marker))
    except ValueError as error:
        return unreadable_result(seen, status, bounds.text(str(error), bounds.MESSAGE_BYTES_MAX), notes)
    return Observation(Sighting.ENDED, seen, status, result, notes=notes)


def unreadable_result(
    seen: tuple[str, ...], status: AgentStatus | None, reason: str, notes: tuple[str, ...] = ()
) -> Observation:
    """A session that has left something in the place of its result, and so is over."""
    detail = f"its result cannot be read: {reason}"
    return Observation(Sighting.ENDED, seen, status, ending=Outcome.CRASHED, detail=detail, notes=notes)


def _result(found: Result) -> Result:
    return replace(
        found,
        incarnation=bounds.text(found.incarnation, bounds.INCARNATION_BYTES_MAX),
        exit_code=None if found.exit_code is None or abs(found.exit_code) > 2**31 else found.exit_code,
        step=bounds.step(found.step),
        message=bounds.text(found.message, bounds.MESSAGE_BYTES_MAX),
        tail=bounds.text(found.tail, bounds.TAIL_BYTES_MAX),
    )
