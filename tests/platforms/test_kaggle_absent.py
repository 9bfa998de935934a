"""Kaggle does not show a kernel that lives: only what nothing shows is absent, and nothing of it is removed.

How long an absence must last is judged by the core (tests/core/test_awaiting.py). With a real controller:
tests/end_to_end/test_kaggle.py.
"""

from __future__ import annotations

import pytest

from orchestrator.core.session import ABSENT, Sighting, StopReply
from orchestrator.errors import NameTaken, NotFound, Transient
from orchestrator.platforms.kaggle.options import HOUR, KaggleOptions
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FIRST, LEAVES, SECOND, WAITS, Box, Boxes, box, boxes
from tests.platforms.test_kaggle_account import account
from tests.seen import observed
from tests.stand_ins.kaggle import Fault, State, Warts

__all__ = ["agent", "box", "boxes"]
EVER = 1e9  # seconds


@pytest.fixture(params=["403", "404"])
def hidden(request: pytest.FixtureRequest, box: Box) -> Box:
    """A session that runs and is listed, but Kaggle refuses to show its status."""
    box.run(WAITS)
    box.until_claimed()
    assert box.see(FIRST).sighting is Sighting.RUNNING
    box.kaggle.warts.status_glitch = request.param
    return box


def check_alive(box: Box) -> None:
    """Nothing of it was removed, nothing was started beside it, and it is seen again."""
    removed = [box.kaggle.calls.count(each) for each in ("DeleteKernel", "DeleteDataset")]
    assert removed == [0, 0]
    assert len(box.kaggle.pushed) == 1
    assert box.staged() == ["materials"]
    box.kaggle.warts.status_glitch = ""
    assert box.see(FIRST).sighting is Sighting.RUNNING


# --- Listed, but not shown --------------------------------------------------------------------------------


def test_what_is_listed_and_not_shown_is_unknown_and_not_absent(hidden: Box) -> None:
    hidden.use(absence_seconds=0.01, visibility_seconds=0.01)
    assert observed(hidden.platform, [FIRST, SECOND]) == {SECOND: ABSENT}
    assert observed(hidden.another_controller(), [FIRST]) == {}
    check_alive(hidden)


def test_a_stop_of_it_is_asked_again_until_it_is_shown(hidden: Box) -> None:
    hidden.use(visibility_seconds=0.01)
    assert hidden.platform.stop(FIRST) is StopReply.REQUESTED
    assert hidden.another_controller().stop(FIRST) is StopReply.REQUESTED
    check_alive(hidden)
    assert hidden.platform.stop(FIRST) is StopReply.ENDED
    assert hidden.see(FIRST) == ABSENT


def test_what_it_may_need_is_not_removed(hidden: Box) -> None:
    hidden.use(visibility_seconds=0.01)
    with pytest.raises(Transient, match="may still be running"):
        hidden.platform.discard(FIRST)
    check_alive(hidden)


def test_no_second_one_is_started_beside_it(hidden: Box) -> None:
    hidden.use(visibility_seconds=0.01)
    order = hidden.order(total=1_000_000)
    uploads = hidden.kaggle.calls.count("upload")
    for platform in (hidden.platform, hidden.another_controller()):
        platform.prepare(order, hidden.materials_of(WAITS))
        platform.launch(order)
    with pytest.raises(NameTaken):  # by a home that knows nothing of it
        hidden.another_controller("restored").prepare(order, hidden.materials_of(WAITS))
    assert hidden.kaggle.calls.count("upload") == uploads
    check_alive(hidden)


def test_its_output_is_not_taken_for_missing(hidden: Box) -> None:
    with pytest.raises(Transient, match=f"look at https://www.kaggle.com/code/ada/{FIRST}"):
        hidden.collect(FIRST)
    check_alive(hidden)


