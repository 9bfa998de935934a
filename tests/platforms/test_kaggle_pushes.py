"""A session is pushed at most once, also while Kaggle does not show whether an earlier push took effect, and
its kernel is found whatever it is called."""

from __future__ import annotations

import pytest

from orchestrator.core.session import Sighting
from orchestrator.errors import Refused, Transient
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FIRST, WAITS, Box, Boxes, box, boxes, show
from tests.seen import observed
from tests.stand_ins.kaggle import Fault, Warts

__all__ = ["agent", "box", "boxes"]
EVER = 1e9  # seconds


def test_a_push_without_an_answer_is_not_repeated_while_it_may_take_effect(boxes: Boxes) -> None:
    box = boxes(visible_seconds=EVER)
    box.use(visibility_seconds=EVER)
    order = box.order()
    box.platform.prepare(order, box.materials_of(WAITS))
    box.kaggle.fail("SaveKernel", Fault.LOST_REPLY)
    for controller in (box.platform, box.another_controller()):
        with pytest.raises(Transient):
            controller.launch(order)

    def runs() -> bool:
        seen = observed(box.platform, [FIRST]).get(FIRST)  # None: it cannot be read now
        return seen is not None and seen.sighting is Sighting.RUNNING

    show(box)
    box.until(runs)
    box.another_controller().launch(order)
    assert len(box.kaggle.pushed) == 1


def test_credentials_that_were_revoked_after_a_push_do_not_mean_that_nothing_runs(box: Box) -> None:
    order = box.order()
    box.platform.prepare(order, box.materials_of(WAITS))
    box.kaggle.fail("SaveKernel", Fault.LOST_REPLY)
    with pytest.raises(Transient):
        box.platform.launch(order)
    box.kaggle.revoke()
    with pytest.raises(Transient, match="may have taken effect"):
        box.another_controller().launch(order)


def test_a_push_that_was_accepted_is_not_repeated_before_it_is_visible(boxes: Boxes) -> None:
    box = boxes(visible_seconds=EVER)
    order = box.run(WAITS)
    box.another_controller().launch(order)
    assert len(box.kaggle.pushed) == 1


def test_a_push_that_was_refused_is_repeated_at_once(box: Box) -> None:
    order = box.order()
    box.platform.prepare(order, box.materials_of(WAITS))
    box.kaggle.fail("SaveKernel", Fault.NESTED)
    with pytest.raises(Refused):
        box.platform.launch(order)
    box.platform.launch(order)
    assert len(box.kaggle.pushed) == 1
    assert box.kaggle.kernel(FIRST).pid


def test_a_kernel_without_its_data_that_cannot_be_deleted_is_followed(boxes: Boxes) -> None:
    """Kaggle does not show it yet, and refuses to delete it. Another push could run beside it."""
    box = boxes(Warts(attach_lag_seconds=EVER), visible_seconds=EVER)
    box.use(visibility_seconds=EVER)
    order = box.order()
    box.platform.prepare(order, box.materials_of(WAITS))
    box.kaggle.fail("DeleteKernel", Fault.NESTED)
    for controller in (box.platform, box.another_controller()):
        with pytest.raises(Transient, match="may have taken effect"):
            controller.launch(order)
    show(box)
    box.until(lambda: box.see(FIRST).sighting is Sighting.RUNNING)
    box.another_controller().launch(order)
    assert len(box.kaggle.pushed) == 1


def test_a_kernel_that_its_user_renames_is_followed_by_its_number(box: Box) -> None:
    box.run()
    box.until_claimed()
    box.kaggle.rename(FIRST, "My best training")
    seen = box.see(FIRST)
    assert seen.sighting is Sighting.RUNNING
    assert any("calls its kernel 'my-best-training' now" in note for note in seen.notes)
    box.platform.stop(FIRST)
    with pytest.raises(KeyError):
        box.kaggle.kernel("my-best-training")


def test_a_kernel_of_the_same_title_that_is_not_ours_is_left_alone(boxes: Boxes) -> None:
    """Its user may have copied it, or have another home. Only the text says whose it is."""
    box = boxes(Warts(slug_ending="-2"))
    box.run(WAITS)
    theirs = f"{FIRST}-2"
    box.another_controller("elsewhere").stop(FIRST)
    assert box.kaggle.kernel(theirs).pid
    (box.folder / "sessions" / "sessions" / f"{FIRST}.json").unlink()  # only the list knows it now
    box.another_controller().stop(FIRST)
    with pytest.raises(KeyError):
        box.kaggle.kernel(theirs)
