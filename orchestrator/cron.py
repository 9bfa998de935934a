"""When a schedule fires and when its window is open: cron lines, time zones and clock changes.

The only module that knows a zone. Everything that it returns is an instant in unix seconds, so that nothing
below has to know one. Reads no clock: it is given the time. docs/schedules.md states the rules.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import re
import sysconfig
import zoneinfo
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import chain, islice, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from orchestrator.core.job import Job, Recurrence, Window
from orchestrator.core.schedule import CATCH_UP_MAX, Agenda, Planned, Schedule

if TYPE_CHECKING:
    from cronsim import CronSim

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
CRON_CHARACTERS_MAX = 200
WALK_MAX = 10_000  # instants looked at after a downtime; 36 microseconds each
NEWEST_SECONDS = 600.0  # looked back at first
UPCOMING_MAX = 1000
_OUTSIDE_MAX = 500  # days in a row on which the line names no instant in the window
_LONG_AGO = datetime(2023, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()  # before a leap year
_FIELDS = {
    "second": "0–59",
    "minute": "0–59",
    "hour": "0–23",
    "day-of-month": "1–31, L (the last) or LW (the last from Monday to Friday)",
    "month": "1–12 or JAN–DEC",
    "day-of-week": "0–7 or SUN–SAT, 5L (the last Friday) or 5#2 (the second Friday)",
}
_RANGES = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day-of-month": (1, 31),
    "month": (1, 12),
    "day-of-week": (0, 7),  # 7 is Sunday, as 0 is
}
_NAMES = {
    "month": ("", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
    "day-of-week": ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"),
}
_CACHED = 256


@dataclass(frozen=True)
class Upcoming:
    """A fire to come. `planned` and `window_end` in unix seconds; `window_end` None: it has no window."""

    name: str
    job: Job
    planned: float
    window_end: float | None


# --- Cron lines -------------------------------------------------------------------------------------------


def problem(cron: str) -> str | None:
    """What is wrong with a cron line, in words; None if nothing is."""
    valid = "valid: minute hour day month weekday, such as '0 1 * * *', or a nickname such as @daily"
    if cron.startswith("@"):
        return None if cron in NICKNAMES else f"unknown nickname; valid: {', '.join(NICKNAMES)}"
    fields = cron.split()
    if len(cron) > CRON_CHARACTERS_MAX or len(fields) not in (5, 6):
        return f"{len(fields)} fields given; {valid} (with six fields, the first is the second)"
    names = list(_FIELDS)[6 - len(fields) :]
    wrong = [
        f"{name.replace('-', ' ')} {field!r} is not {_FIELDS[name]}, a list, a range or a step of these"
        for name, field in zip(names, fields, strict=True)
        if not _is_valid(name, field)
    ]
    wrong += [
        f"{name.replace('-', ' ')} {field!r} has a step that is longer than its range, which would count as "
        "no step at all"
        for name, field in zip(names, fields, strict=True)
        if any(_goes_round(name, term) for term in field.upper().split(","))
    ]
    if wrong:
        return f"{'; '.join(wrong)}; {valid}"
    if next(_instants(cron, "UTC", _LONG_AGO), None) is None:
        return "it never fires: no such date exists"
    return None


def _is_valid(name: str, field: str) -> bool:
    line = " ".join(field if name == each else "*" for each in _FIELDS)
    return field.isascii() and _simulated(line, UTC, _LONG_AGO) is not None


def _goes_round(name: str, term: str) -> bool:
    """Whether the term has a step that reaches no second value of its range. A term such as `5/20` reaches to
    the field's end, as in cronsim."""
    found = re.fullmatch(r"(\*|\w+)(?:-(\w+))?/(\d+)", term)
    if found is None:
        return False
    first, last = _RANGES[name]
    start = first if found[1] == "*" else _number(name, found[1])
    end = last if found[2] is None else _number(name, found[2])
    if start is None or end is None:
        return False
    if start == end:
        end = last
    reached = range(start, end + 1, max(1, int(found[3])))
    return len({each % 7 if name == "day-of-week" else each for each in reached}) < 2


def _number(name: str, text: str) -> int | None:
    """The value that a number or a name such as MON stands for; None for `L` and `LW`."""
    names = _NAMES.get(name, ())
    return names.index(text) if text in names else int(text) if text.isdecimal() else None


