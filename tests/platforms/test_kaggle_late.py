"""Kaggle shows what an ended session left late, in parts, or not at all: it is waited for, and never deleted.

With a real controller: tests/end_to_end/test_kaggle.py.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.order import Outcome
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import Transient
from orchestrator.platforms.kaggle.options import HOUR
from orchestrator.session.outbox import Outbox
from tests.conformance.platform_suite import check_blobs
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FAILS, FIRST, LEAVES, VANISHES, Box, Boxes, box, boxes
from tests.seen import observed
from tests.simulation.clock import VirtualClock
from tests.stand_ins.kaggle import State, Warts

__all__ = ["agent", "box", "boxes"]
PAGE = f"look at https://www.kaggle.com/code/ada/{FIRST}"
EVER = 1e9  # seconds
LEAVES_ONE_EMPTY = f"""{LEAVES}
(outbox / "log").mkdir()
(outbox / "log" / "000001.log").touch()
(outbox / "progress.jsonl").write_text("{{}}")
"""
DELETIONS = ("DeleteKernel", "DeleteDataset")


def until_over(box: Box) -> None:
    """Waits until Kaggle says that the session has ended, without a look of ours."""
    box.until(lambda: box.kaggle.kernel(FIRST).state in (State.COMPLETE, State.ERROR))


def check_waiting(box: Box, words: str) -> None:
    seen = box.see(FIRST)
    assert (seen.sighting, seen.result, seen.ending) == (Sighting.SAVING, None, None)
    assert words in seen.detail
    assert PAGE in seen.detail


def check_whole(box: Box) -> None:
    """Once all of it is there, the session has ended like any other."""
    result = box.until_ended(FIRST).result
    assert result is not None
    assert result.outcome is Outcome.COMPLETED
    collected = box.collect(FIRST)
    assert (collected.corrupt, collected.manifests[-1].ref.step) == ((), 6)
    for manifest in collected.manifests:
        check_blobs(box.into(FIRST), manifest)


# --- Late or partial --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wart", "words"),
    [
        ("output_lag_seconds", "its output is not visible yet"),
        ("output_grows_seconds", "not visible yet"),
        ("url_lag_seconds", "its status cannot be read yet"),
    ],
)
def test_an_output_that_is_late_is_waited_for(boxes: Boxes, wart: str, words: str) -> None:
    """It is empty, its list grows, or its files cannot be downloaded."""
    box = boxes(Warts(**{wart: EVER}))  # type: ignore[arg-type]
    box.start(box.order())
    until_over(box)
    check_waiting(box, words)
    seen = box.see(FIRST)
    assert seen.log, "what it printed is shown until then"
    assert seen.status is not None
    setattr(box.kaggle.warts, wart, 0.0)
    check_whole(box)


@pytest.mark.parametrize(
    ("late", "words"),
    [
        ("outbox/result.json", "its result is not visible yet"),
        ("/blobs/", "more may come"),
        ("/manifest.json", "is not visible yet"),
        ("outbox/status.json", "more may come"),
        ("outbox/log/", "more may come"),
    ],
)
def test_an_output_of_which_a_part_is_late_is_waited_for(box: Box, late: str, words: str) -> None:
    box.start(box.order())
    until_over(box)
    outputs = box.kaggle.kernel(FIRST).outputs
    missing = [each for each in outputs if late in each[0]][-1]
    assert missing[1].stat().st_size > 0
    outputs.remove(missing)
    check_waiting(box, words)
    outputs.append(missing)
    check_whole(box)


def test_a_list_that_grows_file_by_file_ends_only_when_it_is_whole(boxes: Boxes) -> None:
    box = boxes(Warts(output_grows_seconds=EVER))
    box.use(publish_seconds=EVER)
    box.start(box.order())
    until_over(box)
    sightings = {box.see(FIRST).sighting}
    over = box.kaggle.kernel(FIRST).seconds_over(SystemClock().monotonic())
    box.kaggle.warts.output_grows_seconds = over + 1.5
    check_whole(box)
    assert sightings == {Sighting.SAVING}


def test_an_empty_file_stands_in_for_no_other(box: Box) -> None:
    """Kaggle may list it or not."""
    box.use(publish_seconds=EVER)
    box.run(LEAVES_ONE_EMPTY)
    until_over(box)
    outputs = box.kaggle.kernel(FIRST).outputs
    [empty] = [each for each in outputs if each[0].endswith("000001.log")]
    [late] = [each for each in outputs if each[0].endswith("progress.jsonl")]
    outputs.remove(late)
    box.see(FIRST)
    check_waiting(box, "more may come")
    outputs.append(late)
    outputs.remove(empty)
    assert box.until_ended(FIRST).result is not None


def test_a_checkpoint_that_only_the_log_tells_of_is_waited_for(box: Box) -> None:
    """Without a result, the log still says what the agent has committed."""
    box.run()
    box.until_saved(FIRST)
    box.kaggle.kernel(FIRST).cancel()
    outputs = box.kaggle.kernel(FIRST).outputs
    last = {name for name, _ in outputs if name.endswith(("/manifest.json", "/status.json"))}
    kept = [each for each in outputs if each[0] not in last]
    missing = [each for each in outputs if each[0] in last]
    outputs[:] = kept
    box.see(FIRST)
    box.use(publish_seconds=0.0)
    check_waiting(box, "its checkpoint 0")
    outputs.extend(missing)
    assert box.until_ended(FIRST).ending is Outcome.LOST
    assert box.collect(FIRST).manifests


def test_a_session_that_runs_according_to_kaggle_and_only_saves_does_not_run(boxes: Boxes) -> None:
    """A deletion would lose what is being saved, so a stop only waits."""
    box = boxes(Warts(saves_while_running=True), publish_seconds=EVER)
    box.start(box.order(total=1))
    box.until(lambda: box.kaggle.kernel(FIRST).machine.exit_code() is not None)
    box.until(lambda: box.see(FIRST).sighting is Sighting.SAVING)
    assert box.kaggle.kernel(FIRST).shown_state is State.RUNNING
    assert PAGE in box.see(FIRST).detail
    assert box.platform.stop(FIRST) is StopReply.REQUESTED
    assert box.kaggle.calls.count("DeleteKernel") == 0
    box.use(saving_seconds=0.0)
    assert box.platform.stop(FIRST) is StopReply.ENDED


def cancelled(boxes: Boxes) -> Box:
    """A session that saved work and was cancelled on request; nothing of its output is listed yet."""
    box = boxes(Warts(cancel_works=True, output_grows_seconds=EVER))
    box.use(publish_seconds=HOUR)
    box.run()
    box.until_saved(FIRST)
    assert box.platform.stop(FIRST) is StopReply.REQUESTED
    assert box.kaggle.kernel(FIRST).state is State.CANCEL_ACKNOWLEDGED
    return box


def test_a_session_that_was_cancelled_has_not_ended_before_its_output_is_all_there(boxes: Boxes) -> None:
    """Otherwise the first files of a growing list would be taken for all of it, and the rest deleted."""
    box = cancelled(boxes)
    for platform in (box.platform, box.another_controller()):
        assert platform.stop(FIRST) is StopReply.REQUESTED
    assert box.see(FIRST).sighting is Sighting.SAVING
    box.kaggle.warts.output_grows_seconds = 0.0
    box.until(lambda: box.platform.stop(FIRST) is StopReply.ENDED)
    assert box.collect(FIRST).manifests
    assert box.kaggle.calls.count("DeleteKernel") == 0


def test_a_list_that_grows_slowly_has_not_settled(boxes: Boxes) -> None:
    """It did not change between two looks, but lacks the checkpoint that the agent told of."""
    later = Later(cancelled(boxes))
    outputs = later.box.kaggle.kernel(FIRST).outputs
    missing = [each for each in outputs if each[0].endswith("/manifest.json")]
    outputs[:] = [each for each in outputs if each not in missing]
    later.box.kaggle.warts.output_grows_seconds = 0.0
    for _ in range(4):
        assert later.platform.stop(FIRST) is StopReply.REQUESTED
        later.clock.advance(400.0)
    outputs.extend(missing)
    assert later.platform.stop(FIRST) is StopReply.REQUESTED
    later.clock.advance(900.0)
    assert later.platform.stop(FIRST) is StopReply.ENDED


def test_an_output_that_the_user_gave_up_is_waited_for_no_longer_than_an_hour(boxes: Boxes) -> None:
    later = Later(cancelled(boxes))
    assert later.platform.stop(FIRST) is StopReply.REQUESTED
    later.clock.advance(HOUR - 1.0)
    assert later.platform.stop(FIRST) is StopReply.REQUESTED
    later.clock.advance(1.0)
    assert later.look() is Sighting.SAVING, "it would come, but nobody wants it"
    assert later.platform.stop(FIRST) is StopReply.ENDED


# --- Never there ------------------------------------------------------------------------------------------


class Later:
    """The box's account, looked at by a controller whose time we move."""

    def __init__(self, box: Box, home: str = "sessions") -> None:
        self.box = box
        self.clock = VirtualClock()
        box.use(publish_seconds=HOUR, poll_seconds=45.0)
        self.platform = box.another_controller(home, self.clock)

    def look(self) -> Sighting:
        return observed(self.platform, [FIRST])[FIRST].sighting

    def looks_of(self, seconds: float) -> list[float]:
        """When the outputs were listed, with a look in every 45 seconds."""
        listed: list[float] = []
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            before = self.listings
            assert self.look() is Sighting.SAVING
            listed += [self.clock.monotonic()] if self.listings > before else []
            self.clock.advance(45.0)
        return listed

    @property
    def listings(self) -> int:
        return self.box.kaggle.calls.count("ListKernelSessionOutput")

    def open(self) -> Outbox:
        return self.platform.open(FIRST)


