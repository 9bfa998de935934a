"""A run's metrics as one series over all its sessions: which reports count, and what is kept of very many.

A later session resumes from a checkpoint. What an earlier one reported after that checkpoint's step was
trained again, so it is dropped. Of the same step the newest report counts. Pure; reads no file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.core import bounds

METRICS_MAX = 256  # names, if the caller asks for none
POINTS_MAX = 2000  # of one metric
POINTS_TOTAL_MAX = 256_000  # of all metrics together


class Point(NamedTuple):
    """One report of one metric. `session` is its number; `at` the unix time, if the script reported one."""

    step: int
    value: float
    session: int
    at: float | None = None


@dataclass(frozen=True)
class Curve:
    """One metric, its points ordered by step.

    `reports`: how many numbers were reported for it, repeated steps included. If `thinned`, there were too
    many: of each stretch of reports the lowest and the highest are kept. `not_finite` counts the reports that
    were NaN or infinite, which are no points. `last` is the newest report.
    """

    name: str
    points: tuple[Point, ...]
    reports: int
    thinned: bool
    not_finite: int
    last: Point | None


class Report(NamedTuple):
    """One line of progress. `metrics` also holds numbers that are not finite."""

    step: int
    metrics: dict[str, float]
    at: float | None


def report(line: bytes) -> Report | None:
    """The report in a line of progress; None if there is none. What is not a number is left out of it."""
    if len(line) > bounds.PROGRESS_LINE_BYTES_MAX:
        return None
    try:
        document = json.loads(line)
        step = document["step"]
        if isinstance(step, bool) or not isinstance(step, int) or bounds.step(step) is None:
            return None
        given = document.get("metrics")
        items = given.items() if isinstance(given, dict) else ()
        metrics = {name: value for name, each in items if (value := _number(each)) is not None}
        return Report(step, metrics, bounds.moment(_number(document.get("time"))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number with hundreds of digits
        return math.inf if value > 0 else -math.inf


def last_steps(resumed: Iterable[tuple[int, int]]) -> dict[int, int | None]:
    """Session → the last of its steps that counts; None: all of them. `resumed` holds the number of each
    session that ran, and the step that it resumed from."""
    found: dict[int, int | None] = {}
    lowest: int | None = None
    for session, step in sorted(resumed, reverse=True):
        found[session] = lowest
        lowest = step if lowest is None else min(lowest, step)
    return found


class Merging:
    """Merges the reports of a run's sessions, which must come in the order of the sessions.

    Takes only the metrics in `names`; without any, the first `METRICS_MAX` that appear. Keeps at most
    `points` of each metric, and fewer if there are many metrics. `malformed` counts lines that are no
    reports, and `dropped` the reports of steps that were trained again.
    """

    def __init__(self, names: Collection[str] = (), points: int = POINTS_MAX) -> None:
        self._names = frozenset(names)
        self._kept: dict[str, _Kept] = {}
        self._others: set[str] = set()
        self._points = points
        self.malformed = 0
        self.dropped = 0

    @property
    def left_out(self) -> tuple[str, ...]:
        """Names of the other metrics; not more than `bounds.METRICS_MAX`."""
        return tuple(sorted(self._others))

    def take(self, line: bytes, session: int, last_step: int | None) -> None:
        """Takes one line of a session. Reports after its `last_step` are dropped."""
        found = report(line)
        if found is None:
            self.malformed += 1
        elif last_step is not None and found.step > last_step:
            self.dropped += 1
        else:
            for name, value in found.metrics.items():
                if (kept := self._of(name)) is not None:
                    kept.add(Point(found.step, value, session, found.at))

    def curves(self) -> tuple[Curve, ...]:
        """What was merged, in the order in which the metrics appeared."""
        return tuple(kept.curve(name) for name, kept in self._kept.items())

    def _of(self, name: str) -> _Kept | None:
        found = self._kept.get(name)
        if found is not None:
            return found
        wanted = name in self._names if self._names else len(self._kept) < METRICS_MAX
        if not wanted or len(name.encode(errors="replace")) > bounds.METRIC_NAME_BYTES_MAX:
            if len(self._others) < bounds.METRICS_MAX:
                self._others.add(name[: bounds.METRIC_NAME_BYTES_MAX])
            return None
        self._make_room()
        return self._kept.setdefault(name, _Kept(self._points))

    def _make_room(self) -> None:
        """Keeps fewer points of each metric if one more would be too much."""
        while self._points > 16 and self._points * (len(self._kept) + 1) > POINTS_TOTAL_MAX:
            self._points //= 2
            for kept in self._kept.values():
                kept.shrink(self._points)


_Stretch = tuple[Point, ...]  # the lowest and the highest of some reports, in their order; or one alone


class _Kept:
    """The reports of one metric. Of a stretch of `_width` reports, the lowest and the highest are kept; when
    there are too many stretches, two become one."""

    def __init__(self, points_max: int) -> None:
        self._stretches_max = max(2, points_max // 2)
        self._width = 2  # of two reports both are kept, so nothing is lost
        self._stretches: list[_Stretch] = []
        self._open: _Stretch = ()
        self._in_open = 0
        self.reports = 0
        self.not_finite = 0
        self.last: Point | None = None

    def add(self, point: Point) -> None:
        self.reports += 1
        if not math.isfinite(point.value):
            self.not_finite += 1
            return
        self.last = point
        if len(self._open) < 2 or not _between(point, *self._open):
            self._open = _extremes((*self._open, point))
        self._in_open += 1
        if self._in_open == self._width:
            self._stretches.append(self._open)
            self._open, self._in_open = (), 0
            self._join()

    def shrink(self, points_max: int) -> None:
        self._stretches_max = max(2, points_max // 2)
        self._join()

    def _join(self) -> None:
        while len(self._stretches) >= self._stretches_max:
            whole = self._stretches
            odd = whole.pop() if len(whole) % 2 else ()
            self._stretches = [_extremes(whole[i] + whole[i + 1]) for i in range(0, len(whole), 2)]
            self._open = _extremes(odd + self._open)
            self._in_open += self._width if odd else 0
            self._width *= 2

    def curve(self, name: str) -> Curve:
        latest = {point.step: point for point in self._points()}  # of one step the newest counts
        ordered = tuple(latest[step] for step in sorted(latest))
        return Curve(name, ordered, self.reports, self._width > 2, self.not_finite, self.last)

    def _points(self) -> Iterator[Point]:
        for stretch in self._stretches:
            yield from stretch
        yield from self._open
        if self.last is not None:
            yield self.last


def _between(point: Point, one: Point, other: Point) -> bool:
    return one.value <= point.value <= other.value or other.value <= point.value <= one.value


def _extremes(points: tuple[Point, ...]) -> _Stretch:
    """The lowest and the highest, in the order in which they came."""
    if len(points) <= 2:
        return points
    places = range(len(points))
    low = min(places, key=lambda place: points[place].value)
    high = max(places, key=lambda place: points[place].value)
    return tuple(points[place] for place in sorted({low, high}))
