"""Kaggle's answers are read: what it calls things, which version it runs, and which names it gives twice."""

from __future__ import annotations

import re

import pytest

from orchestrator.core.order import Outcome
from orchestrator.core.session import Sighting
from orchestrator.errors import Refused, Transient
from orchestrator.platforms.kaggle import kernel
from orchestrator.platforms.kaggle.values import decode_pushed
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FIRST, LEAVES, SECOND, WAITS, Box, Boxes, box, boxes, show
from tests.stand_ins.kaggle import Fault, Warts

__all__ = ["agent", "box", "boxes"]
LONG = f"{'a-very-long-name-of-a-job' * 3}-7f3kq2vd-s01"


# --- What a push answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", ["/code/ada/demo-2", "ada/demo-2", "/ada/demo-2/", "demo-2"])
def test_the_answer_to_a_push_is_read(ref: str) -> None:
    said = decode_pushed({"ref": ref, "kernelId": 17, "versionNumber": 2, "error": ""})
    assert (said.slug, said.id, said.version) == ("demo-2", 17, 2)


def test_an_answer_that_leaves_all_of_it_out_is_read_as_well() -> None:
    said = decode_pushed({})
    assert (said.slug, said.id, said.version, said.error, said.invalid) == ("", 0, 0, "", ())


def test_a_kernel_to_which_kaggle_gives_another_name_is_followed(boxes: Boxes) -> None:
    box = boxes(Warts(slug_ending="-x1"))
    box.start(box.order())
    ended = box.until_ended(FIRST)
    assert ended.result is not None
    assert ended.result.outcome is Outcome.COMPLETED
    said = f"Kaggle calls its kernel '{FIRST}-x1', although '{FIRST}' was asked for"
    assert ended.notes == (said,)
    order = box.resuming(SECOND, 11, 2)
    box.platform.prepare(order, box.materials(box.into(FIRST)))
    assert box.staged(SECOND) == ["materials"], "the checkpoint is read there"
    box.platform.launch(order)
    assert box.kaggle.pushed[-1]["kernelDataSources"] == [f"ada/{FIRST}-x1"]
    assert box.platform.stop(SECOND)
    box.platform.discard(FIRST)
    with pytest.raises(KeyError):
        box.kaggle.kernel(f"{FIRST}-x1")


def test_it_is_followed_also_if_the_answer_was_lost(boxes: Boxes) -> None:
    box = boxes(Warts(slug_ending="-x1"))
    order = box.order()
    box.platform.prepare(order, box.materials_of(WAITS))
    box.kaggle.fail("SaveKernel", Fault.LOST_REPLY)
    with pytest.raises(Transient):
        box.platform.launch(order)
    box.platform.launch(order)
    assert len(box.kaggle.pushed) == 1, "no second push into the dark"
    seen = box.see(FIRST)
    assert seen.sighting is Sighting.RUNNING
    assert any(f"calls its kernel '{FIRST}-x1'" in note for note in seen.notes)


def test_it_is_deleted_and_said_if_it_runs_without_its_data(boxes: Boxes) -> None:
    box = boxes(Warts(slug_ending="-x1", attach_lag_seconds=3600.0))
    order = box.order()
    box.platform.prepare(order, box.materials_of(LEAVES))
    with pytest.raises(Refused):
        box.platform.launch(order)
    with pytest.raises(KeyError):
        box.kaggle.kernel(f"{FIRST}-x1")
    assert box.see(FIRST).sighting is Sighting.ABSENT
    box.kaggle.warts.attach_lag_seconds = 0.0
    box.platform.launch(order)
    ended = box.until_ended(FIRST)
    assert any(f"calls its kernel '{FIRST}-x1'" in note for note in ended.notes)
    assert any(f"calls its kernel '{FIRST}-k2-x1'" in note for note in ended.notes)


