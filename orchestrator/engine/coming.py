"""The fires to come of schedules, for plans and forecasts: schedules × now → fires, and for which of them the
queue keeps no place. Reads no ledger and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile

from orchestrator import cron
from orchestrator.core.scene import Coming
from orchestrator.core.schedule import Schedule
from orchestrator.engine.reserving import is_frequent

COMING_SECONDS = 7 * 86400.0  # how far ahead fires are laid out
FIRES_MAX = 7  # of each schedule


def coming(
    schedules: Iterable[Schedule], now: float, asked: str = ""
) -> tuple[tuple[Coming, ...], frozenset[str]]:
    """The fires of the next days in order, at most FIRES_MAX of each schedule, and the schedules for which no
    place is kept. Of the one that is `asked` about, the next fire is among them however late it is."""
    found: list[Coming] = []
    unkept: set[str] = set()
    for each in schedules:
        if not each.active:
            continue
        after = max(each.counts_from(now), now)
        fires = tuple(islice(cron.planned_after(each.recurrence, each.name, after), FIRES_MAX))
        near = tuple(takewhile(lambda fire: fire.planned <= now + COMING_SECONDS, fires))
        if not near and each.name == asked:
            near = fires[:1]
        found += (Coming(each.name, each.job, fire.planned, fire.closes, each.store) for fire in near)
        if is_frequent(each, now):
            unkept.add(each.name)
    return tuple(sorted(found, key=lambda fire: (fire.planned, fire.schedule))), frozenset(unkept)
