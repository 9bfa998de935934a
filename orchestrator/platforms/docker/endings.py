"""What it means that a container ended without a result, from the engine's report. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from orchestrator.core.order import Outcome

_KILLED = 137  # 128 + SIGKILL
_NO_PROGRAM = (126, 127)  # exit codes of a shell, and of the init that starts the agent


def no_python(python: str) -> str:
    """The error for an image without the Python that the agent needs."""
    return f"the image has no `{python}` that works: it needs Python 3.11 or newer"


def how(
    state: Mapping[str, object], *, wall_seconds: float | None, asked: bool, said: str, python: str
) -> tuple[Outcome, str]:
    """How a container ended, and why.

    `state` comes from inspect. `wall_seconds` is the session limit, if any. `asked`: it had been asked to
    stop. `said` is its last output, and `python` the interpreter that it was started with.
    """
    code = state.get("ExitCode")
    if code == _KILLED and wall_seconds is not None and _lived(state) > wall_seconds:
        return Outcome.LOST, "it was killed: it ran longer than its session limit"
    if code == _KILLED and asked:
        return Outcome.LOST, "it was killed: it did not end after it had been asked to stop"
    if state.get("OOMKilled"):
        return Outcome.OUT_OF_MEMORY, "the whole container was killed because it ran out of memory"
    if code == _KILLED:
        return Outcome.LOST, "the container was killed (by docker kill, or because its engine went down)"
    words = f": {said}" if said else ""
    if code in _NO_PROGRAM:
        return Outcome.REJECTED, f"{no_python(python)}{words}"
    return Outcome.LOST, f"the container ended with exit code {code} and no result{words}"


def moment(text: str) -> datetime:
    """Parses RFC 3339 with nanoseconds, which datetime cannot."""
    seconds, _, rest = text.partition(".")
    return datetime.fromisoformat(seconds + rest.lstrip("0123456789") if rest else text).astimezone(UTC)


def _lived(state: Mapping[str, object]) -> float:
    began, ended = moment(str(state["StartedAt"])), moment(str(state["FinishedAt"]))
    return (ended - began).total_seconds()
