"""The kaggle platform against the local Kaggle: every pitfall, and how sessions end.

The pitfalls follow from docs/references/kaggle.md.

| pitfall | shown by |
|---|---|
| endpoint | test_kaggle_client: test_tests_cannot_reach_production, test_children_of_tests_cannot_either |
| judge a push | test_a_refused_push_…, test_a_kernel_without_what_it_needs_is_deleted |
| ambiguous push | test_a_push_whose_answer_was_lost_…, test_a_push_that_failed_… |
| timeouts, 429 | test_kaggle_client: test_a_read_…, test_a_write_…; test_kaggle_faults: test_an_outage_… |
| one slug a session | test_a_session_is_one_version_of_one_kernel |
| terminal states | test_while_kaggle_saves_…, test_an_unknown_state_…, test_how_it_ended_… |
| stale RUNNING | test_a_wedged_session_runs_until_it_is_stopped |
| verify transfers | test_kaggle_transfers; test_kaggle_faults: test_a_dataset_…, test_what_is_mounted_… |
| quota first | test_a_used_up_quota_is_told_before_anything_is_uploaded |
| late logs, outputs | test_late_outputs_…, test_outputs_that_never_…, test_a_late_log_…, test_a_log_… |
| all explicit | test_a_session_is_one_version_of_one_kernel; test_kaggle_values: test_the_machine_… |
| deleting loses | test_kaggle_faults: test_only_stop_deletes_what_runs |
| one account, no secrets | test_kaggle_faults: test_a_secret_is_in_one_private_dataset_and_nowhere_else |
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.bounds import PART_BYTES_MAX
from orchestrator.core.offer import UntilKind
from orchestrator.core.order import Outcome
from orchestrator.core.session import ABSENT, Sighting, StopReply
from orchestrator.errors import NotFound, QuotaExhausted, Refused, Rejected, Transient
from orchestrator.platforms.kaggle import refusals
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import (
    FAILS,
    FIRST,
    LEAVES,
    SECOND,
    TALKS,
    VANISHES,
    WAITS,
    Box,
    Boxes,
    Hasty,
    box,
    boxes,
    show,
)
from tests.seen import observed
from tests.stand_ins.kaggle import Fault, State, Warts

__all__ = ["agent", "box", "boxes"]
GPU: dict[str, Any] = {"accelerator": "T4x2", "devices": 2}
EVER = 1e9  # seconds


# --- What is pushed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wart", ["slots", "used up", "projected"])
def test_a_refused_push_says_until_when_and_runs_nothing(boxes: Boxes, wart: str) -> None:
    box = boxes(gpu_slots=1 if wart == "slots" else 2)
    if wart != "used up":
        box.run(WAITS, FIRST, **GPU)
    order = box.order(SECOND, generation=2, **GPU)
    box.platform.prepare(order, box.materials())
    refresh_at = box.kaggle_quota().refresh_at
    box.platform.survey()
    if wart != "slots":
        box.kaggle.use_up("gpu", 0.0 if wart == "used up" else 50.0)
    with pytest.raises(QuotaExhausted) as refused:
        box.platform.launch(order)
    now, until = Hasty().now(), refused.value.until
    assert until is not None
    assert refresh_at is not None
    expected = {
        "slots": now + refusals.SLOT_SECONDS,
        "used up": refresh_at,
        "projected": now + refusals.PROJECTED_SECONDS,
    }
    assert until == pytest.approx(expected[wart], abs=30.0)
    assert "Kaggle refuses the session" in str(refused.value)
    assert box.see(SECOND) == ABSENT
    box.platform.discard(SECOND)
    assert box.mounted(SECOND) == []


def test_a_source_that_is_too_large_is_rejected(boxes: Boxes) -> None:
    box = boxes(text_bytes_max=100)
    with pytest.raises(Rejected, match="too large"):
        box.run(WAITS)
    assert box.see(FIRST) == ABSENT


def test_a_kernel_without_what_it_needs_is_deleted(box: Box) -> None:
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    box.platform.prepare(order, box.materials(box.into(FIRST)))
    box.platform.discard(FIRST)  # and with it the output that holds the checkpoint
    with pytest.raises(Refused, match=f"does not find the data to mount.*kernel ada/{FIRST}"):
        box.platform.launch(order)
    assert box.see(SECOND) == ABSENT
    assert box.trainings(SECOND) == 0


def test_a_kernel_without_what_it_needs_says_so_where_it_cannot_be_deleted(box: Box) -> None:
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    box.platform.prepare(order, box.materials(box.into(FIRST)))
    box.platform.discard(FIRST)
    box.kaggle.fail("DeleteKernel", Fault.SERVER_ERROR)
    with pytest.raises(Transient):
        box.platform.launch(order)
    result = box.until_ended(SECOND).result
    assert result is not None
    assert result.outcome is Outcome.LOST
    assert order.resume is not None
    assert order.resume in result.message


def test_a_push_whose_answer_was_lost_is_found_and_not_repeated(boxes: Boxes) -> None:
    box = boxes(visible_seconds=EVER)
    box.kaggle.fail("SaveKernel", Fault.LOST_REPLY)
    order = box.order()
    box.platform.prepare(order, box.materials())
    with pytest.raises(Transient):
        box.platform.launch(order)
    assert box.see(FIRST) == ABSENT, "not visible yet"
    assert box.platform.stop("never-s01") is StopReply.ENDED
    show(box)
    box.until(lambda: box.see(FIRST) != ABSENT)
    box.platform = box.another_controller()
    box.platform.launch(order)
    assert box.until_ended(FIRST).result is not None
    assert len(box.kaggle.pushed) == 1
    assert box.trainings(FIRST) == 1


def test_a_push_that_failed_may_be_made_again(box: Box) -> None:
    box.kaggle.fail("SaveKernel", Fault.SERVER_ERROR)
    order = box.order(total=1)
    box.platform.prepare(order, box.materials())
    with pytest.raises(Transient):
        box.platform.launch(order)
    assert box.see(FIRST) == ABSENT
    with pytest.raises(Transient, match="may have taken effect"):
        box.platform.launch(order)
    box.use(visibility_seconds=0.01)  # as if so much time had passed
    box.platform.launch(order)
    assert box.until_ended(FIRST).result is not None
    assert len(box.kaggle.pushed) == 1


def test_a_session_is_one_version_of_one_kernel(box: Box) -> None:
    order = box.run(LEAVES, **GPU)
    box.platform.launch(order)
    box.until_ended(FIRST)
    box.platform.launch(order)
    box.another_controller().launch(order)
    [pushed] = box.kaggle.pushed
    wanted = {
        "slug": f"ada/{FIRST}", "newTitle": FIRST, "isPrivate": True, "machineShape": "NvidiaTeslaT4",
        "enableGpu": True, "sessionTimeoutSeconds": 599,
        "datasetDataSources": [f"ada/{name}" for name in box.datasets()],
    }  # fmt: skip
    assert {name: pushed.get(name) for name in wanted} == wanted
    assert not pushed.get("enableInternet")
    assert not pushed.get("enableTpu")
    assert box.kaggle.kernel(FIRST).version == 1


def test_a_used_up_quota_is_told_before_anything_is_uploaded(box: Box) -> None:
    box.kaggle.use_up("gpu")
    gone, cpu = (box.offer(each).unavailable for each in ("T4x2", "cpu"))
    assert cpu is None
    assert gone is not None
    assert gone.until.kind is UntilKind.TIME
    assert "GPU quota is used up" in gone.reason
    assert box.kaggle.uploaded == []


# --- While it runs ----------------------------------------------------------------------------------------


def test_a_session_that_says_nothing_is_a_running_one(box: Box) -> None:
    box.run(WAITS)
    box.until_claimed()
    seen = box.see(FIRST)
    assert (seen.sighting, seen.status, seen.incarnations) == (Sighting.RUNNING, None, ())
    for fault in (Fault.SERVER_ERROR, Fault.HTML, Fault.NESTED, Fault.CUT):
        box.kaggle.fail("logs", fault, 1 if fault in (Fault.NESTED, Fault.CUT) else box.tries)
        assert box.see(FIRST).sighting is Sighting.RUNNING, fault


@pytest.mark.parametrize("stream_events_max", [0, 6])
def test_a_running_session_says_what_it_does(boxes: Boxes, stream_events_max: int) -> None:
    """Also when the log's stream breaks off, which proves nothing (docs/references/kaggle.md#log)."""
    box = boxes(Warts(stream_events_max=stream_events_max))
    box.run()
    box.until(lambda: box.see(FIRST).status is not None)
    seen = box.see(FIRST)
    assert seen.status is not None
    assert seen.incarnations == (seen.status.incarnation,)


