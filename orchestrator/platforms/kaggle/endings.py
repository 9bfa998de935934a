"""How a kernel ended that left no result of ours: Kaggle's word, its log and the quota → outcome, in words.

Pure. A user's cancel and the wall share one state and differ by the time:
docs/references/kaggle.md#how-sessions-end
"""

from __future__ import annotations

import json
import re

from orchestrator.core.order import Outcome
from orchestrator.platforms.kaggle.runner import SAYS
from orchestrator.platforms.kaggle.values import Pool, Quotas, Status

SAVED = "NEW_SCRIPT"  # and not run: not yet, or never, where the run was refused
WAITING = frozenset({"QUEUED", SAVED})
SAVING = "CANCEL_REQUESTED"
OVER = frozenset({"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"})
_NEAR = 0.97  # of the session's limit: what ended later ended by it
_USED_UP_SECONDS = 300.0
_TOO_LONG = "exceeded the max allowed execution duration"
_MACHINE = re.compile(rf"^{SAYS}\S+ on a (gpu|tpu|cpu) for (\d+) s$", re.MULTILINE)
_LAST_LINES, _LAST_CHARS = 5, 1000


def how(status: Status, log: str, session_seconds: float, quotas: Quotas) -> tuple[Outcome, str]:
    """`log` is the kernel's, as listed with its output: a JSON array in a text, or empty. What machine it had
    and for how long stands there; where it is empty yet, any quota may be its own, and `session_seconds` its
    limit."""
    seconds, said = _log(log)
    machine = _MACHINE.search(said)
    limit = float(machine[2]) if machine else session_seconds
    if status.state == "COMPLETE":
        return Outcome.COMPLETED, "Kaggle calls it complete, and it has left no result"
    if seconds >= _NEAR * limit or _TOO_LONG in status.message:
        return Outcome.LOST, "it was ended at Kaggle's session limit, with no result"
    pools = {"gpu": quotas.gpu, "tpu": quotas.tpu}
    own = {machine[1]} if machine else pools.keys()
    used_up = [name.upper() for name, pool in pools.items() if name in own and pool and _used_up(pool)]
    if used_up:
        return Outcome.QUOTA_EXHAUSTED, f"the {' and '.join(used_up)} quota was used up while it ran"
    if status.state == "CANCEL_ACKNOWLEDGED":
        return Outcome.LOST, "it was cancelled on Kaggle"
    words = ": ".join(filter(None, (status.message, _end(said))))
    return Outcome.CRASHED, f"its kernel failed{': ' + words if words else ''}"


def _used_up(pool: Pool) -> bool:
    return pool.allowed > 0 and pool.allowed - pool.used < _USED_UP_SECONDS


def _log(text: str) -> tuple[float, str]:
    """For how long the log goes on, in seconds, and what it says; zero and nothing where it is unfit."""
    try:
        entries = [each for each in json.loads(text) if isinstance(each, dict)]
    except (ValueError, TypeError):
        return 0.0, ""
    times = [each["time"] for each in entries if isinstance(each.get("time"), int | float)]
    return max(times, default=0.0), "".join(str(each.get("data", "")) for each in entries)


def _end(said: str) -> str:
    return "\n".join(said.splitlines()[-_LAST_LINES:])[-_LAST_CHARS:]
