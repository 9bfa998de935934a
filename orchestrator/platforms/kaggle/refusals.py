"""A push that Kaggle answered and did not run: why, and until when.

Pure. Kaggle says no with HTTP 200 and a sentence (docs/references/kaggle.md#refusals). A sentence that is not
known here is a clear failure, never a retry.
"""

from __future__ import annotations

import re

from orchestrator.errors import BackendError, QuotaExhausted, Rejected

SLOT_SECONDS = 120.0  # how soon a slot is asked for again: a session of ours or of the user's own ends
PROJECTED_SECONDS = 900.0  # what a running session reserves shrinks slowly
_SLOTS = re.compile(r"maximum batch .* session count", re.IGNORECASE)
_PROJECTED = re.compile(r"projected to exceed .* quota", re.IGNORECASE)
_WEEKLY = re.compile(r"maximum weekly .* quota", re.IGNORECASE)


def refusal(error: str, *, now: float, refresh_at: float | None, backend: str) -> BackendError:
    """The error to raise; `refresh_at` is when the quota is renewed, as last heard (unix seconds)."""
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
    """Of a kernel that would run without what it needs."""
    listed = ", ".join(sources)
    return Rejected(
        f"Kaggle does not know what was to be mounted: {listed}", backend=backend, operation="launch"
    )
