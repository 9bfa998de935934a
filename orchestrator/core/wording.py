"""How messages write durations, dates, sizes, counts and unknown names, so that all look the same. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches

_COMPARED_LENGTH_MAX = 64  # of a name; comparing takes time with the square of the length
_LARGE = 999_999_999.5
_FAR = 253_402_300_800.0  # the year 10000


def number_text(value: float | None, digits: int = 3) -> str:
    """Any number in about ten columns: `13.2`, `0.0431`, `1,250`, `1e+300`, `nan`. Whole numbers are exact
    below a billion, others have so many digits."""
    if value is None:
        return "–"
    if isinstance(value, int) and abs(value) < _LARGE:
        return f"{value:,}"
    if 999.5 <= abs(value) < _LARGE:
        return f"{value:,.{max(0, digits - len(str(int(abs(value)))))}f}"
    try:
        return f"{value:.{digits}g}"
    except OverflowError:  # a whole number that no float holds
        return f"{Decimal(value):.{digits - 1}e}"


def span(seconds: float) -> str:
    """A duration in the unit a person would use: `45 s`, `90 min`, `16.3 h`, `61 days`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 72 * 3600 else f"{_whole_text(seconds / 86400)} days"


def _whole_text(value: float) -> str:
    return number_text(round(value) if math.isfinite(value) else value)


def quota_text(seconds: float, units: float = 0.0) -> str:
    """`5.4 h of quota`; `12.5 units (10.4 h)` if the platform counts in units."""
    return f"{units_text(units)} ({span(seconds)})" if units else f"{span(seconds)} of quota"


def units_text(units: float) -> str:
    """`0.25 units`, `12.5 units`, `140 units`."""
    return f"{_whole_text(units) if units >= 100 else number_text(units)} units"


def money_text(amount: float, currency: str) -> str:
    """`12.30 EUR`."""
    return f"{price_text(amount)} {currency}"


def price_text(amount: float) -> str:
    """`12.30`."""
    return f"{amount:,.2f}" if abs(amount) < 1e7 else number_text(amount)


def date(unix_seconds: float) -> str:
    """A time to the minute, in UTC: `2026-11-20 21:52Z`."""
    if not 0 <= unix_seconds < _FAR:
        return "in thousands of years"
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%MZ")


def size_text(size: float) -> str:
    """`963 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB" if size < 1000 else f"{_whole_text(size)} TB"


def count_text(count: int, noun: str) -> str:
    """`1 session`, `3 sessions`."""
    return f"{number_text(count)} {noun}{'' if count == 1 else 's'}"


def help_page(topic: str, heading: str = "") -> str:
    """How a message cites a page of docs/, or one of its headings: by the command that prints it."""
    return f"`orchestrator help {' '.join(filter(None, (topic, heading)))}`"


def nearest(given: str, valid: Iterable[str], count: int = 1) -> list[str]:
    """Up to `count` of the nearest names, ignoring case. Empty if no name is near, or if `given` is too long
    to compare quickly."""
    if len(given) > _COMPARED_LENGTH_MAX:
        return []
    folded = {name.lower(): name for name in valid}
    return [folded[name] for name in get_close_matches(given.lower(), list(folded), n=count)]


def did_you_mean(given: str, valid: Iterable[str], count: int = 1) -> str:
    """`did you mean 'total'? ` with the nearest names; empty if there are none."""
    near = nearest(given, valid, count)
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def suggested(given: str, valid: Iterable[str]) -> str:
    """The same as the end of a sentence: `; did you mean 'total'?`."""
    near = did_you_mean(given, valid)
    return f"; {near.rstrip()}" if near else ""


def with_valid(problem: str, valid: str) -> str:
    """`given 'x'; valid: a whole number`, where the problem may end with a question."""
    return f"{problem}{'' if problem.endswith('?') else ';'} valid: {valid}"


def unknown(what: str, given: str, valid: Iterable[str], *, suggest: bool = True) -> str:
    """`unknown store 'hme'; did you mean 'home'? valid: home, s3`: how every message reports an unknown name.
    `what` is the text after "unknown", including the name if it may be shown."""
    names = list(valid)
    if not names:
        return f"unknown {what}"
    return f"unknown {what}; {did_you_mean(given, names) if suggest else ''}valid: {', '.join(names)}"
