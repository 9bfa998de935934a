"""When offers have room, after the sessions that run and those that are booked."""

from __future__ import annotations

from orchestrator.core.calendar import GAP_SECONDS_MIN, Calendar, Opening, Stay
from orchestrator.core.offer import Hop, Offer
from tests.core.offers import DAY, HOUR, NOW, gpu, kaggle, weekly


def hop(offer: Offer, start: float, end: float) -> Hop:
    return Hop(offer.platform, offer.accelerator, NOW + start, NOW + end, 0, 0, 0.0, "")


def opening(offer: Offer, *stays: Stay, booked: tuple[Hop, ...] = ()) -> Opening:
    calendar = Calendar([offer], stays, NOW)
    calendar.book(booked)
    (found,) = calendar.openings()
    return found


def test_a_free_offer_is_open_now_and_for_good() -> None:
    assert opening(gpu()) == Opening("here", "RTX3050", NOW)


def test_a_slot_opens_when_its_session_is_expected_to_end() -> None:
    busy = Stay("here", "RTX3050", NOW - HOUR, NOW + HOUR)
    assert opening(gpu(), busy).opens_at == NOW + HOUR
    assert opening(gpu(slots=2), busy).opens_at == NOW


def test_a_later_booking_leaves_the_time_before_it() -> None:
    found = opening(gpu(), booked=(hop(gpu(), 2 * HOUR, 5 * HOUR),))
    assert (found.opens_at, found.until, found.free_at) == (NOW, NOW + 2 * HOUR, NOW + 5 * HOUR)


def test_a_gap_that_is_too_short_is_none() -> None:
    found = opening(gpu(), booked=(hop(gpu(), GAP_SECONDS_MIN / 2, HOUR),))
    assert (found.opens_at, found.until) == (NOW + HOUR, None)


def test_offers_of_one_pool_share_their_slots() -> None:
    other = Offer("kaggle", "P100", kaggle().traits, slot_pool="gpu", quota=weekly())
    calendar = Calendar([kaggle(), other], [Stay("kaggle", "P100", NOW, NOW + HOUR)], NOW)
    assert [each.opens_at for each in calendar.openings()] == [NOW + HOUR] * 2


def test_what_is_booked_is_promised_in_the_window_in_which_it_is_used() -> None:
    over_the_refresh = hop(kaggle(), 3 * DAY - HOUR, 3 * DAY + 2 * HOUR)
    assert opening(kaggle(), booked=(over_the_refresh,)).promised == (HOUR, 2 * HOUR)


def test_quota_is_promised_to_all_offers_of_its_pool() -> None:
    other = Offer("kaggle", "P100", kaggle().traits, slots=2, quota=weekly())
    calendar = Calendar([kaggle(slots=2), other], [], NOW)
    calendar.book([hop(kaggle(), 0.0, HOUR)])
    assert [each.promised for each in calendar.openings()] == [(HOUR,)] * 2


def test_a_session_on_an_offer_that_is_gone_takes_nothing() -> None:
    assert opening(gpu(), Stay("gone", "T4", NOW, NOW + DAY)).opens_at == NOW


def test_an_offer_without_slots_has_no_opening() -> None:
    assert Calendar([gpu(slots=0)], [], NOW).openings() == ()