def test_what_has_ended_and_is_not_shown_is_removed_only_when_it_is_shown(box: Box) -> None:
    box.run(LEAVES)
    box.until(lambda: box.kaggle.kernel(FIRST).state is State.COMPLETE)
    box.kaggle.warts.status_glitch = "403"
    with pytest.raises(Transient):
        box.platform.discard(FIRST)
    assert box.staged() == ["materials"]
    box.kaggle.warts.status_glitch = ""
    box.platform.discard(FIRST)
    assert box.datasets() == []


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.NESTED])
def test_a_list_that_cannot_be_read_proves_nothing(hidden: Box, fault: Fault) -> None:
    """Also one that is refused, like the status."""
    hidden.use(visibility_seconds=0.01)
    hidden.kaggle.fail("ListKernels", fault, 4 * (1 if fault is Fault.NESTED else hidden.tries))
    with pytest.raises(Transient):
        observed(hidden.platform, [FIRST])
    with pytest.raises(Transient):
        hidden.platform.stop(FIRST)
    with pytest.raises(Transient):
        hidden.platform.discard(FIRST)
    with pytest.raises(Transient):
        hidden.collect(FIRST)
    check_alive(hidden)


# --- Neither shown nor listed -----------------------------------------------------------------------------


@pytest.mark.parametrize("missing_is_403", [False, True])
def test_what_is_neither_shown_nor_listed_is_absent(boxes: Boxes, missing_is_403: bool) -> None:
    box = boxes(Warts(missing_is_403=missing_is_403))
    box.run(WAITS)
    assert box.see(FIRST).sighting is Sighting.RUNNING
    account(box.kaggle).delete_kernel(FIRST)
    assert box.see(FIRST) == ABSENT
    with pytest.raises(NotFound):
        box.collect(FIRST)


def test_the_absence_of_one_that_was_seen_must_last_for_half_an_hour(box: Box) -> None:
    assert KaggleOptions().absence_seconds == HOUR / 2
    box.use(absence_seconds=KaggleOptions().absence_seconds)
    assert {offer.traits.absence_seconds for offer in box.platform.survey() if not offer.unavailable} == {
        HOUR / 2
    }


def test_what_kaggle_accepted_is_expected_for_half_an_hour_although_nothing_shows_it(boxes: Boxes) -> None:
    box = boxes(visible_seconds=EVER)
    box.use(absence_seconds=HOUR / 2, visibility_seconds=0.01)
    order = box.run(WAITS)
    for platform in (box.platform, box.another_controller()):
        seen = observed(platform, [FIRST])[FIRST]
        assert (seen.sighting, "does not show it yet" in seen.detail) == (Sighting.PENDING, True)
        platform.launch(order)
    box.use(absence_seconds=0.01)
    assert box.see(FIRST) == ABSENT
    box.platform.launch(order)
    assert len(box.kaggle.pushed) == 1


@pytest.mark.parametrize("fault", [None, Fault.LOST_REPLY])
def test_what_a_push_may_have_started_keeps_its_data(boxes: Boxes, fault: Fault | None) -> None:
    """Nothing shows it yet, and perhaps the answer was lost. What Kaggle has accepted exists, so that is
    waited for longer."""
    box = boxes(visible_seconds=EVER)
    over, under_way = ("visibility", "absence") if fault is None else ("absence", "visibility")
    box.use(**{f"{over}_seconds": 0.01, f"{under_way}_seconds": HOUR})
    order = box.order(total=1_000_000)
    box.platform.prepare(order, box.materials_of(WAITS))
    if fault is None:
        box.platform.launch(order)
    else:
        box.kaggle.fail("SaveKernel", fault)
        with pytest.raises(Transient):
            box.platform.launch(order)
    for platform in (box.platform, box.another_controller()):
        assert platform.stop(FIRST) is StopReply.REQUESTED
        with pytest.raises(Transient, match="may still be running"):
            platform.discard(FIRST)
    assert box.staged() == ["materials"]
    box.use(visibility_seconds=0.01, absence_seconds=0.01)
    assert box.platform.stop(FIRST) is StopReply.ENDED
    box.platform.discard(FIRST)
    assert box.datasets() == []
