"""A recorded time, played again: as it was it ends as it did; another config has the effect to expect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from orchestrator.core.event import Noted, Submitted
from orchestrator.core.offer import Offer, Quota, Traits, Unavailable, until_human, until_time
from orchestrator.hindsight.comparing import Comparison, compare
from orchestrator.hindsight.offering import SILENT_SECONDS, Offering, Setting, Use
from orchestrator.hindsight.playing import play
from orchestrator.hindsight.reading import Recorder
from orchestrator.hindsight.recording import Reading, Recording, Refused
from orchestrator.ledger import Stored
from tests.core.runs import NOW, RUN, job
from tests.months import HOUR, recorded_home, recording
from tests.test_engine import Make, small
from tests.test_reserving import BOX as ALONE
from tests.test_reserving import MINUTE, nightly, register_growing

__all__ = ["small"]  # a fixture

DAY = 24 * HOUR
CLOUD, BOX = ("cloud", "T4"), ("box", "RTX3050")


def compared(setting: Setting | None = None) -> Comparison:
    found = recording()
    return compare(found, setting or Setting.recorded(found))


@pytest.mark.soak
def test_played_again_as_it_was_a_time_ends_as_it_did() -> None:
    found = compared()
    assert len(found.runs) == len(found.errors) == 8
    assert max(found.errors) <= 0.02, found.errors
    assert found.error_of_mean == pytest.approx(0.0, abs=0.01)
    for each in found.runs:
        assert each.again.waited == pytest.approx(each.then.waited, rel=0.05, abs=600.0), each.run
    for place in (CLOUD, BOX):
        assert found.again.seconds[place] == pytest.approx(found.then.seconds[place], rel=0.02)
    assert found.again == found.supposed


def test_without_the_cloud_everything_runs_on_the_box_and_takes_longer() -> None:
    found = recording()
    supposed = compare(found, replace(Setting.recorded(found), platforms=("box",))).supposed
    again = compared().again
    assert set(supposed.seconds) == {BOX}
    assert supposed.finished == 8
    assert supposed.mean_seconds is not None
    assert again.mean_seconds is not None
    assert supposed.mean_seconds > 1.2 * again.mean_seconds


def test_with_more_boxes_nobody_waits_long() -> None:
    found = recording()

    def more(offer: Offer) -> Offer:
        return replace(offer, slots=8) if offer.platform == "box" else offer

    supposed = compare(found, replace(Setting.recorded(found), changed=more)).supposed
    assert supposed.mean_waited < 0.1 * compared().again.mean_waited
    assert supposed.finished == 8


def test_an_added_offer_is_used_at_an_estimated_speed_and_that_is_said() -> None:
    found = recording()
    added = Offer("new", "P100", Traits(internet=True), slots=4)
    before = Setting.recorded(found)
    setting = replace(before, platforms=(*before.platforms, "new"), added=(added,))
    result = compare(found, setting)
    assert result.supposed.seconds["new", "P100"] > 0
    assert any("P100 was never recorded, and is estimated" in text for text in result.assumed)


def test_without_any_platform_every_run_waits_for_a_person_and_says_why() -> None:
    found = recording()
    for each in play(found, replace(Setting.recorded(found), platforms=())):
        assert each.reached_at is None
        assert each.reason.startswith("would have waited for a person: no offer can run this job"), (
            each.reason
        )


def test_from_the_middle_on_runs_go_on_from_their_checkpoints() -> None:
    whole = recording()
    since = whole.since + 8 * HOUR
    part = recording(since)
    assert {run.run for run in part.runs} < {run.run for run in whole.runs}
    assert any(run.from_step > 0 for run in part.runs)
    found = compare(part, Setting.recorded(part))
    assert found.then.finished == found.again.finished == len(part.runs)
    assert max(found.errors) < 0.1, found.errors  # the session under way is cut in two


def test_the_quota_is_kept_in_a_play() -> None:
    found = recording()
    [total] = {o.quota.allowed_seconds for r in found.readings for o in r.offers if o.quota is not None}
    assert total is not None
    for slots in (1, 2, 6):
        setting = replace(Setting.recorded(found), changed=partial(replace, slots=slots))
        days = 2 + (max(each.reached_at or 0.0 for each in play(found, setting)) - found.since) // (24 * HOUR)
        used = sum(each.seconds.get(CLOUD, 0.0) for each in play(found, setting))
        assert used <= days * total


def test_a_damaged_journal_is_left_out_and_the_others_are_played() -> None:
    found = recording()
    recorder = Recorder(0.0, found.until)
    submitted, note = Stored(1, Submitted(RUN, job(), NOW), None), Noted(NOW, "?")
    recorder.add(RUN, (submitted, Stored(2, note, None, "event 2 cannot be read")))
    recorder.add("foreign", (Stored(1, note, None),))
    recorder.add("odd", (submitted, Stored(2, note, {"case": {"offers": "none", "measurements": 3}})))
    left = recorder.recording({})
    assert set(left.unread) == {RUN, "foreign"}
    assert left.idle == ("odd",)
    assert left.readings == ()
    assert play(left, Setting.recorded(left)) == ()


def test_the_recording_is_read_once_for_all_tests() -> None:
    assert recorded_home() is recorded_home()


# --- What is on offer -----------------------------------------------------------------------------------

OFFER = Offer("cloud", "T4", Traits(session_seconds=2 * HOUR))


def offering(*readings: Reading, refusals: tuple[Refused, ...] = ()) -> Offering:
    found = Recording(NOW, NOW + 100 * HOUR, (), readings, refusals)
    return Offering(found, Setting.recorded(found))


def offers(of: Offering, at: float, *used: Use) -> Iterator[Offer]:
    for survey in of.surveys(NOW + at, used):
        yield from survey.offers


def test_a_date_in_a_reading_is_believed_and_a_closed_offer_without_one_stays_closed() -> None:
    dated = replace(OFFER, unavailable=Unavailable("down", until_time(NOW + HOUR)))
    person = replace(OFFER, accelerator="P100", unavailable=Unavailable("denied", until_human()))
    of = offering(Reading(NOW, (dated, person)), Reading(NOW + 9 * HOUR, (dated, OFFER)))
    assert [o.unavailable is None for o in offers(of, 0.0)] == [False, False]
    assert [o.unavailable is None for o in offers(of, 2 * HOUR)] == [True, False]
    assert NOW + HOUR in of.changes(NOW + 100 * HOUR)


def test_a_silent_platform_answers_again_after_a_while_as_before() -> None:
    of = offering(Reading(NOW, (OFFER,)), Reading(NOW + HOUR, (), {"cloud": "no answer"}))
    [survey] = of.surveys(NOW + HOUR, ())
    assert survey.trouble == "no answer"
    assert list(offers(of, HOUR + SILENT_SECONDS)) == [OFFER]
    assert NOW + HOUR + SILENT_SECONDS in of.changes(NOW + 100 * HOUR)


def test_a_refusing_offer_is_closed_until_it_took_a_session() -> None:
    of = offering(Reading(NOW, (OFFER,)), refusals=(Refused(CLOUD, NOW + HOUR, NOW + 2 * HOUR),))
    closed = [next(offers(of, at)).unavailable is not None for at in (0.0, HOUR, 1.9 * HOUR, 2 * HOUR)]
    assert closed == [False, True, True, False]


def test_a_quota_is_less_what_the_play_used_and_is_refreshed() -> None:
    quota = Quota(10 * HOUR, NOW + 20 * HOUR, 24 * HOUR, 12 * HOUR)
    of = offering(Reading(NOW, (replace(OFFER, quota=quota),)))
    uses = (
        Use(CLOUD, NOW, NOW + 3 * HOUR),
        Use(CLOUD, NOW + 18 * HOUR, float("inf")),
        Use(BOX, NOW, NOW + 9),
    )
    left = [(o.quota.left_seconds / HOUR) for at in (0, 5, 19, 21) for o in offers(of, at * HOUR, *uses)
            if o.quota is not None]  # fmt: skip
    assert left == pytest.approx([10.0, 7.0, 6.0, 11.0])
    assert of.changes(NOW + 100 * HOUR)[:2] == (NOW + 20 * HOUR, NOW + 44 * HOUR)


@pytest.mark.soak
def test_a_growing_run_sleeps_when_it_did(small: Make) -> None:
    world = small(box=ALONE)
    opens = register_growing(world, 10 * MINUTE, 1, 2.5)
    assert world.until(lambda: nightly(world) != "", HOUR, 60.0)
    run = nightly(world)
    assert world.until(lambda: world.record(run).phase.final, 4 * DAY, 60.0)
    recorder = Recorder(0.0, world.clock.now())
    recorder.add(run, world.ledger.entries(run))
    found = recorder.recording({})
    result = compare(found, Setting.recorded(found))
    [then, again] = [each.reached_at for each in (result.runs[0].then, result.runs[0].again)]
    assert then is not None
    assert then - opens > 2 * DAY
    assert again == pytest.approx(then, abs=0.1 * HOUR)
