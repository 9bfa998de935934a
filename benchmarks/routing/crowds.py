"""How long it takes to decide who gets a free slot while many runs wait. No ledger and no platform."""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace

from benchmarks.routing.traces import START, Trace, draw
from orchestrator.core.run import RunRecord
from orchestrator.engine.market import Market
from orchestrator.engine.queue import Queue
from orchestrator.engine.surveying import Surveyed

ROUNDS = 7


@dataclass(frozen=True)
class Crowd:
    """Milliseconds of processor time: of the first decision, when nothing is known of the runs, and of later
    ones."""

    first: float
    later: float


def measure(count: int) -> Crowd:
    """With so many runs waiting, all of different jobs, for one tick that starts as many as can start."""
    trace = draw(1)
    market = _market(trace)
    queue = Queue(market, lambda _job: (), lambda _run, _doing: nullcontext())
    waiting = _waiting(trace, count)
    times = []
    for number in range(ROUNDS):
        queue.stir([])
        market.begin((), START + number)
        began = time.process_time()
        for turn in queue.turns({}, waiting, START + number):
            market.judged(turn.record, market.case((), turn.openings, turn.others))
        times.append(1000.0 * (time.process_time() - began))
    return Crowd(times[0], statistics.median(times[1:]))


def _market(trace: Trace) -> Market:
    market = Market(tuple(dict.fromkeys(offer.platform for offer in trace.offers)))
    for name in dict.fromkeys(offer.platform for offer in trace.offers):
        market.take(Surveyed(name, tuple(each for each in trace.offers if each.platform == name)), START)
    return market


def _waiting(trace: Trace, count: int) -> dict[str, RunRecord]:
    """Runs of as many jobs as wanted: the trace's, again and again under other names."""
    found = {}
    for number in range(count):
        arrival = trace.arrivals[number % len(trace.arrivals)]
        job = replace(arrival.job, name=f"{arrival.job.name}-{number}", seed=number)
        found[job.name] = RunRecord(job.name, job, START - number)
    return found
