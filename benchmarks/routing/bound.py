"""What no policy can beat: the least makespan of a month, by linear programme.

It knows everything beforehand: arrivals, true speeds, losses, refusals. A job may be cut and moved at any
moment for nothing, but runs in one place at a time; no place gives more than its slots, and no window more than
its quota. A place whose sessions were taken away while it refused new ones stands still until it takes them
again. A session of full length loses its set-up and save, and each loss a set-up. All this only relaxes what a
policy meets, so its makespan cannot be shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from benchmarks.routing.traces import DAY, HOUR, START, Arrival, Place, Trace
from orchestrator.core.estimate import save_seconds
from orchestrator.core.offer import Offer

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


def _closed_seconds(trace: Trace, place: Place, offer: Offer, begin: float, end: float) -> float:
    """For how long of a span nothing can run in a place."""
    weather, closed = trace.weather[place], 0.0
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
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    bounds: list[float] = []  # of the rows, `≤`
    spans = list(zip(marks, marks[1:], strict=False))
    count = 1  # column 0 is the wanted length
    names: dict[tuple[int, int, int], int] = {}
    for j, arrival in enumerate(trace.arrivals):
        for m, offer in enumerate(trace.offers):
            if offer.accelerator in arrival.rates:
                for i, (begin, _) in enumerate(spans):
                    if begin >= _released(trace, arrival):
                        names[j, m, i] = count
                        count += 1

    def row(entries: Sequence[tuple[int, float]], bound: float) -> None:
        rows.extend([len(bounds)] * len(entries))
        columns.extend(column for column, _ in entries)
        values.extend(value for _, value in entries)
        bounds.append(bound)

    for j, arrival in enumerate(trace.arrivals):
        done = [(c, -arrival.rates[trace.offers[m].accelerator] * _efficiency(arrival, trace.offers[m]) / arrival.samples)
                for (jj, m, _), c in names.items() if jj == j]  # fmt: skip
        row(done, -1.0)
    by_job: dict[tuple[int, int], list[tuple[int, float]]] = {}
    by_place: dict[tuple[int, int], list[tuple[int, float]]] = {}
    by_pool: dict[tuple[str, int], list[tuple[int, float]]] = {}
    by_window: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for (j, m, i), c in names.items():
        offer = trace.offers[m]
        by_job.setdefault((j, i), []).append((c, 1.0))
        by_place.setdefault((m, i), []).append((c, 1.0))
        if offer.slot_pool:
            by_pool.setdefault((offer.platform, i), []).append((c, 1.0))
        if offer.quota is not None:
            window = _window(trace, offer, spans[i][0])
            by_window.setdefault((offer.platform, window), []).append((c, offer.quota.taken(1.0)))
    final = len(spans) - 1

    def span(entries: list[tuple[int, float]], i: int, slots: int, closed: float = 0.0) -> None:
        begin, end = spans[i]
        if i == final:
            row([*entries, (0, -float(slots))], 0.0)
        else:
            row(entries, slots * max(0.0, end - begin - closed))

    for (_, i), entries in by_job.items():
        span(entries, i, 1)
    for (m, i), entries in by_place.items():
        offer = trace.offers[m]
        place = offer.platform, offer.accelerator
        span(entries, i, offer.slots, _closed_seconds(trace, place, offer, *spans[i]))
    for (platform, i), entries in by_pool.items():
        span(entries, i, next(o.slots for o in trace.offers if o.platform == platform))
    for (platform, _), entries in by_window.items():
        offer = next(o for o in trace.offers if o.platform == platform)
        assert offer.quota is not None and offer.quota.allowed_seconds is not None
        row(entries, offer.quota.taken(offer.quota.allowed_seconds))
    cost = np.zeros(count)
    cost[0] = 1.0
    matrix = coo_array((values, (rows, columns)), shape=(len(bounds), count)).tocsr()
    begin, end = spans[-1]
    found = linprog(cost, A_ub=matrix, b_ub=np.array(bounds), bounds=[(0, end - begin)] + [(0, None)] * (count - 1),
                    method="highs")  # fmt: skip
    return float(found.x[0]) if found.status == 0 else None


def _window(trace: Trace, offer: Offer, at: float) -> int:
    """The number of the quota's window at a time."""
    assert offer.quota is not None and offer.quota.window_seconds is not None
    refresh = trace.refresh_at[offer.platform]
    return 0 if at < refresh else 1 + int((at - refresh) // offer.quota.window_seconds)