def test_what_kaggle_says_of_itself_is_not_on_our_screen(
    boxes: Boxes, capfd: pytest.CaptureFixture[str]
) -> None:
    """The package prints a warning if the server is newer (docs/references/kaggle.md#errors)."""
    box = boxes(Warts(api_version="99.0.0"))
    box.run_to_end(total=1)
    box.collect(FIRST)
    assert capfd.readouterr() == ("", "")


def test_a_session_in_the_queue_is_pending(boxes: Boxes) -> None:
    box = boxes(queue_seconds=3600.0)
    box.run(WAITS)
    assert box.see(FIRST).sighting is Sighting.PENDING
    box.kaggle.warts.queued_is_omitted = False
    box.kaggle.warts.camel_case_status = True
    assert box.see(FIRST).sighting is Sighting.PENDING


def test_an_unknown_state_is_not_an_end(box: Box) -> None:
    box.run(WAITS)
    box.until_claimed()
    box.kaggle.warts.unknown_status = "PREEMPTED"
    assert box.see(FIRST).sighting is Sighting.RUNNING
    assert box.platform.stop(FIRST) is StopReply.ENDED


def test_one_that_cannot_be_read_hides_no_other(box: Box) -> None:
    box.run(WAITS, FIRST)
    box.run(WAITS, SECOND, generation=2)
    box.kaggle.fail("GetKernelSessionStatus", Fault.SERVER_ERROR, box.tries)
    assert set(observed(box.platform, [FIRST, SECOND])) == {SECOND}
    box.kaggle.fail("GetKernelSessionStatus", Fault.SERVER_ERROR, 2 * box.tries)
    with pytest.raises(Transient):
        observed(box.platform, [FIRST, SECOND])
    assert set(observed(box.platform, [FIRST, SECOND])) == {FIRST, SECOND}


