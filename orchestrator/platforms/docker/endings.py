"""What a container's end without a result means, from the engine's own word. Pure: reads no engine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from orchestrator.core.order import Outcome

_KILLED = 137  # 128 + SIGKILL
_NO_PROGRAM = (126, 127)  # as a shell says it, and the init that starts the agent


def no_python(python: str) -> str:
    """Said of an image without the interpreter that the agent is started with."""
    return f"the image has no `{python}` that starts: it must hold Python 3.11 or newer"


def how(
    state: Mapping[str, object], *, wall_seconds: float | None, asked: bool, said: str, python: str
) -> tuple[Outcome, str]:
    """`state` is inspect's; `wall_seconds` when it is killed, if ever; `asked`: it had been asked to stop;
    `said` is what it printed last, `python` what it was started with."""
    code = state.get("ExitCode")
    if code == _KILLED and wall_seconds is not None and _lived(state) > wall_seconds:
        return Outcome.LOST, "it was killed: it ran past its session limit"
    if code == _KILLED and asked:
        return Outcome.LOST, "it was killed: it had been asked to stop and did not leave"
    if state.get("OOMKilled"):
        return Outcome.OUT_OF_MEMORY, "the whole container was killed for want of memory"
    if code == _KILLED:
        return Outcome.LOST, "the container was killed (docker kill, or its engine went down)"
    words = f": {said}" if said else ""
    if code in _NO_PROGRAM:
        return Outcome.DENIED, f"{no_python(python)}{words}"
    return Outcome.LOST, f"the container ended with exit code {code} and no result{words}"


def moment(text: str) -> datetime:
    """RFC 3339 with nanoseconds, which datetime does not read."""
    seconds, _, rest = text.partition(".")
    return datetime.fromisoformat(seconds + rest.lstrip("0123456789") if rest else text).astimezone(UTC)


def _lived(state: Mapping[str, object]) -> float:
    began, ended = moment(str(state["StartedAt"])), moment(str(state["FinishedAt"]))
    return (ended - began).total_seconds()
