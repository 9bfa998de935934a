"""How a kernel ended that left no result of ours: Kaggle's word, its log and the quota → outcome, in words.

Pure. The states are facts/kaggle.md §3's; a user's cancel and the wall share one and differ by the time.
"""

from __future__ import annotations

import json

from orchestrator.core.session import Outcome
from orchestrator.platforms.kaggle.values import Pool, Quotas, Status

WAITING = frozenset({"QUEUED", "NEW_SCRIPT"})
SAVING = "CANCEL_REQUESTED"
OVER = frozenset({"COMPLETE", "ERROR", "CANCEL_ACKNOWLEDGED"})
_NEAR = 0.97  # of the session's limit: what ended later ended by it
_USED_UP_SECONDS = 300.0
_TOO_LONG = "exceeded the max allowed execution duration"
_LAST_LINES, _LAST_CHARS = 5, 1000


def how(status: Status, log: str, session_seconds: float, quotas: Quotas) -> tuple[Outcome, str]:
    """`log` is the kernel's, as listed with its output: a JSON array in a text, or empty."""
    seconds, said = _log(log)
    if status.state == "COMPLETE":
        return Outcome.COMPLETED, "Kaggle calls it complete, and it has left no result"
    if seconds >= _NEAR * session_seconds or _TOO_LONG in status.message:
        return Outcome.LOST, "it was ended at Kaggle's session limit, with no result"
    pools = {"GPU": quotas.gpu, "TPU": quotas.tpu}
    used_up = [name for name, pool in pools.items() if pool is not None and _used_up(pool)]
    if used_up:
        return Outcome.QUOTA_EXHAUSTED, f"the {' and '.join(used_up)} quota was used up while it ran"
    if status.state == "CANCEL_ACKNOWLEDGED":
        return Outcome.LOST, "it was cancelled on Kaggle"
    words = ": ".join(filter(None, (status.message, said)))
    return Outcome.CRASHED, f"its kernel failed{': ' + words if words else ''}"


def _used_up(pool: Pool) -> bool:
    return pool.allowed > 0 and pool.allowed - pool.used < _USED_UP_SECONDS


def _log(text: str) -> tuple[float, str]:
    """For how long the log goes on, in seconds, and its last lines; zero and nothing where it is unfit."""
    try:
        entries = [each for each in json.loads(text) if isinstance(each, dict)]
    except (ValueError, TypeError):
        return 0.0, ""
    times = [each["time"] for each in entries if isinstance(each.get("time"), int | float)]
    lines = "".join(str(each.get("data", "")) for each in entries).splitlines()
    return max(times, default=0.0), "\n".join(lines[-_LAST_LINES:])[-_LAST_CHARS:]