def test_a_wedged_session_runs_until_it_is_stopped(box: Box) -> None:
    box.run(WAITS, **GPU)
    box.until_claimed()
    box.kaggle.kernel(FIRST).wedge()
    assert box.see(FIRST).sighting is Sighting.RUNNING
    with pytest.raises(Transient, match="does not show its output"):
        box.collect(FIRST)
    with pytest.raises(Transient):
        box.platform.discard(FIRST)
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.see(FIRST) == ABSENT
    quota = box.kaggle_quota().gpu
    assert quota is not None
    assert quota.reserved == 0.0


# --- How it ended -----------------------------------------------------------------------------------------


def test_while_kaggle_saves_it_is_neither_running_nor_collected(boxes: Boxes) -> None:
    box = boxes(publish_seconds=EVER)
    box.run()
    box.until_saved(FIRST)
    box.kaggle.kernel(FIRST).cancel()
    seen = box.see(FIRST)
    assert seen.sighting is Sighting.SAVING
    assert "saving" in seen.detail
    with pytest.raises(Transient):
        box.collect(FIRST)
    assert box.platform.stop(FIRST) is StopReply.REQUESTED, "a deletion would lose what is being saved"
    session = box.kaggle.kernel(FIRST)
    session.settings = replace(session.settings, publish_seconds=0.0)
    ended = box.until_ended(FIRST)
    assert (ended.result, ended.ending) == (None, Outcome.LOST)
    assert ended.detail == "it was cancelled on Kaggle, or its time-out ended it"
    assert box.collect(FIRST).manifests, "its saved work is kept"


def test_a_kernel_that_is_saved_for_ever_is_deleted(boxes: Boxes) -> None:
    box = boxes(publish_seconds=600.0)
    box.use(saving_seconds=0.0)
    box.run()
    box.until_saved(FIRST)
    box.kaggle.kernel(FIRST).cancel()
    assert box.see(FIRST).sighting is Sighting.SAVING
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.see(FIRST) == ABSENT


@pytest.mark.parametrize("wall_end", ["CANCEL_ACKNOWLEDGED", "ERROR"])
def test_how_it_ended_at_the_wall_is_no_cancel(boxes: Boxes, wall_end: str) -> None:
    box = boxes(Warts(wall_end=wall_end))  # type: ignore[arg-type]
    box.use(session_seconds=3.0)
    box.run(TALKS)
    ended = box.until_ended(FIRST)
    assert box.kaggle.kernel(FIRST).state is State(wall_end)
    assert (ended.result, ended.ending) == (None, Outcome.LOST)
    assert "session limit" in ended.detail


