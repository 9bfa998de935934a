"""What one month brings, drawn from a seed: jobs, their true speeds, sessions taken away, and refusals.

Two kinds. A stream: jobs of all sizes arrive over three weeks. A campaign: all of them are there at once.
Everything is drawn before anything is decided, so every policy meets the same month.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from orchestrator.core.accelerators import catalogue
from orchestrator.core.job import Claim, Job, Precision, Profile, Work
from orchestrator.core.offer import Offer, Quota, Traits, Uplink

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
WEEK = 7 * DAY
START = 1_780_272_000.0  # a Monday
ARRIVING = 3 * WEEK
HORIZON = 26 * WEEK  # a month that is not over by then is given up
KAGGLE, COLAB, HERE = "kaggle", "colab", "here"
KAGGLE_HOURS = 30.0  # a week
COLAB_UNITS, COLAB_UNITS_PER_HOUR = 100.0, 1.2  # of a month, and of a T4
REFERENCE = "T4x2"  # the size of a job is its hours there
HOURS_MAX = 40.0  # route.finish_within refuses what may take a month
GLOBAL_BATCH = 64

KAGGLE_TRAITS = Traits(
    session_seconds=12 * HOUR, wall_margin_seconds=10 * MINUTE, slack_seconds=10 * MINUTE,
    uplink=Uplink.STORE, readable_mid_run=False, hands_over=True, setup_seconds=4 * MINUTE, owned=False,
    metered=True, internet=True,
)  # fmt: skip
COLAB_TRAITS = Traits(
    session_seconds=12 * HOUR, wall_margin_seconds=10 * MINUTE, slack_seconds=10 * MINUTE,
    uplink=Uplink.STORE, fetches=True, setup_seconds=3 * MINUTE, owned=False, metered=True, internet=True,
)  # fmt: skip
HOME_TRAITS = Traits(setup_seconds=20.0, internet=True)

Place = tuple[str, str]


@dataclass(frozen=True)
class Size:
    """Hours on the reference accelerator: the median, the spread of its logarithm, and how often it comes."""

    name: str
    hours: float
    sigma: float
    share: float


SIZES = (Size("small", 0.6, 0.7, 0.6), Size("medium", 4.0, 0.5, 0.3), Size("large", 20.0, 0.5, 0.1))


@dataclass(frozen=True)
class Arrival:
    """A job, when it is submitted, and how many samples a second it truly does on each accelerator."""

    at: float
    job: Job
    rates: dict[str, float]
    size: str

    @property
    def samples(self) -> float:
        return float(self.job.work.total * self.job.work.global_batch)


@dataclass(frozen=True)
class Weather:
    """When a platform takes its sessions away, and the spans in which it refuses new ones. Unix seconds."""

    losses: tuple[float, ...]
    refusals: tuple[tuple[float, float], ...]

    def lost_after(self, at: float) -> float:
        """The first loss after `at`."""
        place = bisect.bisect_right(self.losses, at)
        return self.losses[place] if place < len(self.losses) else math.inf

    def refuses(self, at: float) -> bool:
        place = bisect.bisect_right(self.refusals, (at, math.inf)) - 1
        return place >= 0 and at < self.refusals[place][1]


@dataclass(frozen=True)
class Trace:
    """One month. `refresh_at` is the first refresh of each platform's quota."""

    seed: int
    kind: str
    arrivals: tuple[Arrival, ...]
    offers: tuple[Offer, ...]
    weather: dict[Place, Weather]
    refresh_at: dict[str, float]


def draw(seed: int) -> Trace:
    """The month of this seed; even seeds are streams, odd ones campaigns."""
    random = Random(seed)
    kind = "campaign" if seed % 2 else "stream"
    refresh = {
        KAGGLE: START + random.uniform(0.1, 1.0) * WEEK,
        COLAB: START + random.uniform(0.2, 1.0) * 30 * DAY,
    }
    offers = _offers(random, refresh)
    weather = {(o.platform, o.accelerator): _weather(random, o) for o in offers}
    return Trace(seed, kind, tuple(_arrivals(random, kind)), offers, weather, refresh)


