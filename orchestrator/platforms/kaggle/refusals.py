"""Why Kaggle refused to run a push, and until when.

Pure. Kaggle refuses with HTTP 200 and a sentence (docs/references/kaggle.md#refusals). A sentence that is
unknown here may be about something that passes: the caller tries again, ever more rarely.
"""

from __future__ import annotations

import re

from orchestrator.errors import BackendError, QuotaExhausted, Refused
from orchestrator.platforms.kaggle.values import Quotas

SLOT_SECONDS = 120.0  # wait before the next request for a slot: a session of ours or the user's may end
PROJECTED_SECONDS = 900.0  # a running session's reservation shrinks slowly
_LEFT_SECONDS = 900.0  # with more than this left, a quota is not used up, whatever a refusal says
_SLOTS = re.compile(r"maximum batch .* session count", re.IGNORECASE)
_PROJECTED = re.compile(r"projected to exceed .* quota", re.IGNORECASE)
_WEEKLY = re.compile(r"maximum weekly .* quota", re.IGNORECASE)


def is_about_quota(error: str) -> bool:
    """Whether the sentence says that the week's quota is used up, which the quota itself can confirm."""
    return _WEEKLY.search(error) is not None and _PROJECTED.search(error) is None


def refusal(error: str, *, now: float, quotas: Quotas | None, pool: str, backend: str) -> BackendError:
    """The error to raise. `quotas`: as read after the refusal; None if they could not be read. `pool`: the
    quota that the session would spend."""
    text = f"Kaggle refuses the session: {error}"
    until = None
    if _PROJECTED.search(error):
        until = now + PROJECTED_SECONDS
    elif _WEEKLY.search(error):
        until, text = _weekly(text, now, quotas, pool)
    elif _SLOTS.search(error):
        until = now + SLOT_SECONDS
    if until is None:
        return Refused(text, backend=backend, operation="launch")
    return QuotaExhausted(text, backend=backend, operation="launch", until=until)


def _weekly(text: str, now: float, quotas: Quotas | None, pool: str) -> tuple[float, str]:
    soon = now + PROJECTED_SECONDS
    if quotas is None:
        return soon, text
    found = {"gpu": quotas.gpu, "tpu": quotas.tpu}.get(pool)
    if found is not None and found.allowed - found.used > _LEFT_SECONDS:
        return soon, f"{text} (its own figures say that {(found.allowed - found.used) / 3600:.1f} h are left)"
    at = quotas.refresh_at
    return (at if at is not None and at > now else soon), text


def invalid(sources: tuple[str, ...], *, backend: str) -> Refused:
    """The error for a kernel that would run without its data."""
    listed = ", ".join(sources)
    text = f"Kaggle does not find the data to mount, which it said was ready: {listed}"
    return Refused(text, backend=backend, operation="launch")