def test_how_it_ended_without_our_marker_is_not_known(box: Box) -> None:
    """A complete kernel has a result, so it is missing from the list: test_kaggle_late says more."""
    box.run(VANISHES)
    box.until(lambda: box.kaggle.kernel(FIRST).state is State.COMPLETE)
    seen = box.see(FIRST)
    assert (seen.sighting, seen.result) == (Sighting.SAVING, None)
    assert "its result is not visible yet" in seen.detail


def test_how_it_ended_when_the_quota_did(box: Box) -> None:
    box.run(**GPU)
    box.until_saved(FIRST)
    box.kaggle.use_up("gpu")
    ended = box.until_ended(FIRST)
    assert (ended.result, ended.ending) == (None, Outcome.QUOTA_EXHAUSTED)
    assert box.collect(FIRST).manifests


def test_a_failure_on_a_cpu_is_not_the_quotas(box: Box) -> None:
    """Waiting for quota never counts against a run. A failure reported as that would be retried for ever."""
    box.kaggle.use_up("gpu")
    box.kaggle.use_up("tpu")
    box.run(FAILS)
    ended = box.until_ended(FIRST)
    assert ended.ending is Outcome.CRASHED
    assert "it went wrong" in ended.detail


def test_a_late_log_is_waited_for_before_an_end_is_judged(boxes: Boxes) -> None:
    """The log tells which machine the session had."""
    box = boxes(Warts(log_lag_seconds=EVER))
    box.use(publish_seconds=EVER)
    box.kaggle.use_up("gpu")
    box.run(FAILS)
    box.until(lambda: box.kaggle.kernel(FIRST).state is State.ERROR)
    assert box.see(FIRST).sighting is Sighting.SAVING
    box.kaggle.warts.log_lag_seconds = 0.0
    box.use(publish_seconds=0.5)  # without a result, more may come until then
    assert box.until_ended(FIRST).ending is Outcome.CRASHED


def test_outputs_that_never_come_are_lost_after_a_while(boxes: Boxes) -> None:
    box = boxes(Warts(error_loses_outputs=True))
    box.run(FAILS)
    box.until(lambda: box.kaggle.kernel(FIRST).state is State.ERROR)
    assert "not visible yet" in box.see(FIRST).detail
    ended = box.until_ended(FIRST)
    assert (ended.ending, ended.incarnations) == (Outcome.CRASHED, ())
    with pytest.raises(NotFound):
        box.collect(FIRST)


def test_late_outputs_are_waited_for(boxes: Boxes) -> None:
    box = boxes(Warts(output_lag_seconds=EVER))
    box.use(publish_seconds=EVER)
    box.start(box.order())
    box.until(lambda: box.kaggle.kernel(FIRST).state is State.COMPLETE)
    assert "not visible yet" in box.see(FIRST).detail
    box.kaggle.warts.output_lag_seconds = 0.0
    result = box.until_ended(FIRST).result
    assert result is not None
    assert result.outcome is Outcome.COMPLETED
    assert box.collect(FIRST).manifests[-1].ref.step == 6


def test_a_log_that_never_comes_is_done_without(boxes: Boxes) -> None:
    box = boxes(Warts(log_lag_seconds=3600.0))
    box.run(FAILS)
    ended = box.until_ended(FIRST)
    assert ended.ending is Outcome.CRASHED
    assert "exit code 3" in ended.detail


def test_a_list_that_ends_early_is_no_end(box: Box) -> None:
    """Kaggle once listed 500 files at most (docs/references/kaggle.md#output). Missing files are reported by
    name."""
    box.run_to_end()
    names = [name for name, _ in box.kaggle.kernel(FIRST).outputs]
    box.kaggle.warts.output_files_max = names.index("outbox/result.json")  # the names are sorted
    seen = box.see(FIRST)
    assert (seen.sighting, seen.result) == (Sighting.SAVING, None)
    assert box.collect(FIRST).manifests
    assert not (box.into(FIRST) / "result.json").exists()


