"""What a session reports about itself, read safely from its outbox. The rules are the same for every outbox.

Values outside their bounds are left out and named in a note. Knows neither where the bytes come from nor what
is decided from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.core import bounds, gpu_use, wire
from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.core.order import AgentStatus, Result
from orchestrator.files import Odd
from orchestrator.session.layout import INCARNATION, OUTBOX, RESULT, STATUS

_INCARNATION = re.compile(r"[0-9a-z]{1,32}")


def incarnations(data: bytes | None) -> tuple[str, ...]:
    """The ids that agents left, in order. There are two if a platform started a session twice. Malformed ids
    are left out."""
    words = [] if data is None else data.decode(errors="replace").split()
    return tuple(word for word in words if _INCARNATION.fullmatch(word))[:2]


def status(data: bytes | None) -> AgentStatus | None:
    """The agent's last status; None if it is missing or unreadable."""
    if data is None or len(data) > bounds.STATUS_BYTES_MAX:
        return None
    try:
        found = wire.decode(AgentStatus, data)
    except ValueError:
        return None
    return within_bounds(found) if _INCARNATION.fullmatch(found.incarnation) else None


def within_bounds(status: AgentStatus) -> AgentStatus:
    """The status without values outside their bounds. A warning names what was left out."""
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
        unshipped_seconds=bounds.seconds(status.unshipped_seconds),
        gpu_use=gpu_use.within_bounds(status.gpu_use),
    )
    beyond = [name for name in _CHECKED if getattr(kept, name) != getattr(status, name)]
    said = [f"its status has an impossible {name}, which is left out" for name in beyond]
    warnings = [bounds.text(each, bounds.WARNING_BYTES_MAX) for each in (*status.warnings, *said)]
    return replace(kept, warnings=tuple(warnings[-bounds.WARNINGS_MAX :]))


_CHECKED = (
    "heartbeat", "written_at", "step", "steps_per_second", "loss", "checkpoint", "checkpoint_step",
    "save_seconds", "deadline", "unshipped_seconds", "gpu_use",
)  # fmt: skip


class Speaking(Protocol):
    """The part of an outbox that shows how the session is doing."""

    def small(self, name: str) -> bytes | None:
        """One of `layout.WHOLE`; None if it is missing. Raises Odd for the wrong kind of thing."""


@dataclass(frozen=True)
class Said:
    """One reading. `unfit`: why the result cannot be read, if there is one. `notes`: what was not read and
    why; the text is the same each time."""

    incarnations: tuple[str, ...] = ()
    status: AgentStatus | None = None
    result: Result | None = None
    unfit: str = ""
    notes: tuple[str, ...] = ()


def said(outbox: Speaking) -> Said:
    """Reads the incarnation first and the result last, so that the result's agent had started before."""
    notes: list[str] = []
    first = _small(outbox, INCARNATION, notes)
    data = _small(outbox, STATUS, notes)
    found = status(data)
    if data is not None and found is None:
        notes.append(f"{OUTBOX}/{STATUS} is not a status: it was not read")
    seen = incarnations(first)
    if first is None and found is not None:  # some outboxes show only the status before the session's end
        seen = (found.incarnation,)
    marker = _small(outbox, RESULT, notes)
    if marker is None:
        return Said(seen, found, notes=tuple(notes))
    try:
        return Said(seen, found, result(marker), notes=tuple(notes))
    except ValueError as error:
        return Said(seen, found, unfit=bounds.text(str(error), bounds.MESSAGE_BYTES_MAX), notes=tuple(notes))


def _small(outbox: Speaking, name: str, notes: list[str]) -> bytes | None:
    try:
        return outbox.small(name)
    except Odd as odd:
        notes.append(f"{odd}: it was not read")
        return None


def result(data: bytes) -> Result:
    """The agent's result, within bounds. Raises ValueError if it cannot be read."""
    if len(data) > bounds.RESULT_BYTES_MAX:
        raise ValueError(f"it is larger than {bounds.size_text(bounds.RESULT_BYTES_MAX)}")
    found = wire.decode(Result, data)
    return replace(
        found,
        incarnation=bounds.text(found.incarnation, bounds.INCARNATION_BYTES_MAX),
        exit_code=None if found.exit_code is None or abs(found.exit_code) > 2**31 else found.exit_code,
        step=bounds.step(found.step),
        message=bounds.text(found.message, bounds.MESSAGE_BYTES_MAX),
        tail=bounds.text(found.tail, bounds.TAIL_BYTES_MAX),
        reached=bounds.step(found.reached),
        error=bounds.text(found.error, bounds.WARNING_BYTES_MAX),
    )