def explain(cron: str) -> str:
    """The line in English: `At 01:00 every day`. Empty if that is not possible."""
    found = _simulated(NICKNAMES.get(cron, cron), UTC, _LONG_AGO)
    with suppress(Exception):
        return found.explain() if found is not None else ""
    return ""


def _simulated(line: str, zone: tzinfo, after: float) -> CronSim | None:
    """The library's iterator; None if it refuses the line, in whichever way."""
    from cronsim import CronSim

    try:
        return CronSim(line, datetime.fromtimestamp(after, zone))
    except Exception:  # noqa: BLE001 a line comes from a user or an old ledger, and any error means the same
        return None


def _instants(cron: str, timezone: str, after: float) -> Iterator[float]:
    """The planned instants after `after`, rising.

    Within a doubled hour the library may begin in the past, so what does not come after is left out
    (docs/references/schedules.md).
    """
    zone = _zone(timezone)
    last = after
    found = None if zone is None else _simulated(NICKNAMES.get(cron, cron), zone, after)
    while found is not None:
        try:
            instant = next(found).timestamp()
        except Exception:  # noqa: BLE001 no date within 50 years, or beyond the year 9999
            return
        if instant > last:
            last = instant
            yield instant


@lru_cache(maxsize=_CACHED)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def knows(timezone: str) -> bool:
    """Whether this machine knows the time zone."""
    return _zone(timezone) is not None


# --- Windows ----------------------------------------------------------------------------------------------


def _openings(window: Window, zone: ZoneInfo, around: float) -> Iterator[tuple[float, float]]:
    """The windows of the days around this instant: when each opens and closes."""
    today = datetime.fromtimestamp(around, zone).date()
    for day in (today + timedelta(days=n) for n in range(-2, 4)):
        closing_day = day + timedelta(days=1) if window.closes <= window.opens else day
        opens, closes = _instant(day, window.opens, zone), _instant(closing_day, window.closes, zone)
        if opens < closes:  # else: a clock change swallowed it
            yield opens, closes


def _instant(day: date, minutes: int, zone: ZoneInfo) -> float:
    """When the clocks of the zone first show this time; if they skip it, when they go on after the gap."""
    wanted = datetime.combine(day, time(*divmod(minutes, 60)))
    for _ in range(24 * 60 + 1):
        instant = wanted.replace(tzinfo=zone, fold=0).timestamp()
        if datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0) == wanted:
            return instant
        wanted += timedelta(minutes=1)
    return wanted.replace(tzinfo=UTC).timestamp()


def closes_at(recurrence: Recurrence, at: float) -> float | None:
    """When the window that is open at this instant closes; None if none is open, or if there is none."""
    zone = _zone(recurrence.timezone)
    if recurrence.window is None or zone is None:
        return None
    found = (closes for opens, closes in _openings(recurrence.window, zone, at) if opens <= at < closes)
    return next(found, None)


def opens_after(recurrence: Recurrence, at: float) -> float | None:
    """When the window opens next after this instant; None if there is no window."""
    zone = _zone(recurrence.timezone)
    if recurrence.window is None or zone is None:
        return None
    return next((opens for opens, _ in _openings(recurrence.window, zone, at) if opens > at), None)


# --- Planned instants -------------------------------------------------------------------------------------


def planned_after(recurrence: Recurrence, name: str, after: float) -> Iterator[Planned]:
    """The fires planned after `after`, in order: the instants of the line that fall into the window."""
    outside = 0
    while outside < _OUTSIDE_MAX:
        outside += 1
        instants = _instants(recurrence.cron, recurrence.timezone, after)
        for instant, following in pairwise(chain(instants, (math.inf,))):
            closes = closes_at(recurrence, instant)
            if recurrence.window is not None and closes is None:
                after = instant
                break
            jitter = _jitter(recurrence, name, instant, closes, following)
            outside = 0
            yield Planned(instant, instant + jitter, closes)
        else:
            return
        opens = opens_after(recurrence, after)
        if opens is None:
            return
        after = opens - 1.0


