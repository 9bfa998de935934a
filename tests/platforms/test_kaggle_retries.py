"""How often a request is made behind the wrapper around every platform: as often as docs/kaggle.md says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from orchestrator.errors import Transient
from orchestrator.platforms import catalog
from orchestrator.platforms.kaggle.platform import KagglePlatform
from orchestrator.platforms.retrying import RetryingPlatform
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FIRST, LEAVES, SECOND, WAITS, Box, Hasty, box, boxes
from tests.platforms.kaggle_wire import KEY, QUOTA, said, wire
from tests.seen import observed
from tests.stand_ins.kaggle import Fault, State

__all__ = ["agent", "box", "boxes"]
DOCS = (Path(__file__).parents[2] / "docs" / "kaggle.md").read_text()
[DOCUMENTED] = (int(count) for count in re.findall(r"tried (\d) times in all", DOCS))
EVER = 100
Verb = Callable[[RetryingPlatform, Box], object]


def wrapped(platform: KagglePlatform) -> tuple[RetryingPlatform, list[float]]:
    """Wrapped like every configured platform; also returns the wrapper's pauses."""
    pauses: list[float] = []
    return RetryingPlatform(platform, sleep=pauses.append, random=Random(1)), pauses


def prepare(platform: RetryingPlatform, box: Box) -> object:
    return platform.prepare(box.order(SECOND, generation=2), box.materials())


READS: dict[str, Verb] = {
    "GetAcceleratorQuotaStatistics": lambda platform, _: platform.survey(),
    "GetKernelSessionStatus": lambda platform, _: observed(platform, [FIRST]),
    "ListKernelSessionOutput": lambda platform, _: platform.open(FIRST),
    "ListDatasets": lambda platform, _: platform.leftovers(),
    "StartBlobUpload": prepare,
    "upload": prepare,
}
WRITES: dict[str, Verb] = {
    "CreateDataset": prepare,
    "DeleteKernel": lambda platform, _: platform.stop(FIRST),
    "SaveKernel": lambda platform, box: platform.launch(box.order(SECOND, generation=2)),
}


def start(box: Box, call: str) -> None:
    """A session that runs, or that has ended if this call is made only then."""
    is_over = call == "ListKernelSessionOutput"
    box.run(LEAVES if is_over else WAITS)
    box.until(lambda: not is_over or box.kaggle.kernel(FIRST).state is State.COMPLETE)


@pytest.mark.parametrize("call", READS)
def test_a_read_that_fails_for_ever_is_made_as_often_as_documented(box: Box, call: str) -> None:
    platform, pauses = wrapped(box.platform)
    start(box, call)
    before = box.kaggle.calls.count(call)
    box.kaggle.fail(call, Fault.SERVER_ERROR, EVER)
    with pytest.raises(Transient):
        READS[call](platform, box)
    assert box.kaggle.calls.count(call) - before == DOCUMENTED
    assert pauses == []


@pytest.mark.parametrize("call", READS)
def test_a_read_that_fails_but_the_last_time_brings_what_was_asked_for(box: Box, call: str) -> None:
    platform, _ = wrapped(box.platform)
    start(box, call)
    before = box.kaggle.calls.count(call)
    box.kaggle.fail(call, Fault.SERVER_ERROR, DOCUMENTED - 1)
    READS[call](platform, box)
    assert box.kaggle.calls.count(call) - before >= DOCUMENTED


@pytest.mark.parametrize(("fault", "times"), [(Fault.SERVER_ERROR, 1), (Fault.RATE_LIMIT, DOCUMENTED)])
@pytest.mark.parametrize("call", WRITES)
def test_a_write_is_made_once_unless_it_certainly_took_no_effect(
    box: Box, call: str, fault: Fault, times: int
) -> None:
    platform, pauses = wrapped(box.platform)
    box.run(WAITS)
    if call == "SaveKernel":
        prepare(platform, box)
    before = box.kaggle.calls.count(call)
    box.kaggle.fail(call, fault, EVER)
    with pytest.raises(Transient):
        WRITES[call](platform, box)
    assert box.kaggle.calls.count(call) - before == times
    assert pauses == []


def test_who_is_told_to_come_back_much_later_does_not_ask_before(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    busy = said({"code": 429, "message": "Too Many Requests"}, 429, Retry_After="120")
    with wire() as server:
        options = {"username": "ada", "key_file": str(tmp_path / "key"), "endpoint": server.url}
        made = catalog.build("here", "kaggle", options, folder=tmp_path / "own", clock=Hasty())
        assert isinstance(made, KagglePlatform)
        platform, pauses = wrapped(made)
        server.always("GetAcceleratorQuotaStatistics", busy)
        with pytest.raises(Transient, match="429"):
            platform.survey()
        assert len(server.calls("GetAcceleratorQuotaStatistics")) == 1
        assert pauses == []
        server.always("GetAcceleratorQuotaStatistics", said(QUOTA))
        assert platform.survey()


def test_what_a_verb_found_amiss_is_made_anew_by_the_wrapper(box: Box) -> None:
    """No request failed: Kaggle lost a part of the upload."""
    platform, pauses = wrapped(box.platform)
    box.kaggle.warts.dataset_end = "FAILED"
    with pytest.raises(Transient, match="failed to process"):
        platform.prepare(box.order(), box.materials())
    assert box.kaggle.calls.count("CreateDataset") == len(pauses) + 1 > 1
