"""Dates and a timeline for people: the expected sessions of several runs, one line each.

In letters, so that it reads the same in colour, without it and aloud. Knows no client and asks nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from orchestrator.core.offer import Hop

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
STYLES = ("cyan", "green", "yellow", "red", "bold", "dim")
BAR_CELLS_MIN = 20
HOUR = 3600
STEPS = (60, 300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR, 7 * 24 * HOUR, 28 * 24 * HOUR)
MARK_CELLS = 9
_FAR = 253_402_300_800.0 - 2 * 86400.0  # the year 10000, in every zone


def when(at: float, zone: ZoneInfo, now: float) -> str:
    """`Fri 27 Nov 09:00`, in the zone; with the year if it is another one than now."""
    if not 0 <= at < _FAR:
        return "in thousands of years"
    local = datetime.fromtimestamp(at, zone)
    same = local.year == datetime.fromtimestamp(now, zone).year
    return local.strftime("%a %d %b %H:%M" if same else "%a %d %b %Y %H:%M")


def zone_text(at: float, zone: ZoneInfo) -> str:
    """`Europe/Berlin (CET)`."""
    short = datetime.fromtimestamp(at, zone).strftime("%Z")
    return zone.key if short == zone.key else f"{zone.key} ({short})"


class Timeline:
    """From `now` until the last end that has a date; each cell of a bar is one slice of that time. `offers`
    are the letters' meanings, in the order in which they were met."""

    def __init__(self, runs: Sequence[Sequence[Hop]], now: float, cells: int) -> None:
        self.now = now
        self.end = min(_FAR, max((hop.end for hops in runs for hop in hops), default=now))
        self.cells = max(BAR_CELLS_MIN, cells)
        self.offers: list[tuple[str, str]] = []
        for hop in (hop for hops in runs for hop in hops):
            place = hop.platform, hop.accelerator
            if place not in self.offers:
                self.offers.append(place)

    @property
    def cell_seconds(self) -> float:
        return max(1.0, (self.end - self.now) / self.cells)

    def letter_of(self, place: tuple[str, str]) -> str:
        return LETTERS[self.offers.index(place) % len(LETTERS)]

    def style(self, letter: str) -> str:
        return STYLES[LETTERS.index(letter) % len(STYLES)]

    def bar(self, hops: Iterable[Hop], since: float | None = None) -> str:
        """A letter where a session is expected, a dot before the first one and between them, but not before
        `since`."""
        cells = [" "] * self.cells
        last = 0 if since is None else self._cell(since)
        for hop in hops:
            first = self._cell(hop.start)
            until = max(first + 1, min(self.cells, self._cell(hop.end)))
            cells[last:first] = "." * max(0, first - last)
            cells[first:until] = self.letter_of((hop.platform, hop.accelerator)) * (until - first)
            last = max(last, until)
        return "".join(cells).rstrip()

    def axis(self, zone: ZoneInfo) -> str:
        """Local times, as many as there is room for: days where they begin, hours in between; months if it is
        a matter of years."""
        step = next((each for each in STEPS if each / self.cell_seconds >= MARK_CELLS), 0)
        midnight = "%a %d" if step else "%Y-%m"
        step = step or STEPS[-1] * math.ceil(MARK_CELLS * self.cell_seconds / STEPS[-1])
        local = datetime.fromtimestamp(self.now, zone)
        tick = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        line, free = "", 0
        while (at := tick.timestamp()) < self.end:
            mark = "|" + tick.strftime(midnight if tick.hour == tick.minute == 0 else "%H:%M")
            place = self._cell(at)
            if at >= self.now and place >= free and place + len(mark) <= self.cells:
                line = line.ljust(place) + mark
                free = place + len(mark) + 1
            if at + step >= _FAR:
                break
            tick += timedelta(seconds=step)
        return line

    def _cell(self, at: float) -> int:
        return min(self.cells - 1, max(0, int((min(at, self.end) - self.now) / self.cell_seconds)))
