"""Which surveys a plan can be made from."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from orchestrator.core.offer import Offer, Quota, Unavailable, until_time
from orchestrator.core.outlook import outlook
from orchestrator.core.plausible import unusable
from orchestrator.core.queueing import Waiting
from orchestrator.core.route import Case, judge, ways
from orchestrator.core.scene import Scene
from tests.core.offers import DAY, HOUR, NOW, WALLED, cpu, gpu, kaggle, record, weekly

WILD = (math.nan, math.inf, -math.inf, 1e300, -1e300, -1.0, 0.0, 1e-300, 1e-6, 60.0, 1e9, 5e9)


@pytest.mark.parametrize("offer", [kaggle(), gpu(), cpu(), kaggle(quota=weekly(left=-HOUR))])
def test_what_platforms_say_can_be_used(offer: Offer) -> None:
    assert unusable(offer) == ""


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        (kaggle(quota=weekly(left=math.nan)), "quota left of T4x2 is nan"),
        (kaggle(quota=Quota(HOUR, window_seconds=1e-9)), "quota window of T4x2 is 1e-09; valid: 60 to 1e+10"),
        (kaggle(quota=Quota(HOUR, NOW, -DAY)), "quota window"),
        (kaggle(quota=Quota(HOUR, 1e300)), "quota refresh"),
        (kaggle(quota=Quota(HOUR, units_per_hour=-1.0)), "units per hour"),
        (kaggle(slots=-1), "slots of T4x2 is -1"),
        (gpu(wait_seconds=-5.0), "wait_seconds of RTX3050 is -5.0"),
        (gpu(memory_gb=math.inf), "memory_gb"),
        (gpu(traits=replace(WALLED, setup_seconds=math.nan)), "setup_seconds"),
        (gpu(traits=replace(WALLED, wall_margin_seconds=-1e300)), "wall_margin_seconds"),
        (gpu(unavailable=Unavailable("shut", until_time(math.nan))), "unavailable until"),
    ],
)
def test_a_figure_that_no_plan_can_be_made_with_is_named(offer: Offer, words: str) -> None:
    assert unusable(offer).startswith(words)


@pytest.mark.parametrize("seed", range(60))
def test_every_usable_offer_can_be_planned_with(seed: int) -> None:
    """Neither an exception nor a plan without end, however odd the figures are."""
    rnd = random.Random(seed)

    def odd(value: float) -> float:
        return rnd.choice(WILD) if rnd.random() < 0.3 else value

    def offer(base: Offer) -> Offer:
        quota = Quota(odd(HOUR), odd(NOW + DAY), odd(7 * DAY), odd(30 * HOUR), "gpu", 0.0, odd(0.0))
        traits = replace(base.traits, session_seconds=odd(12 * HOUR), setup_seconds=odd(60.0))
        traits = replace(traits, wall_margin_seconds=odd(60.0))
        return replace(base, quota=quota, traits=traits, wait_seconds=odd(0.0))

    offers = tuple(each for each in map(offer, (kaggle(), gpu(), cpu())) if not unusable(each))
    case, runs = (
        Case(offers, thorough=True),
        tuple(record(hours, run=f"r{hours}") for hours in (0.01, 5, 100)),
    )
    judge(runs[0], case, NOW)
    assert all(Waiting(run, ways(run, case, NOW)) for run in runs)
    assert len(outlook(Scene(NOW, case, waiting=runs))) == len(runs)
