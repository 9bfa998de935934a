"""Sessions that vanish after 20 minutes, 90 minutes or 12 hours: the interval that follows the losses.

    python -m benchmarks.losses [--json] [--seeds 40]

It is compared with the best fixed interval, which nobody knows beforehand, with always 60 s, and with always
300 s. A simulation, so the machine does not matter. A job of 24 hours of training runs in sessions whose
lifetimes are drawn from the seed: independent of their age, or all nearly the same. A loss costs what was not
yet in the home store, and a set-up. The interval is the agent's own, with the estimate that the order has; it
learns from the sessions of this job only. Each row has the total times, divided by that of the best fixed
interval. The command fails if the product's is more than 5 % longer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from orchestrator.agent.plan import Costs, interval
from orchestrator.agent.settings import Settings
from orchestrator.core.estimate import UPLOAD_FACTOR, mean_time_to_failure
from orchestrator.core.offer import Lifetimes, Offer, Traits

MINUTE, HOUR = 60.0, 3600.0
NEED = 24 * HOUR
NEVER = 20 * NEED  # sessions that always vanish before their first checkpoint
SETUP = 2 * MINUTE
FIXED = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
SETTINGS = Settings()
LENT = Traits(owned=False)
AIM = 1.05


@dataclass(frozen=True)
class Saves:
    """What one save costs, in seconds: how long the training stands still, how long until it is there, and
    how long its upload takes."""

    name: str
    stall: float
    save: float
    upload: float

    @property
    def measured(self) -> Costs:
        return Costs((self.save,), (0.2 * self.save,), (self.upload,))


KINDS = (
    Saves("10 MB", 0.1, 0.3, 1.0),
    Saves("963 MB, written beside the training", 0.1, 1.2, 40.0),
    Saves("963 MB, the training waits", 4.0, 4.0, 40.0),
)
Policy = Callable[[Lifetimes | None, Saves], float]


def learned(lived: Lifetimes | None, saves: Saves) -> float:
    """The product's own: what the order says, by the rule of the agent."""
    offer = Offer("colab", "T4", LENT, lifetimes=lived)
    told = None if lived is None else mean_time_to_failure(offer)
    return interval(None, None, saves.measured, SETTINGS, told)


def always(seconds: float) -> Policy:
    return lambda _lived, _saves: seconds


def lifetimes(mean: float, clustered: bool, random: Random) -> Iterator[float]:
    while True:
        yield random.gauss(mean, 0.03 * mean) if clustered else random.expovariate(1.0 / mean)


def total(policy: Policy, saves: Saves, lives: Iterator[float]) -> float:
    """Seconds until the job is done."""
    done = clock = 0.0
    lived: Lifetimes | None = None
    while clock < NEVER:
        life = max(1.0, next(lives))
        kept, alive, over = session(policy(lived, saves), saves, NEED - done, life)
        done, clock = done + kept, clock + alive
        if over:
            return clock
        before = lived or Lifetimes(0, 0, 0.0)
        lived = Lifetimes(before.sessions + 1, before.lost + 1, before.seconds + life)
    return clock


def session(every: float, saves: Saves, need: float, life: float) -> tuple[float, float, bool]:
    """(training that is kept, seconds that passed, whether the job is done) of one session."""
    now, trained, kept, upload_at = SETUP, 0.0, 0.0, 0.0
    pending: list[tuple[float, float]] = []  # (when it is in the store, how much training it has)
    while True:
        step = min(every, need - trained)
        now, trained = now + step + saves.stall, trained + step
        if now > life:
            return max([kept, *(work for at, work in pending if at <= life)]), life, False
        begins = max(now + saves.save, upload_at)
        if trained >= need:
            end = begins + saves.upload
            return (need, end, True) if end <= life else (kept, life, False)
        kept = max([kept, *(work for at, work in pending if at <= now)])
        pending = [each for each in pending if each[0] > now]
        if begins <= now + saves.save + every:  # else a newer one is sent instead of it
            pending.append((begins + saves.upload, trained))
            upload_at = begins + max(SETTINGS.uplink_ship, UPLOAD_FACTOR * saves.upload)


def compared(mean: float, clustered: bool, saves: Saves, seeds: int) -> dict[str, float]:
    def mean_total(policy: Policy) -> float:
        drawn = (lifetimes(mean, clustered, Random(seed)) for seed in range(seeds))
        return sum(total(policy, saves, lives) for lives in drawn) / seeds

    fixed = {seconds: mean_total(always(seconds)) for seconds in FIXED}
    best = min(fixed, key=fixed.__getitem__)
    return {
        "best": best, "hours": fixed[best] / HOUR, "learned": mean_total(learned) / fixed[best],
        "always 60": fixed[60.0] / fixed[best], "always 300": fixed[300.0] / fixed[best],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=40)
    options = parser.parse_args()
    found = {
        f"{name}, {'all alike' if clustered else 'at random'}; {saves.name}": compared(
            mean, clustered, saves, options.seeds
        )
        for saves in KINDS
        for name, mean in (("20 min", 20 * MINUTE), ("90 min", 90 * MINUTE), ("12 h", 12 * HOUR))
        for clustered in (False, True)
    }
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{'lost after':60} {'best':>7} {'takes':>8} {'learned':>8} {'60 s':>6} {'300 s':>6}")
        for name, row in found.items():
            print(f"{name:60} {row['best']:5.0f} s {row['hours']:6.1f} h {row['learned']:8.3f} "
                  f"{row['always 60']:6.3f} {row['always 300']:6.3f}")  # fmt: skip
    return 0 if all(row["learned"] <= AIM for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
