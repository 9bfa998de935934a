"""Times for people, in their own zone.

Reasons and sentences come from the ledger and the core with their times in UTC (`2026-11-20 21:52Z`). What
prints them turns these into the reader's zone, so that all times of one answer look the same. JSON keeps UTC.
Imports little and reads the config only if there is a time to turn, because lists start with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from orchestrator.client.home import CONFIG_BYTES_MAX
from orchestrator.errors import InputError
from orchestrator.files import read_own

# What `orchestrator.core.wording.date` and `orchestrator.clock.utc_text` write.
_STAMP = re.compile(r"(?<![\w-])(\d{4}-\d\d-\d\d \d\d:\d\d)(:\d\d)?Z(?!\w)")
_ZONE = re.compile(r"""^timezone:[ \t]+(["']?)([A-Za-z0-9_+/-]+)\1[ \t]*(#.*)?$""", re.MULTILINE)


def localiser(config: Path) -> Callable[[str], str]:
    """Turns the times of a text into the zone of this config, or of this machine."""
    zones: list[tzinfo | None] = []

    def turn(text: str) -> str:
        if "Z" not in text or _STAMP.search(text) is None:
            return text
        if not zones:
            zones.append(zone_of(config))
        return localised(text, zones[0])

    return turn


def zone_of(config: Path) -> tzinfo | None:
    """The config's `timezone`; None: this machine's own. Looks at that line only, because lists do not parse
    the config, and work even if it is wrong."""
    try:
        text = read_own(config, CONFIG_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, InputError):
        return None
    found = _ZONE.search(text.replace("\r\n", "\n"))
    if found is None:
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(found[2])
    except (KeyError, ValueError, OSError):
        return None


def localised(text: str, zone: tzinfo | None) -> str:
    """The text with its times in the zone: `2026-11-20 22:52 CET`. In UTC itself they stay as they are."""

    def local(stamp: re.Match[str]) -> str:
        try:
            at = datetime.fromisoformat(stamp[1] + (stamp[2] or "")).replace(tzinfo=UTC).astimezone(zone)
        except (ValueError, OverflowError, OSError):  # no such day, or beyond the year 9999
            return stamp[0]
        if at.tzname() in ("UTC", "GMT") and not at.utcoffset():
            return stamp[0]
        return f"{at:%Y-%m-%d %H:%M}{stamp[2] or ''} {at.tzname()}"

    return _STAMP.sub(local, text)
