"""What holds for every plan over any offers: no quota, slot or limit is overrun, and mixing never loses."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.core.assign import assign
from orchestrator.core.calendar import Calendar, Stay, slot_pool
from orchestrator.core.itinerary import SOON_SECONDS, Way, itinerary
from orchestrator.core.offer import Offer, Quota, Traits
from orchestrator.core.queueing import Waiting, lay_out
from orchestrator.core.route import Case, judge, ways
from tests.core.offers import DAY, HOUR, NOW, RATES, record

hours = st.floats(0, 40).map(lambda h: h * HOUR)
quotas = st.builds(
    lambda left, refresh: Quota(left, NOW + refresh, 7 * DAY, 30 * HOUR, "gpu"),
    hours,
    st.floats(60, 7 * DAY),
)
traits = st.builds(
    Traits,
    session_seconds=st.none() | st.floats(3600, 12 * 3600),
    wall_margin_seconds=st.floats(0, 600),
    setup_seconds=st.floats(0, 600),
    durable_mid_run=st.booleans(),
    owned=st.booleans(),
)
offer_lists = st.lists(
    st.builds(
        Offer,
        st.sampled_from(["here", "kaggle", "colab"]),
        st.sampled_from(sorted(RATES)),
        traits,
        st.integers(1, 2),
        st.none() | quotas,
        wait_seconds=st.sampled_from([0.0, 600.0]),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda offer: (offer.platform, offer.accelerator),
)
sizes = st.floats(0.05, 30.0)


def stays_of(offers: list[Offer], ends: list[float]) -> list[Stay]:
    return [
        Stay(o.platform, o.accelerator, NOW - 60, NOW + end) for o, end in zip(offers, ends, strict=False)
    ]


@given(offer_lists, sizes, st.lists(hours, max_size=4))
def test_mixing_offers_never_finishes_later_than_the_best_of_them_alone(
    offers: list[Offer], size: float, ends: list[float]
) -> None:
    run = record(size)
    openings = {
        (o.platform, o.accelerator): o for o in Calendar(offers, stays_of(offers, ends), NOW).openings()
    }
    found = ways(run, Case(tuple(offers)), NOW)
    mixed = itinerary(run.job, found, openings, now=NOW)
    for way in found:
        alone = itinerary(run.job, [way], openings, now=NOW)
        assert alone is None or (mixed is not None and mixed.finish <= alone.finish + 2 * SOON_SECONDS)


@given(offer_lists, st.lists(sizes, min_size=1, max_size=5), st.lists(hours, max_size=4))
def test_a_laid_out_queue_overruns_no_slot_quota_or_limit(
    offers: list[Offer], queue: list[float], ends: list[float]
) -> None:
    case = Case(tuple(offers))
    runs = [record(size, run=f"run-{number}") for number, size in enumerate(queue)]
    calendar = Calendar(offers, stays_of(offers, ends), NOW)
    places = list(lay_out([Waiting(run, ways(run, case, NOW)) for run in runs], calendar))
    legs = [leg for place in places for leg in place.legs]
    for place in places:
        for before, after in pairwise(place.legs):
            assert after.start >= before.end - 1e-6
        assert not place.legs or sum(leg.share for leg in place.legs) <= 1 + 1e-9
    for way in {leg.way.place: leg.way for leg in legs}.values():
        _check_place(
            way, [(leg.start, leg.end) for leg in legs if slot_pool(leg.way.offer) == slot_pool(way.offer)]
        )


def _check_place(way: Way, spans: list[tuple[float, float]]) -> None:
    for start, _ in spans:
        at_once = sum(begin <= start < end - 1e-6 for begin, end in spans)
        assert at_once <= way.offer.slots


@given(offer_lists, sizes)
def test_a_run_alone_overruns_no_window_of_a_quota(offers: list[Offer], size: float) -> None:
    """Several runs may plan to cross the same refresh; the claims of their sessions see to that."""
    run = record(size)
    openings = {(o.platform, o.accelerator): o for o in Calendar(offers, [], NOW).openings()}
    found = itinerary(run.job, ways(run, Case(tuple(offers)), NOW), openings, now=NOW)
    for offer in offers:
        quota, used = offer.quota, 0.0
        if quota is None or found is None:
            continue
        for hop in found.hops:
            if (hop.platform, hop.accelerator) == (
                offer.platform,
                offer.accelerator,
            ) and hop.start < NOW + _until_refresh(quota):
                used += quota.taken(
                    min(hop.end, NOW + _until_refresh(quota)) - hop.start - offer.wait_seconds
                )
        assert used <= quota.taken(quota.left_seconds) + 1.0


def _until_refresh(quota: Quota) -> float:
    assert quota.refresh_at is not None
    return quota.refresh_at - NOW


@given(offer_lists, sizes, st.lists(hours, max_size=4), st.integers(0, 3))
def test_an_order_never_has_more_than_is_left(
    offers: list[Offer], size: float, ends: list[float], others: int
) -> None:
    run = record(size)
    openings = Calendar(offers, stays_of(offers, ends), NOW).openings()
    found = judge(run, Case(tuple(offers), openings=openings, others=others), NOW)
    assume(found.chosen is not None)
    assert found.chosen is not None
    budget, offer = assign(run, found.chosen).budget_seconds, found.chosen.offer
    for limit in (offer.traits.session_seconds, offer.quota.left_seconds if offer.quota else None):
        assert limit is None or (budget is not None and budget <= limit)