def test_it_is_looked_for_with_growing_pauses(boxes: Boxes) -> None:
    box = boxes(Warts(output_lag_seconds=EVER))
    box.start(box.order(total=1))
    until_over(box)
    times = Later(box).looks_of(2 * HOUR)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (45.0, 900.0)
    assert len(times) < 16


@pytest.mark.parametrize("lost", ["agent in the log", "agent in the output", "complete"])
def test_what_worked_and_whose_output_never_comes_is_kept_for_ever(boxes: Boxes, lost: str) -> None:
    box = boxes(Warts(cancel_loses_outputs=lost == "agent in the log",
                      output_lag_seconds=EVER if lost == "complete" else 0.0))  # fmt: skip
    box.run(VANISHES if lost == "complete" else None)
    later = Later(box)
    if lost == "complete":
        until_over(box)
    else:
        box.until_saved(FIRST)
        box.kaggle.kernel(FIRST).cancel()
    if lost == "agent in the output":  # without a checkpoint, for a home that knows nothing of it
        outputs = box.kaggle.kernel(FIRST).outputs
        outputs[:] = [each for each in outputs if "/checkpoints/" not in each[0]]
        later = Later(box, home="restored")
    for _ in range(10):
        assert later.look() is Sighting.SAVING
        later.clock.advance(HOUR)
    assert PAGE in observed(later.platform, [FIRST])[FIRST].detail
    assert [box.kaggle.calls.count(each) for each in DELETIONS] == [0, 0]


def test_an_output_that_comes_after_all_is_taken(boxes: Boxes) -> None:
    """Also by a controller that was started meanwhile, and long after `publish_seconds`."""
    box = boxes(Warts(output_lag_seconds=EVER))
    box.start(box.order())
    until_over(box)
    later = Later(box)
    assert later.look() is Sighting.SAVING
    later.clock.advance(10 * HOUR)
    assert later.look() is Sighting.SAVING
    with pytest.raises(Transient, match=PAGE):
        later.open()
    box.kaggle.warts.output_lag_seconds = 0.0
    later.clock.advance(900.0)
    later.look()
    later.clock.advance(900.0)
    assert later.look() is Sighting.ENDED
    assert later.open().checkpoints()
    check_whole(box)


def test_what_never_worked_and_left_nothing_is_over_after_an_hour(boxes: Boxes) -> None:
    box = boxes(Warts(error_loses_outputs=True))
    box.run(FAILS)
    until_over(box)
    later = Later(box)
    assert later.look() is Sighting.SAVING
    later.clock.advance(HOUR - 1.0)
    assert later.look() is Sighting.SAVING
    later.clock.advance(900.0)
    assert later.look() is Sighting.ENDED