def test_an_older_version_that_may_run_beside_it_is_said(boxes: Boxes) -> None:
    """A push does not stop the version before (docs/references/kaggle.md#push)."""
    box = boxes(visible_seconds=3600.0)
    box.use(visibility_seconds=0.1)
    order = box.order()
    box.platform.prepare(order, box.materials_of(WAITS))
    box.kaggle.fail("SaveKernel", Fault.LOST_REPLY)
    with pytest.raises(Transient):
        box.platform.launch(order)

    def launched() -> bool:
        try:
            box.platform.launch(order)
        except Transient:  # it waits until the first would be visible
            return False
        return True

    box.until(launched)
    assert [each.version for each in (box.kaggle.kernel(FIRST),)] == [2]
    show(box)
    assert any("may run beside it" in note for note in box.see(FIRST).notes)


# --- Names ------------------------------------------------------------------------------------------------


def test_a_dataset_has_an_ending_of_its_own_and_a_new_one_each_time(boxes: Boxes) -> None:
    box = boxes(Warts(dataset_end="FAILED"))
    endings = set()
    for _ in range(3):
        with pytest.raises(Transient, match="failed to process"):
            box.platform.prepare(box.order(), box.materials())
        [name] = box.datasets()
        assert re.fullmatch(rf"{FIRST}-d[a-z0-9]{{4}}", name)
        endings.add(name)
    assert len(endings) == 3


def test_names_fit_however_long_the_jobs_is() -> None:
    """Of 50 characters at most (docs/references/kaggle.md#datasets)."""
    names = [kernel.slug(LONG), kernel.slug(LONG, 12), kernel.dataset_slug(LONG, "abcd")]
    assert all(len(name) <= 50 and "-7f3kq2vd-s01" in name for name in names)
    assert len(set(names)) == 3
    assert [kernel.is_kernel_of(each, LONG) for each in names] == [True, True, False]
    assert [kernel.is_dataset_of(each, LONG) for each in names] == [True, False, True]


def test_kernels_and_datasets_may_share_their_names(boxes: Boxes) -> None:
    box = boxes(Warts(names_are_shared=True, deleted_stay_reserved=True))
    box.run(LEAVES)
    assert box.until_ended(FIRST).result is not None
    assert box.kaggle.pushed[0]["datasetDataSources"] == [f"ada/{box.datasets()[0]}"]


def test_a_deleted_name_is_not_used_again(boxes: Boxes) -> None:
    """It may stay taken, and pushes with it may fail (docs/references/kaggle.md#datasets)."""
    box = boxes(Warts(deleted_stay_reserved=True, names_are_shared=True, attach_lag_seconds=3600.0))
    order, materials = box.order(), box.materials_of(LEAVES)
    for _ in range(2):
        box.platform.prepare(order, materials)
        with pytest.raises(Refused, match="does not find the data"):
            box.platform.launch(order)
    assert len(box.kaggle.uploaded) == 1
    box.platform.prepare(order, materials)  # what was not found twice is made anew
    assert len(box.kaggle.uploaded) == 2
    box.kaggle.warts.attach_lag_seconds = 0.0
    box.platform.launch(order)
    assert box.until_ended(FIRST).result is not None
    assert [push["newTitle"] for push in box.kaggle.pushed] == [FIRST, f"{FIRST}-k2", f"{FIRST}-k3"]
    sources = [push["datasetDataSources"] for push in box.kaggle.pushed]
    assert sources[0] == sources[1] != sources[2]
    assert len(box.datasets()) == 1


def test_a_name_that_somebody_has_is_not_deleted(box: Box) -> None:
    """The ending is random, but it may be taken all the same."""
    box.kaggle.refuse("CreateDataset", "The requested title is already in use by a dataset.")
    with pytest.raises(Refused, match="already in use"):
        box.platform.prepare(box.order(), box.materials())
    box.platform.discard(FIRST)
    assert "DeleteDataset" not in box.kaggle.calls
