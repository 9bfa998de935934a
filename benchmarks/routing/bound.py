"""What no policy can beat: the least makespan of a month, by linear programme.

It knows everything beforehand: arrivals, true speeds, losses, refusals. A job may be cut and moved at any
moment for nothing, but runs in one place at a time. No place gives more than its slots, no window more than
its quota. A place whose sessions were taken away while it refused new ones stands still until it takes them
again. A session of full length loses its set-up and save, and each loss a set-up. All this only relaxes what
a policy meets, so no policy's makespan is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from scipy.optimize import linprog
from scipy.sparse import coo_array

from benchmarks.routing.traces import DAY, HOUR, START, WEEK, Arrival, Trace
from orchestrator.core.calendar import slot_pool
from orchestrator.core.estimate import save_seconds
from orchestrator.core.offer import Offer, Quota

Key = TypeVar("Key")
GRID = 12 * HOUR  # arrivals count from the grid point before them, which only relaxes
LATE_SECONDS = 3 * DAY  # those of the last days decide, and count from their own time


def makespan(trace: Trace, feasible_by: float) -> float:
    """The least makespan in seconds. `feasible_by` is one that some policy reached."""
    marks = _marks(trace, START + feasible_by)
    last = max(_released(trace, each) for each in trace.arrivals)
    low, high = next(k for k, mark in enumerate(marks) if mark >= last), len(marks) - 2
    low = min(low, high)
    while low < high:
        middle = (low + high) // 2
        if _solve(trace, marks[: middle + 2]) is not None:
            high = middle
        else:
            low = middle + 1
    into = _solve(trace, marks[: high + 2])
    return (marks[high] + into if into is not None else marks[high + 1]) - START


def _released(trace: Trace, arrival: Arrival) -> float:
    if arrival.at > max(each.at for each in trace.arrivals) - LATE_SECONDS:
        return arrival.at
    return START + (arrival.at - START) // GRID * GRID


def _marks(trace: Trace, end: float) -> list[float]:
    """The ends of all spans in which nothing changes: arrivals, refreshes of quotas, days."""
    marks = {START, end, *(_released(trace, each) for each in trace.arrivals)}
    for offer in trace.offers:
        if offer.quota is not None and offer.quota.window_seconds is not None:
            at = trace.refresh_at[offer.platform]
            while at < end:
                marks.add(at)
                at += offer.quota.window_seconds
    last = max(_released(trace, each) for each in trace.arrivals)
    while last + DAY < end:
        last += DAY
        marks.add(last)
    return sorted(mark for mark in marks if mark <= end)


def _closed_seconds(trace: Trace, offer: Offer, begin: float, end: float) -> float:
    """For how long of a span nothing can run in a place."""
    weather, closed = trace.weather[offer.platform, offer.accelerator], 0.0
    until = begin
    for at in weather.losses:
        if at >= end:
            break
        open_at = next((stop for start, stop in weather.refusals if start <= at < stop), at)
        open_at += offer.traits.setup_seconds
        if open_at > max(begin, until):
            closed += (
                min(end, open_at) - max(begin, at, until)
                if min(end, open_at) > max(begin, at, until)
                else 0.0
            )
            until = max(until, open_at)
    return closed


def _efficiency(arrival: Arrival, offer: Offer) -> float:
    """The share of a session that is training, at best."""
    wall = offer.traits.session_seconds
    if wall is None:
        return 1.0
    whole = wall - offer.traits.wall_margin_seconds
    return (whole - offer.traits.setup_seconds - save_seconds(arrival.job, offer)) / whole


def _solve(trace: Trace, marks: Sequence[float]) -> float | None:
    """How long of the last span is needed so that all jobs are done in it; None if it is too short."""
    programme = _Programme(trace, marks)
    pools = [slot_pool(offer) for offer in trace.offers]
    slots = {slot_pool(offer): offer.slots for offer in trace.offers}
    for job in range(len(trace.arrivals)):
        programme.finish(job)
    for (span, _), columns in programme.of(lambda job, _place, span: (span, job)).items():
        programme.limit(span, columns, slots=1)
    for (span, place), columns in programme.of(lambda _job, place, span: (span, place)).items():
        programme.limit(span, columns, trace.offers[place].slots, place)
    for (span, pool), columns in programme.of(lambda _job, place, span: (span, pools[place])).items():
        programme.limit(span, columns, slots[pool])
    programme.keep_quotas()
    return programme.solved()


class _Programme:
    """How long each job runs in each place in each span; column 0: how long the last span must be."""

    def __init__(self, trace: Trace, marks: Sequence[float]) -> None:
        self._trace = trace
        self._spans = list(pairwise(marks))
        self._columns: dict[tuple[int, int, int], int] = {}
        for job, arrival in enumerate(trace.arrivals):
            begins = _released(trace, arrival)
            for place, offer in enumerate(trace.offers):
                for span, (begin, _) in enumerate(self._spans):
                    if offer.accelerator in arrival.rates and begin >= begins:
                        self._columns[job, place, span] = len(self._columns) + 1
        self._rows: list[int] = []
        self._at: list[int] = []
        self._values: list[float] = []
        self._bounds: list[float] = []

    def of(self, key: Callable[[int, int, int], Key]) -> dict[Key, list[int]]:
        """The columns by job, place and span, as `key` groups them."""
        found: dict[Key, list[int]] = {}
        for where, column in self._columns.items():
            found.setdefault(key(*where), []).append(column)
        return found

    def _at_most(self, entries: Iterable[tuple[int, float]], bound: float) -> None:
        for column, value in entries:
            self._rows.append(len(self._bounds))
            self._at.append(column)
            self._values.append(value)
        self._bounds.append(bound)

    def finish(self, job: int) -> None:
        """The job's work is done."""
        arrival = self._trace.arrivals[job]
        shares = [
            arrival.rates[offer.accelerator] * _efficiency(arrival, offer) / arrival.samples
            if offer.accelerator in arrival.rates
            else 0.0
            for offer in self._trace.offers
        ]
        mine = ((column, -shares[place]) for (j, place, _), column in self._columns.items() if j == job)
        self._at_most(mine, -1.0)

    def limit(self, span: int, columns: Sequence[int], slots: int, place: int | None = None) -> None:
        """These run no longer than so many slots allow in the span."""
        entries = [(column, 1.0) for column in columns]
        if span == len(self._spans) - 1:
            self._at_most([*entries, (0, -float(slots))], 0.0)
            return
        begin, end = self._spans[span]
        closed = 0.0 if place is None else _closed_seconds(self._trace, self._trace.offers[place], begin, end)
        self._at_most(entries, slots * max(0.0, end - begin - closed))

    def keep_quotas(self) -> None:
        """No window gives more than its quota."""
        offers = self._trace.offers
        taken: dict[tuple[str, int], list[tuple[int, float]]] = {}
        allowed: dict[tuple[str, int], float] = {}
        for (_, place, span), column in self._columns.items():
            offer, quota = offers[place], offers[place].quota
            if quota is not None and quota.allowed_seconds is not None:
                window = offer.platform, _window(self._trace, offer.platform, quota, self._spans[span][0])
                taken.setdefault(window, []).append((column, quota.taken(1.0)))
                allowed[window] = quota.taken(quota.allowed_seconds)
        for window, entries in taken.items():
            self._at_most(entries, allowed[window])

    def solved(self) -> float | None:
        """The least column 0; None if there is no solution."""
        count = len(self._columns) + 1
        shape = len(self._bounds), count
        matrix = coo_array((self._values, (self._rows, self._at)), shape=shape).tocsr()
        begin, end = self._spans[-1]
        limits = [(0.0, end - begin), *[(0.0, None)] * (count - 1)]
        cost = [1.0, *[0.0] * (count - 1)]
        found = linprog(cost, A_ub=matrix, b_ub=self._bounds, bounds=limits, method="highs")
        return float(found.x[0]) if found.status == 0 else None


def _window(trace: Trace, platform: str, quota: Quota, at: float) -> int:
    """The number of the quota's window at a time."""
    refresh = trace.refresh_at[platform]
    return 0 if at < refresh else 1 + int((at - refresh) // (quota.window_seconds or WEEK))
