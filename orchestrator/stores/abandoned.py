"""Uploads that were begun and not finished: a store may keep, and charge for, what no listing shows.

Decides which of them nobody continues: those under a key of the layout, begun more than ABANDONED_SECONDS
ago by the store's own clock. Everything else is left alone: others may use the same place. Must never know
which store it is.
"""

from __future__ import annotations

import re

from orchestrator.stores.store import Store, Upload, uploads
from orchestrator.stores.unencrypted import SUFFIX

ABANDONED_SECONDS = 24 * 3600.0
_SHA256 = "[0-9a-f]{64}"
# The keys of `checkpoints` and `deposits`. Nothing else that we put is large enough to go in parts.
_LARGE = re.compile(
    rf"runs/(?:schedule\.)?[a-z0-9][a-z0-9-]*/(?:"
    rf"blobs/g[0-9]{{2,9}}-[0-9a-z]{{1,32}}/{_SHA256}|(?:material|inputs)/{_SHA256}"
    rf"|checkpoints/[0-9a-z-]+/manifest\.json|deposit/[0-9]{{4}}-[0-9]{{10}}-{_SHA256}\.json"
    rf")(?:{re.escape(SUFFIX)})?"
)


def is_abandoned(upload: Upload) -> bool:
    """Whether it is ours and nobody continues it."""
    return upload.age_seconds >= ABANDONED_SECONDS and _LARGE.fullmatch(upload.key) is not None


def abandoned(store: Store) -> tuple[Upload, ...]:
    """Those that may be removed."""
    return tuple(each for each in uploads(store) if is_abandoned(each))
