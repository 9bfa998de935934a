"""A deadline as a person writes it → a time. Pure: the caller passes the time and the zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from orchestrator.errors import InputError

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
VALID = (
    "`Fri 09:00`, `tomorrow 18:00`, `09:00`, `2026-11-27 09:00` (with Z or +01:00 if you like) or `+36h` "
    "(m, h or d: minutes, hours or days)"
)
LETTERS_MIN = 3  # of a day's name
YEARS_MAX = 10
_IN = re.compile(r"([+-]) ?([0-9]+(?:\.[0-9]+)?) ?([mhd])")
_NEAR = {"yesterday": -1, "today": 0, "tomorrow": 1}  # the first is always over, and told so
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3])[:.]([0-5][0-9])")
_DATED = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<hour>\d{1,2}):(?P<rest>\d{2}(?::\d{2})?) ?(?P<zone>Z|[+-]\d{2}:\d{2})?)?"
)


def due(given: str | float | None, now: float, timezone: str) -> float | None:
    """A deadline in words or in unix seconds, or none. Raises InputError as `deadline` does."""
    if isinstance(given, str):
        return deadline(given, now, timezone)
    if given is not None and not now < given < now + YEARS_MAX * 366 * 86400.0:
        raise InputError(f"the deadline {given} is not a time of the next {YEARS_MAX} years, in unix seconds")
    return given


def none_of_a_schedule(job: object) -> InputError:
    """What to say of a deadline for the job with a schedule in this file."""
    return InputError(
        f"{job} has a schedule, which has no deadline; of a new run each time, the job's "
        "`route.finish_within` says how soon it should be done"
    )


def deadline(text: str, now: float, timezone: str) -> float:
    """The time in unix seconds that is meant at `now` in this zone. A time of day without a date is its next
    one; a date without a time of day is its end. Raises InputError that lists what is valid."""
    at = _deadline(text.strip(), now, ZoneInfo(timezone))
    if at is None:
        raise InputError(f"the deadline {text!r} is not a time; valid: {VALID}")
    if at <= now:
        raise InputError(f"the deadline {text!r} is over{_told(at, ZoneInfo(timezone))}")
    if at > now + YEARS_MAX * 366 * 86400.0:
        raise InputError(f"the deadline {text!r} is more than {YEARS_MAX} years away")
    return at


def _told(at: float, zone: ZoneInfo) -> str:
    """When that was; empty for an instant that is before the first year in this zone."""
    try:
        return datetime.fromtimestamp(at, zone).strftime(": it was at %Y-%m-%d %H:%M %Z")
    except (ValueError, OverflowError):
        return ""


def _deadline(text: str, now: float, zone: ZoneInfo) -> float | None:
    if found := _IN.fullmatch(text):
        return now + float(f"{found[1]}{found[2]}") * _UNITS[found[3]]
    if dated := _DATED.fullmatch(text):
        return _dated(dated, zone)
    words = text.lower().split()
    clock = _CLOCK.fullmatch(words[-1]) if words else None
    hour, minute = (int(clock[1]), int(clock[2])) if clock else (24, 0)
    day = words[:-1] if clock else words
    if len(day) > 1 or (not day and not clock):
        return None
    return _next(day[0] if day else "", hour, minute, datetime.fromtimestamp(now, zone))


def _dated(given: re.Match[str], zone: ZoneInfo) -> float | None:
    try:
        if given["hour"] is None:
            return _instant(datetime.fromisoformat(given["day"]).replace(tzinfo=zone) + timedelta(days=1))
        clock = f"{given['hour']:0>2}:{given['rest']}{given['zone'] or ''}"
        found = datetime.fromisoformat(f"{given['day']}T{clock}")
        return _instant(found if found.tzinfo is not None else found.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        return None


def _next(day: str, hour: int, minute: int, local: datetime) -> float | None:
    """The next such time of day, on the named day if there is one."""
    offsets = range(8)
    if day in _NEAR:
        offsets = range(_NEAR[day], _NEAR[day] + 1)
    elif day:
        named = [name for name in DAYS if len(day) >= LETTERS_MIN and name.startswith(day.rstrip("."))]
        if len(named) != 1:
            return None
        ahead = (DAYS.index(named[0]) - local.weekday()) % 7
        offsets = range(ahead, ahead + 8, 7)
    at = None
    for offset in offsets:
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0) + timedelta(days=offset)
        at = _instant(midnight + timedelta(hours=hour, minutes=minute))
        if at > local.timestamp():
            break
    return at


def _instant(local: datetime) -> float:
    """In unix seconds. A time that clocks skip counts as if they had not been changed yet; of one that comes
    twice the first counts."""
    return local.astimezone(UTC).timestamp()