def _offers(random: Random, refresh: dict[str, float]) -> tuple[Offer, ...]:
    slots = random.choice((1, 2))
    hours = Quota(KAGGLE_HOURS * HOUR, refresh[KAGGLE], WEEK, KAGGLE_HOURS * HOUR, "gpu")
    units = Quota.of_units(COLAB_UNITS, COLAB_UNITS_PER_HOUR, refresh_at=refresh[COLAB],
                           window_seconds=30 * DAY, allowed=COLAB_UNITS)  # fmt: skip
    return (
        Offer(KAGGLE, "T4x2", KAGGLE_TRAITS, slots, hours, slot_pool="gpu"),
        Offer(KAGGLE, "P100", KAGGLE_TRAITS, slots, hours, slot_pool="gpu"),
        Offer(COLAB, "T4", COLAB_TRAITS, 1, units, slot_pool="machines"),
        Offer(HERE, "RTX3050", HOME_TRAITS, 1, memory_gb=8.0),
        Offer(HERE, "cpu", HOME_TRAITS, 1, memory_gb=32.0),
    )


def _weather(random: Random, offer: Offer) -> Weather:
    every = {KAGGLE: 120 * HOUR, COLAB: random.choice((2, 4, 8)) * HOUR, HERE: 30 * DAY}[offer.platform]
    losses = tuple(_renewals(random, every))
    if offer.platform == HERE:
        return Weather(losses, ())
    calm, closed = {KAGGLE: (80 * HOUR, 1.5 * HOUR), COLAB: (20 * HOUR, 4 * HOUR)}[offer.platform]
    spans, at = [], START
    while at < START + HORIZON:
        at += random.expovariate(1 / calm)
        end = at + random.expovariate(1 / closed)
        spans.append((at, end))
        at = end
    return Weather(losses, tuple(spans))


def _renewals(random: Random, every: float) -> Iterator[float]:
    at = START
    while at < START + HORIZON:
        at += random.expovariate(1 / every)
        yield at


# --- Jobs -----------------------------------------------------------------------------------------------


def _arrivals(random: Random, kind: str) -> Iterator[Arrival]:
    """Jobs with as much work as a drawn share of what all offers together do while they arrive."""
    weekly = KAGGLE_HOURS + WEEK / HOUR * 0.17 + COLAB_UNITS / COLAB_UNITS_PER_HOUR / 4.3 * 0.5
    load = random.uniform(0.7, 1.2) * 3 if kind == "stream" else random.uniform(1.0, 3.0)
    wanted, drawn = weekly * load, []
    while wanted > 0:
        size = random.choices(SIZES, [each.share for each in SIZES])[0]
        hours = min(size.hours * math.exp(random.gauss(0.0, size.sigma)), HOURS_MAX)
        drawn.append((size, hours))
        wanted -= hours
    for number, (size, hours) in enumerate(drawn):
        at = START + (random.uniform(0.0, ARRIVING) if kind == "stream" else random.uniform(0.0, HOUR))
        yield _arrival(random, number, size, hours, at)


def _arrival(random: Random, number: int, size: Size, hours: float, at: float) -> Arrival:
    """A job whose true rate on the reference accelerator is such that it takes so many hours there."""
    steps_per_second = math.exp(random.gauss(math.log(2.0), 0.5))
    surprise = math.exp(random.gauss(0.0, 0.35))
    row = catalogue[REFERENCE]
    expected_flops = row.mfu * row.peak_flops[Precision.FP16]
    truth = steps_per_second * GLOBAL_BATCH
    flops_per_step = expected_flops / steps_per_second / surprise
    profiles = {name: Profile(8, Precision.FP16) for name in ("T4x2", "P100", "T4", "RTX3050")}
    if random.random() < 0.7:
        profiles["cpu"] = Profile(8, Precision.FP32)
    rates = {}
    for name, profile in profiles.items():
        there = catalogue[name]
        scale = there.mfu * there.peak_flops[profile.precision] / expected_flops
        odd = 0.0 if name == REFERENCE else random.gauss(0.0, 0.25)
        rates[name] = truth * scale * math.exp(odd)
    steps = max(1, round(hours * HOUR * steps_per_second))
    work = Work(steps, GLOBAL_BATCH, parameters=random.choice((5e6, 3e7, 8e7)), flops_per_step=flops_per_step)
    if random.random() < 0.3:
        guess = steps_per_second * math.exp(random.gauss(0.0, 0.3))
        claim = Claim((0.8 * guess, 1.25 * guess), GLOBAL_BATCH, REFERENCE, "a note", "2026-01-01")
        profiles[REFERENCE] = replace(profiles[REFERENCE], claim=claim)
    job = Job(f"job-{number:03d}", ("train",), work, tuple(profiles.items()), bundle="0" * 64)
    return Arrival(at, job, rates, size.name)