def _jitter(
    recurrence: Recurrence, name: str, planned: float, closes: float | None, following: float
) -> float:
    """The same for the same fire, whoever asks and however often. At most half of what is left of the
    window, and less than the time to the following fire, so that fires keep their order."""
    most = min(recurrence.jitter_seconds, following - planned)
    if closes is not None:
        most = min(most, (closes - planned) / 2)
    if most <= 0:
        return 0.0
    digest = hashlib.sha256(f"{name}\0{planned:.3f}".encode()).digest()
    return float(int(most * int.from_bytes(digest[:8]) / 2**64))


def never_meets_window(recurrence: Recurrence) -> bool:
    """Whether no fire of a valid line ever falls into the window."""
    return next(planned_after(recurrence, "", _LONG_AGO), None) is None


def agenda(schedule: Schedule, now: float) -> Agenda:
    """What is due for the schedule at this time, and what comes next."""
    recurrence = schedule.recurrence
    after = schedule.counts_from(now)
    due = deque[Planned](maxlen=CATCH_UP_MAX)
    oldest, following, walked, cut = None, None, 0, False
    for each in planned_after(recurrence, schedule.name, after):
        if each.at > now:
            following = each
            break
        if walked >= WALK_MAX:
            cut = True
            break
        walked += 1
        oldest = oldest or each
        due.append(each)
    if cut:
        due, following = _newest(recurrence, schedule.name, now, after)
    older = walked - len(due)
    return Agenda(
        tuple(due), older, oldest.planned if oldest is not None and older > 0 else None, following,
        closes_at(recurrence, now), opens_after(recurrence, now), uncounted=cut,
    )  # fmt: skip


def _newest(
    recurrence: Recurrence, name: str, now: float, after: float
) -> tuple[deque[Planned], Planned | None]:
    """After a downtime of more than WALK_MAX instants: the newest CATCH_UP_MAX, and the one that follows.

    Looks further and further back, instead of walking through the whole downtime.
    """
    seconds = NEWEST_SECONDS
    while True:
        due, following = deque[Planned](maxlen=CATCH_UP_MAX), None
        for each in planned_after(recurrence, name, max(after, now - seconds)):
            if each.at > now:
                following = each
                break
            due.append(each)
        if len(due) == CATCH_UP_MAX or now - seconds <= after:
            return due, following
        seconds *= 2


def upcoming(schedules: Iterable[Schedule], now: float, until: float) -> list[Upcoming]:
    """The fires of all active schedules from now until then, in order; at most UPCOMING_MAX of each."""
    found: list[Upcoming] = []
    for schedule in schedules:
        if not schedule.active:
            continue
        after = max(schedule.counts_from(now), now)
        coming = planned_after(schedule.recurrence, schedule.name, after)
        found += (
            Upcoming(schedule.name, schedule.job, each.planned, each.closes)
            for each in islice(takewhile(lambda each: each.planned <= until, coming), UPCOMING_MAX)
        )
    return sorted(found, key=lambda each: (each.planned, each.name))


# --- For people -------------------------------------------------------------------------------------------


def local_text(at: float, timezone: str) -> str:
    """`Thu 2026-11-26 01:00 CET`; with seconds if there are any."""
    zone = _zone(timezone)
    try:
        local = datetime.fromtimestamp(at, UTC if zone is None else zone)
    except (ValueError, OverflowError, OSError):
        return "in thousands of years"
    return local.strftime(f"%a %Y-%m-%d %H:%M{':%S' if local.second else ''} %Z")


def window_text(window: Window) -> str:
    """`22:00–07:00`."""
    return "–".join(f"{each // 60:02}:{each % 60:02}" for each in (window.opens, window.closes))


def database() -> tuple[str, str]:
    """Where the time zones come from and of which version: `the system` or `the package tzdata`, `2026a`."""
    for folder in zoneinfo.TZPATH:
        if (Path(folder) / "Europe" / "Berlin").exists():
            return f"the system ({folder})", _version(Path(folder))
    with suppress(importlib.metadata.PackageNotFoundError):
        return "the package tzdata", importlib.metadata.version("tzdata")
    return f"nowhere ({sysconfig.get_platform()})", "unknown"


def _version(folder: Path) -> str:
    """The version that the system's database names, in one of the two places where that is customary."""
    with suppress(OSError, UnicodeDecodeError, IndexError):
        return (folder / "+VERSION").read_text().split()[0]
    with suppress(OSError, UnicodeDecodeError, IndexError), (folder / "tzdata.zi").open() as stream:
        return stream.readline().rpartition("version ")[2].split()[0]
    return "an unknown version"
