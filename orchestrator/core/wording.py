"""How the core writes spans and dates in its reasons, so that every reason reads alike."""

from __future__ import annotations

from datetime import UTC, datetime

_FAR = 253_402_300_800.0  # the year 10000


def span(seconds: float) -> str:
    """A duration in the unit a person would use: `45 s`, `90 min`, `16.3 h`, `61 days`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{seconds / 86400:,.0f} days"


def date(unix_seconds: float) -> str:
    """A time to the minute, in UTC: `2026-11-20 21:52Z`."""
    if not 0 <= unix_seconds < _FAR:
        return "in thousands of years"
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%MZ")