@pytest.mark.parametrize("name", ["../evil", "outbox/../../evil", "outbox/blobs/../../../evil", "/evil"])
def test_a_name_leads_nowhere_else(boxes: Boxes, name: str) -> None:
    box = boxes(Warts(hostile_output_name=name))
    box.run(LEAVES)
    box.until_ended(FIRST)
    before = set(box.folder.parent.rglob("*"))
    box.collect(FIRST)
    new = {path for path in set(box.folder.parent.rglob("*")) - before if path != box.folder / "collected"}
    assert new
    assert all(path.is_relative_to(box.into(FIRST)) and path.name != "evil" for path in new)


def test_a_checkpoint_that_is_far_too_large_hides_no_other(box: Box) -> None:
    box.run_to_end()
    bad = box.corrupt(FIRST)
    name = box.state_blob(bad)
    [blob] = [path for listed, path in box.kaggle.kernel(FIRST).outputs if listed.endswith(name)]
    with blob.open("r+b") as file:
        file.truncate(PART_BYTES_MAX + 1)
    collected = box.collect(FIRST)
    assert [name for name, _ in collected.corrupt] == [bad]
    assert collected.manifests
    assert (box.into(FIRST) / "result.json").exists()


def test_a_file_that_is_far_too_large_hides_no_session(box: Box) -> None:
    huge = "(outbox / 'status.json').write_bytes(b'x' * (17 << 20))"
    box.run(f"{LEAVES}\n{huge}\n", FIRST)
    box.run(LEAVES, SECOND, generation=2)
    box.until_ended(SECOND)
    seen = box.until_ended(FIRST)
    assert seen.status is None
    assert seen.result is not None
    assert seen.result.outcome is Outcome.STOPPED


# --- The machine ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "warts", "there"),
    [
        (GPU, Warts(substitute_gpu="Tesla P100-PCIE-16GB"), "P100"),
        (GPU, Warts(substitute_gpu="none"), "no GPU"),
        ({"accelerator": "TPUv5e-8", "devices": 8}, Warts(tpu_is_missing=True), "no TPU"),
    ],
)
def test_another_machine_than_the_one_ordered_is_no_capacity(
    boxes: Boxes, order: dict[str, Any], warts: Warts, there: str
) -> None:
    box = boxes(warts)
    result = box.run_to_end(**order).result
    assert result is not None
    assert result.outcome is Outcome.NO_CAPACITY
    assert there in result.message
    assert box.trainings(FIRST) == 0


@pytest.mark.parametrize("order", [GPU, {"accelerator": "T4", "devices": 1}])
def test_the_machine_that_was_ordered_is_used(box: Box, order: dict[str, Any]) -> None:
    result = box.run_to_end(**order).result
    assert result is not None
    assert result.outcome is Outcome.COMPLETED


def test_an_agent_that_is_killed_leaves_its_checkpoints(box: Box) -> None:
    box.run()
    box.until_saved(FIRST)
    os.kill(box.agent_pid(), signal.SIGKILL)
    ended = box.until_ended(FIRST)
    assert (ended.result, ended.ending) == (None, Outcome.CRASHED)
    assert ended.status is not None
    collected = box.collect(FIRST)
    assert collected.corrupt == ()
    assert ended.status.checkpoint in [each.name for each in collected.manifests]
    training = int(Path(box.trace(FIRST)).read_text())
    box.until(lambda: not Path(f"/proc/{training}").exists())


def test_a_kernel_that_is_asked_to_leave_saves(box: Box) -> None:
    box.run()
    box.until_saved(FIRST)
    pid = box.kaggle.kernel(FIRST).pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    result = box.until_ended(FIRST).result
    assert result is not None
    assert result.outcome is Outcome.STOPPED
    assert box.kaggle.kernel(FIRST).state is State.COMPLETE
    assert box.collect(FIRST).manifests[-1].ref.step == result.step


@pytest.mark.parametrize("keeps", [False, True])
def test_a_machine_that_dies_takes_what_it_had_with_it(boxes: Boxes, keeps: bool) -> None:
    box = boxes(Warts(death_keeps_outputs=keeps))
    box.run()
    box.until_saved(FIRST)
    box.kaggle.kernel(FIRST).kill()
    if keeps:
        ended = box.until_ended(FIRST)
        assert ended.ending is Outcome.CRASHED
        assert "machine failed" in ended.detail
        assert box.collect(FIRST).manifests
        return
    box.until(lambda: box.see(FIRST).sighting is Sighting.SAVING)
    with pytest.raises(Transient, match="does not show its output"):
        box.collect(FIRST)
