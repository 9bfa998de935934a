"""Why Kaggle refused to run a push, and until when.

Pure. Kaggle refuses with HTTP 200 and a sentence (docs/references/kaggle.md#refusals). A sentence that is
unknown here is a permanent failure and is never retried.
"""

from __future__ import annotations

import re

from orchestrator.errors import BackendError, QuotaExhausted, Rejected

SLOT_SECONDS = 120.0  # wait before the next request for a slot: a session of ours or the user's may end
PROJECTED_SECONDS = 900.0  # a running session's reservation shrinks slowly
_SLOTS = re.compile(r"maximum batch .* session count", re.IGNORECASE)
_PROJECTED = re.compile(r"projected to exceed .* quota", re.IGNORECASE)
_WEEKLY = re.compile(r"maximum weekly .* quota", re.IGNORECASE)


def refusal(error: str, *, now: float, refresh_at: float | None, backend: str) -> BackendError:
    """The error to raise. `refresh_at` is when the quota is renewed, as last reported (unix seconds)."""
    text = f"Kaggle refuses the session: {error}"
    until = None
    if _PROJECTED.search(error):
        until = now + PROJECTED_SECONDS
    elif _WEEKLY.search(error):
        until = refresh_at if refresh_at is not None and refresh_at > now else now + PROJECTED_SECONDS
    elif _SLOTS.search(error):
        until = now + SLOT_SECONDS
    if until is None:
        return Rejected(text, backend=backend, operation="launch")
    return QuotaExhausted(text, backend=backend, operation="launch", until=until)


def invalid(sources: tuple[str, ...], *, backend: str) -> Rejected:
    """The error for a kernel that would run without its data."""
    listed = ", ".join(sources)
    return Rejected(f"Kaggle cannot find the data to mount: {listed}", backend=backend, operation="launch")
