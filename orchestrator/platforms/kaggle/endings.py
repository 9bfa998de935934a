"""How a kernel without a result of ours ended: an outcome and a text, from its status, log and the quota.

Pure functions. A user's cancel and the session limit give the same state and differ only in the time:
docs/references/kaggle.md#how-sessions-end
"""

from __future__ import annotations

import json
import re

from orchestrator.core.order import Outcome
from orchestrator.platforms.kaggle.runner import SAYS
from orchestrator.platforms.kaggle.values import Pool, Quotas, Status

SAVED = "NEW_SCRIPT"  # saved but not run: not yet, or never if the run was refused
WAITING = frozenset({"QUEUED", SAVED})
SAVING = "CANCEL_REQUESTED"
COMPLETE = "COMPLETE"
OVER = frozenset({COMPLETE, "ERROR", "CANCEL_ACKNOWLEDGED"})
_NEAR = 0.97  # of the session limit: a session that ended later was ended by the limit
_USED_UP_SECONDS = 300.0
_TOO_LONG = "exceeded the max allowed execution duration"
_MACHINE = re.compile(rf"^{SAYS}\S+ on a (gpu|tpu|cpu) for (\d+) s$", re.MULTILINE)
_LAST_LINES, _LAST_CHARS = 5, 1000


def how(status: Status, log: str, session_seconds: float, quotas: Quotas) -> tuple[Outcome, str]:
    """How the kernel ended, and why. One that is COMPLETE has a result, although it may never appear.

    `log` is the kernel's log as listed with its output: a JSON array as text, or empty. It says which machine
    the kernel had and for how long. If it is still empty, any quota may be the kernel's, and its limit is
    taken to be `session_seconds`.
    """
    seconds, said = _log(log)
    machine = _MACHINE.search(said)
    limit = float(machine[2]) if machine else session_seconds
    if seconds >= _NEAR * limit or _TOO_LONG in status.message:
        return Outcome.LOST, "Kaggle ended it at the session limit, without a result"
    pools = {"gpu": quotas.gpu, "tpu": quotas.tpu}
    own = {machine[1]} if machine else pools.keys()
    used_up = [name.upper() for name, pool in pools.items() if name in own and pool and _used_up(pool)]
    if used_up:
        return Outcome.QUOTA_EXHAUSTED, f"the {' and '.join(used_up)} quota was used up while it ran"
    if status.state == COMPLETE:
        return Outcome.LOST, "Kaggle reports it as complete, and does not show its result"
    if status.state == "CANCEL_ACKNOWLEDGED":
        return Outcome.LOST, "it was cancelled on Kaggle, or its time-out ended it"
    words = ": ".join(filter(None, (status.message, _end(said))))
    return Outcome.CRASHED, f"its kernel failed{': ' + words if words else ''}"


def _used_up(pool: Pool) -> bool:
    return pool.allowed > 0 and pool.allowed - pool.used < _USED_UP_SECONDS


def _log(text: str) -> tuple[float, str]:
    """The log's duration in seconds, and its text. Zero and empty if it cannot be parsed."""
    try:
        entries = [each for each in json.loads(text) if isinstance(each, dict)]
    except (ValueError, TypeError):
        return 0.0, ""
    times = [each["time"] for each in entries if isinstance(each.get("time"), int | float)]
    return max(times, default=0.0), "".join(str(each.get("data", "")) for each in entries)


def _end(said: str) -> str:
    return "\n".join(said.splitlines()[-_LAST_LINES:])[-_LAST_CHARS:]
