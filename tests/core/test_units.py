"""Quotas that are a balance of units: how the router compares and rejects offers that draw on one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.job import OfferPattern, Prefer, Rule, RuleEffect, When
from orchestrator.core.offer import UNDATED, Quota
from orchestrator.core.route import Verdict, opens_at, plan, route, verdict
from tests.core.test_route import GRAPHMER, HOUR, NOW, kaggle, only, wish

KEEP = Rule(
    "keep some", RuleEffect.AVOID, OfferPattern(metered=True), When(quota_left_hours=(None, 40)), "config"
)


@pytest.mark.parametrize(
    ("left", "rules", "says"),
    [
        (0.0, (), "0 s of quota left, too little for set-up, some training and a save"),
        (0.5, (), "0.5 units (17 min) left, too little"),
        (20.0, (KEEP,), "ruled out by the config rule 'keep some'"),
    ],
)
def test_too_few_units_reject_without_a_date(left: float, rules: tuple[Rule, ...], says: str) -> None:
    found = route(GRAPHMER, [kaggle(quota=Quota.of_units(left, 1.8))], now=NOW, rules=rules)
    rejection = only(found)
    assert says in rejection.reason
    assert rejection.until == UNDATED
    assert (verdict(found), opens_at(found)) == (Verdict.TIME, None)


def test_the_cheapest_accelerator_is_the_one_that_takes_the_fewest_units() -> None:
    """Hours on one accelerator say nothing about another. Hours that are given come before bought units."""
    job = wish(GRAPHMER, prefer=Prefer.CHEAPEST)
    t4, cheap = (kaggle("T4", quota=Quota.of_units(100.0, rate)) for rate in (2.0, 0.5))
    two = replace(kaggle("T4x2", quota=Quota.of_units(100.0, 2.5)), platform="other")
    found = route(job, [t4, two], now=NOW).chosen
    assert found is not None
    assert found.offer is two, "fewer hours make up for the rate"
    assert found.estimate.quota_units == pytest.approx(found.estimate.quota_seconds / HOUR * 2.5)
    dear = route(job, [cheap, two], now=NOW)
    assert dear.chosen is not None
    assert dear.chosen.offer is cheap
    assert dear.chosen.estimate.finish > dear.others[0].estimate.finish
    free = route(job, [cheap, replace(kaggle("T4"), platform="given")], now=NOW).chosen
    assert free is not None
    assert free.offer.platform == "given"
    hops = plan(job, dear, now=NOW)
    assert sum(hop.quota_units for hop in hops) == pytest.approx(dear.chosen.estimate.quota_units)
