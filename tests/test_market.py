"""What is left of the offers once our own sessions are taken off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.offer import Offer, UntilKind
from orchestrator.core.run import RunRecord
from orchestrator.market import Market, Surveyed
from tests.core.runs import NOW, TRAITS, assigned, job, record


def waiting(run: str) -> RunRecord:
    cpu = job().profiles[0][1]
    return replace(record(), run=run, job=job(profiles=(("T4", cpu), ("T4x2", cpu))))


def running(run: str, accelerator: str) -> RunRecord:
    found = record(assigned())
    assert found.session is not None
    order = replace(found.session.order, run=run, session=f"{run}-s01", platform="k", accelerator=accelerator)
    return replace(found, run=run, session=replace(found.session, order=order))


@pytest.mark.parametrize(("pool", "full"), [("gpu", True), ("", False)])
def test_offers_of_one_pool_share_their_slots(pool: str, full: bool) -> None:
    market = Market(("k",))
    market.surveys_due(NOW, 0.0)
    offers = tuple(Offer("k", name, TRAITS, slots=2, slot_pool=pool) for name in ("T4", "T4x2"))
    market.take(Surveyed("k", offers), NOW)
    market.begin((running("a", "T4"), running("b", "T4x2")), NOW)
    assert market.has_room() is not full
    route = market.route(waiting("c"), ())
    assert route is not None
    assert (route.chosen is None) == full
    if full:
        assert {each.until.kind for each in route.rejections} == {UntilKind.SLOT}
