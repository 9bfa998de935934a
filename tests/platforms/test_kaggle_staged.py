"""What Kaggle makes of an uploaded dataset: files that appear late, without sizes, changed or unpacked."""

from __future__ import annotations

import tarfile
import threading
import zipfile

import pytest

from orchestrator.errors import BackendError, Refused, Transient
from orchestrator.platforms.kaggle import staging
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FIRST, LEAVES, SECOND, Box, Boxes, box, boxes
from tests.stand_ins.kaggle import Fault, Warts
from tests.waiting import PATIENCE

__all__ = ["agent", "box", "boxes"]


def left(box: Box) -> bool:
    """Whether the session started with all it needs, and left."""
    result = box.until_ended(FIRST).result
    return result is not None and result.message == "left"


# --- Late and without sizes -------------------------------------------------------------------------------


def test_files_that_are_listed_after_the_dataset_is_ready_are_waited_for(boxes: Boxes) -> None:
    box = boxes(Warts(files_lag_seconds=3600.0))
    box.use(listed_seconds=PATIENCE)

    def list_them() -> None:
        box.until(lambda: box.kaggle.calls.count("ListDatasetFiles") > 0)
        box.kaggle.warts.files_lag_seconds = 0.0

    thread = threading.Thread(target=list_them)
    thread.start()
    box.platform.prepare(box.order(), box.materials())
    thread.join()
    assert len(box.datasets()) == 1
    assert box.kaggle.calls.count("upload") == 1
    assert box.kaggle.calls.count("ListDatasetFiles") > 1


def test_files_that_stay_unlisted_are_said_and_looked_for_again(boxes: Boxes) -> None:
    """Minutes are over. When it looks again, Kaggle may list them."""
    box = boxes(Warts(files_lag_seconds=3600.0))
    box.use(listed_seconds=0.1)
    with pytest.raises(Transient, match=f"the dataset {FIRST}-d.* did not arrive completely"):
        box.platform.prepare(box.order(), box.materials())
    box.kaggle.warts.files_lag_seconds = 0.0
    box.another_controller().prepare(box.order(), box.materials())
    assert len(box.datasets()) == 1
    assert box.kaggle.calls.count("upload") == 1


def test_a_list_of_files_that_is_refused_for_a_while_gets_the_same_grace(box: Box) -> None:
    box.use(listed_seconds=0.1)
    box.kaggle.fail("ListDatasetFiles", Fault.NESTED)
    box.platform.prepare(box.order(), box.materials())
    assert box.kaggle.calls.count("upload") == 1


def test_names_are_enough_where_kaggle_gives_no_sizes(boxes: Boxes) -> None:
    """Their content is checked in the session."""
    box = boxes(Warts(sizes_are_omitted=True))
    box.run(LEAVES)
    assert left(box)
    assert box.kaggle.calls.count("upload") == 1


def test_a_file_that_is_missing_is_uploaded_again_where_kaggle_gives_no_sizes(boxes: Boxes) -> None:
    box = boxes(Warts(sizes_are_omitted=True, files_lag_seconds=3600.0))
    with pytest.raises(Transient, match="did not arrive completely"):
        box.platform.prepare(box.order(), box.materials())
    [first] = box.datasets()
    box.mounted()[0].unlink()
    box.kaggle.warts.files_lag_seconds = 0.0
    box.platform.prepare(box.order(), box.materials())
    assert first not in box.datasets()
    assert box.staged() == ["materials"]


# --- Refused, but listed ----------------------------------------------------------------------------------


def test_a_status_that_is_refused_once_starts_no_second_upload(box: Box) -> None:
    order = box.order()
    box.platform.prepare(order, box.materials_of(LEAVES))
    box.kaggle.fail("GetDatasetStatus", Fault.NESTED)
    box.platform.prepare(order, box.materials_of(LEAVES))
    box.kaggle.fail("GetDatasetStatus", Fault.NESTED)
    box.platform.launch(order)
    assert left(box)
    assert box.kaggle.calls.count("upload") == 1


def test_a_status_that_is_refused_for_long_deletes_nothing(box: Box) -> None:
    """The account's list still has the dataset. A launch says that nothing was started."""
    order = box.order()
    box.platform.prepare(order, box.materials())
    box.kaggle.fail("GetDatasetStatus", Fault.NESTED, 2)
    with pytest.raises(Transient, match="is still not visible"):
        box.platform.prepare(order, box.materials())
    box.kaggle.fail("GetDatasetStatus", Fault.NESTED, 2)
    with pytest.raises(Refused, match="is still not visible"):
        box.platform.launch(order)
    assert (box.kaggle.calls.count("upload"), box.kaggle.pushed) == (1, [])
    assert box.staged() == ["materials"]


def test_a_dataset_whose_creation_was_not_answered_is_found_although_its_status_is_refused(box: Box) -> None:
    box.kaggle.fail("CreateDataset", Fault.LOST_REPLY)
    with pytest.raises(Transient):
        box.platform.prepare(box.order(), box.materials())
    box.kaggle.fail("GetDatasetStatus", Fault.NESTED)
    box.platform.prepare(box.order(), box.materials())
    assert box.kaggle.calls.count("upload") == 1
    assert len(box.datasets()) == 1


# --- Archives ---------------------------------------------------------------------------------------------


def test_a_kaggle_that_unpacks_archives_by_content_finds_none(boxes: Boxes) -> None:
    box = boxes(Warts(archives="content"))
    box.use(hand_over_bytes=1 << 40)
    box.run_to_end()
    box.platform.prepare(box.resuming(SECOND, 11, 2), box.materials(box.into(FIRST)))
    assert box.staged(SECOND) == ["checkpoint", "materials"]
    files = [*box.mounted(), *box.mounted(SECOND)]
    assert [path.suffix for path in files] == [".orchestrator"] * 3
    assert [path for path in files if tarfile.is_tarfile(path) or zipfile.is_zipfile(path)] == []
    assert all(path.read_bytes().startswith(b"orchestrator: not an archive ") for path in files)


def test_an_archive_that_kaggle_unpacked_all_the_same_is_recognised_and_said(
    boxes: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing starts on it, other offers are tried meanwhile, and the next try makes another dataset."""
    box = boxes(Warts(archives="content"))
    monkeypatch.setattr(staging, "HEADER", b"")
    with pytest.raises(Refused, match="Kaggle changed what was uploaded") as refused:
        box.platform.prepare(box.order(), box.materials())
    [first] = box.datasets()
    assert f"the dataset {first} lacks materials-" in str(refused.value)
    assert "other files, such as materials-" in str(refused.value)
    assert "order.json" in str(refused.value)
    with pytest.raises(BackendError):
        box.platform.launch(box.order())
    assert box.kaggle.pushed == []
    monkeypatch.undo()
    box.run(LEAVES)
    assert first not in box.datasets()
    assert left(box)
