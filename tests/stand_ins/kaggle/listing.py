"""Pages of a list, and the answers that kernels and datasets have in common. Knows no service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from tests.stand_ins.kaggle.settings import Refusal, Warts

Item = TypeVar("Item")
_SIZE = 20
_SIZE_MAX = 200


def page(items: Sequence[Item], request: dict[str, Any], warts: Warts) -> tuple[Sequence[Item], str]:
    """One page by `pageSize` and `pageToken` or `page`, with the next token or ""
    (docs/references/kaggle.md#output)."""
    size = min(int(request.get("pageSize") or _SIZE), warts.page_items_max or _SIZE_MAX)
    token = request.get("pageToken") or ""
    start = int(token) if token else size * (int(request.get("page") or 1) - 1)
    following = start + size
    return items[start:following], str(following) if following < len(items) else ""


def missing(permission: str, warts: Warts) -> Refusal:
    """The answer for things that do not exist or are not ours
    (docs/references/kaggle.md#missing-or-denied)."""
    if warts.missing_is_403:
        return Refusal(403, f"Permission '{permission}' was denied")
    return Refusal(404, "Not found")


def iso_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
