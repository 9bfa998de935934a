"""A hundred months of routing: the product's plan, against what landed before, two simple rules and a bound.

    python -m benchmarks.router [--traces 100] [--seed 0] [--processes 2] [--json]

Each seed is one month of jobs on Kaggle, Colab, an own GPU and its CPU, with true speeds, losses and refusals
that no policy knows (benchmarks/routing). Even seeds are streams, odd ones campaigns. Every figure stands
beside its aim; the command fails if one is missed. A simulation, so the machine matters only for how long it
takes. `landed` is the router before it planned: each run judged alone, in the order of submission.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

from benchmarks.routing import policies
from benchmarks.routing.bound import makespan
from benchmarks.routing.crowds import measure
from benchmarks.routing.months import Decide, Month, Outcome
from benchmarks.routing.traces import HOUR, draw

POLICIES: dict[str, Callable[[], Decide]] = {
    "planned": policies.planned,
    "landed": policies.landed,
    "kaggle": policies.all_on_kaggle,
    "greedy": policies.greedy,
}
QUEUED = 1000


@dataclass(frozen=True)
class Played:
    """One month under one policy; hours, except the shares."""

    finish_mean: float
    finish_max: float
    makespan: float
    useful: float
    expired: float
    overspent: float
    sessions: int
    unfinished: int


@dataclass(frozen=True)
class Result:
    """One month: how each policy did, and the least makespan possible."""

    seed: int
    kind: str
    jobs: int
    bound: float
    played: dict[str, Played]

    def ratio(self, policy: str) -> float:
        """The makespan, in bounds."""
        return self.played[policy].makespan / self.bound

    @property
    def later(self) -> float:
        """The plan's makespan, in that of the better of the two simple rules."""
        simple = min(self.played["kaggle"].makespan, self.played["greedy"].makespan)
        return self.played["planned"].makespan / simple


@dataclass(frozen=True)
class Aim:
    name: str
    wanted: str
    found: str
    met: bool


def play(seed: int) -> Result:
    """All policies on the month of this seed."""
    trace = draw(seed)
    played = {name: _played(Month(trace).play(decide())) for name, decide in POLICIES.items()}
    feasible = min(each.makespan for each in played.values() if not each.unfinished) * HOUR
    bound = makespan(trace, feasible) / HOUR
    return Result(seed, trace.kind, len(trace.arrivals), bound, played)


def _played(outcome: Outcome) -> Played:
    return Played(
        statistics.mean(outcome.finishes) / HOUR,
        max(outcome.finishes) / HOUR,
        outcome.makespan / HOUR,
        outcome.spent.useful / outcome.spent.best if outcome.spent.best else 1.0,
        outcome.expired / outcome.refreshed if outcome.refreshed else 0.0,
        outcome.overspent / HOUR,
        outcome.sessions,
        outcome.unfinished,
    )


# --- The aims -------------------------------------------------------------------------------------------


def aims(results: Sequence[Result]) -> list[Aim]:
    """What was aimed at, and what came of it."""
    found = [_at_most("mean finish / landed's, all traces", _finish(results), 0.60)]
    for kind, most in (("stream", 1.05), ("campaign", 1.40)):
        of_kind = [each for each in results if each.kind == kind]
        if of_kind:
            median = partial(_median, of_kind)
            found.append(_at_most(f"mean finish / landed's, {kind}s", _finish(of_kind), None))
            found.append(_at_most(f"makespan / bound, median of {kind}s", median("planned"), most,
                                  f"landed {median('landed'):.2f}"))  # fmt: skip
    later = [each.later for each in results]
    planned = [each.played["planned"] for each in results]
    longest = max(each.played["landed"].finish_max for each in results)
    slowest = max(each.finish_max for each in planned)
    return [
        *found,
        _at_most("traces > 5 % longer than both simple rules", _share(later, 1.05), 0.10),
        _at_most("traces > 15 % longer", _share(later, 1.15), 0.0, f"longest {max(later):.2f}"),
        _at_most("runs that starve (unfinished)", float(sum(each.unfinished for each in planned)), 0.0,
                 f"slowest run {slowest:.0f} h, landed's {longest:.0f} h"),
        _at_least("useful share / that of the best interval",
                  statistics.mean(p.useful for p in planned), 0.97),
        _at_most("quota expired while work waited", statistics.mean(p.expired for p in planned), 0.02),
        _at_most("quota overspent, hours", max(p.overspent for p in planned), 0.0),
    ]  # fmt: skip


def _finish(results: Sequence[Result]) -> float:
    """The mean of the mean finishes, in that of the landed router."""
    planned, landed = (
        statistics.mean(each.played[name].finish_mean for each in results) for name in ("planned", "landed")
    )
    return planned / landed


def _median(results: Sequence[Result], policy: str) -> float:
    return statistics.median(each.ratio(policy) for each in results)


def _share(values: Sequence[float], above: float) -> float:
    return sum(value > above for value in values) / len(values)


def _at_most(name: str, value: float, most: float | None, note: str = "") -> Aim:
    found = f"{value:.3g}" + (f" ({note})" if note else "")
    return Aim(name, "" if most is None else f"≤ {most:g}", found, most is None or value <= most + 1e-6)


def _at_least(name: str, value: float, least: float) -> Aim:
    return Aim(name, f"≥ {least:g}", f"{value:.3g}", value >= least)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        results = list(pool.map(play, range(options.seed, options.seed + options.traces)))
    crowd = measure(QUEUED)
    name = f"ms of a tick's decisions, {QUEUED:,} queued"
    found = [*aims(results), _at_most(name, crowd.later, 50.0, f"the first {crowd.first:.0f}")]
    if options.json:
        print(json.dumps({"aims": [asdict(each) for each in found], "traces": [asdict(r) for r in results]}))
    else:
        _print(results, found)
    return 0 if all(each.met for each in found) else 1


def _print(results: Sequence[Result], found: Sequence[Aim]) -> None:
    print(f"{'hours, medians':16}" + "".join(f"{name:>12}" for name in POLICIES) + f"{'bound':>12}")
    for kind in dict.fromkeys(each.kind for each in results):
        rows = [each for each in results if each.kind == kind]
        for what in ("finish_mean", "finish_max", "makespan"):
            medians = [statistics.median(getattr(r.played[p], what) for r in rows) for p in POLICIES]
            bound = f"{statistics.median(r.bound for r in rows):12.1f}" if what == "makespan" else ""
            label = f"{kind[:8]} {what.removeprefix('finish_')}"
            print(f"{label:16}" + "".join(f"{median:12.1f}" for median in medians) + bound)
    print()
    for aim in found:
        mark = "" if not aim.wanted else ("met" if aim.met else "MISSED")
        print(f"{aim.name:46} {aim.wanted:>8}  {aim.found:40} {mark}")


if __name__ == "__main__":
    sys.exit(main())
