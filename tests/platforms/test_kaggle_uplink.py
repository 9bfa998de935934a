"""Sessions on Kaggle that ship their outbox: what opens the store travels alone and goes early, and an output
that does not come costs minutes only.

With a real uplink and a real store: tests/end_to_end/test_kaggle_uplink.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.core.durable import UNSHIPPED_SECONDS_MAX, is_durable
from orchestrator.core.offer import Uplink
from orchestrator.core.order import AgentStatus, Outcome
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import Refused, Rejected
from orchestrator.platforms.kaggle.kernel import StagedFile
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.session.staging import Materials, Shipping, contents
from tests.conformance.test_platforms import agent, any_order
from tests.platforms.kaggle_box import FAILS, FIRST, WAITS, Box, Boxes, box, boxes
from tests.seen import observed
from tests.simulation.clock import VirtualClock
from tests.stand_ins.kaggle import Fault, State, Warts

__all__ = ["agent", "box", "boxes"]
OPENS = b'{"type": "s3", "secret": {"secret_key": "planted-5f2b"}}'
EVER = 1e9  # seconds


def shipping(box: Box, agent: str = WAITS, **changes: object) -> Materials:
    program = box.folder / "uplink.pyz"
    program.write_bytes(b"the uplink")
    given = {"program": program, "store": OPENS} | changes
    return replace(box.materials_of(agent), shipping=Shipping(**given))  # type: ignore[arg-type]


def launch(box: Box, agent: str = WAITS) -> None:
    box.use(uplink=True)
    order = box.order()
    box.platform.prepare(order, shipping(box, agent))
    box.platform.launch(order)


def files(box: Box, dataset: str) -> list[Path]:
    version = box.kaggle.datasets.version_for_kernel(f"{box.kaggle.settings.username}/{dataset}")
    return [] if version is None else [path for _, path in version.files()]


def kinds(box: Box) -> dict[str, list[str]]:
    """The session's datasets, and the kinds of their files."""
    return {each: sorted(path.name.split("-")[0] for path in files(box, each)) for each in box.datasets()}


def credential(box: Box) -> str:
    [name] = [name for name, found in kinds(box).items() if found == ["credential"]]
    return name


# --- The credential ---------------------------------------------------------------------------------------


def test_what_opens_the_store_travels_in_a_private_dataset_of_its_own(box: Box) -> None:
    launch(box)
    assert sorted(kinds(box).values()) == [["credential"], ["materials"]]
    alone = credential(box)
    assert box.kaggle.datasets._all[alone].is_private
    for name in box.datasets():
        holds = any(b"planted-5f2b" in path.read_bytes() for path in files(box, name))
        assert holds == (name == alone)
    box.until_claimed()
    pushed = box.kaggle.kernel(FIRST)
    assert "planted-5f2b" not in json.dumps(pushed.request)
    assert "planted-5f2b" not in pushed.machine.log.text()
    owner = box.kaggle.settings.username
    assert set(pushed.request["datasetDataSources"]) == {f"{owner}/{name}" for name in box.datasets()}
    root = pushed.folder / "tmp" / FIRST
    assert (root / "store.json").read_bytes() == OPENS
    assert (root / "store.json").stat().st_mode & 0o777 == 0o600
    assert (root / "uplink.pyz").read_bytes() == b"the uplink"


def test_it_is_deleted_as_soon_as_the_session_has_ended(box: Box) -> None:
    launch(box)
    box.until_claimed()
    assert box.see(FIRST).sighting is Sighting.RUNNING
    assert len(box.datasets()) == 2
    box.kaggle.kernel(FIRST).kill()
    box.see(FIRST)
    assert list(kinds(box).values()) == [["materials"]]
    box.until_ended(FIRST)
    box.platform.discard(FIRST)
    assert box.datasets() == []


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.LOST_REPLY])
def test_a_deletion_that_fails_is_tried_again(box: Box, fault: Fault) -> None:
    launch(box)
    box.until_claimed()
    box.kaggle.kernel(FIRST).kill()
    box.kaggle.fail("DeleteDataset", fault, box.tries)
    box.see(FIRST)
    box.until(lambda: box.see(FIRST).sighting is not None and len(box.datasets()) == 1)
    assert list(kinds(box).values()) == [["materials"]]


def test_discard_deletes_it_too(box: Box) -> None:
    """As for a session that was never launched."""
    box.use(uplink=True)
    box.platform.prepare(box.order(), shipping(box))
    assert len(box.datasets()) == 2
    box.platform.discard(FIRST)
    assert box.datasets() == []


def test_doctor_finds_one_that_nothing_remembers(box: Box) -> None:
    box.use(uplink=True)
    box.platform.prepare(box.order(), shipping(box))
    for note in (box.folder / "sessions" / "sessions").glob("*.json"):
        note.unlink()
    found = box.platform.leftovers()
    assert sorted(each.name for each in found) == sorted(box.datasets())
    for each in found:
        box.platform.remove(each)
    assert box.datasets() == []


# --- Preparing --------------------------------------------------------------------------------------------


def test_a_prepared_session_is_not_uploaded_again(box: Box) -> None:
    box.use(uplink=True)
    for _ in range(3):
        box.platform.prepare(box.order(), shipping(box))
        box.platform = box.another_controller()
    assert box.kaggle.calls.count("CreateDataset") == 2


@pytest.mark.parametrize("gone", ["credential", "materials"])
def test_a_dataset_that_somebody_deleted_is_made_again(box: Box, gone: str) -> None:
    box.use(uplink=True)
    box.platform.prepare(box.order(), shipping(box))
    [name] = [name for name, found in kinds(box).items() if found == [gone]]
    box.kaggle.datasets._all.pop(name)
    box.platform.prepare(box.order(), shipping(box))
    assert sorted(kinds(box).values()) == [["credential"], ["materials"]]
    box.platform.launch(box.order())
    box.until_claimed()


class _All(set[str]):
    """Every name, or none."""

    def __init__(self, every: bool) -> None:
        self._every = every

    def __contains__(self, _: object) -> bool:
        return self._every


@pytest.mark.parametrize("refused", [1, 2])
def test_a_dataset_that_kaggle_refuses_leaves_nothing_behind(box: Box, refused: int) -> None:
    """The first is the credential's, the second the rest's. The names may be somebody's."""
    box.use(uplink=True)
    box.kaggle.warts.names_are_shared = True
    box.kaggle.datasets.names_of_kernels = lambda: _All(box.kaggle.calls.count("CreateDataset") == refused)
    with pytest.raises(Refused):
        box.platform.prepare(box.order(), shipping(box))
    box.kaggle.datasets.names_of_kernels = set
    box.platform.prepare(box.order(), shipping(box))
    assert sorted(kinds(box).values()) == [["credential"], ["materials"]]
    box.platform.launch(box.order())
    box.until_claimed()
    box.kaggle.kernel(FIRST).kill()
    box.until_ended(FIRST)
    box.platform.discard(FIRST)
    assert box.datasets() == []


def test_a_kernel_with_an_uplink_has_the_internet(box: Box) -> None:
    launch(box)
    assert box.kaggle.kernel(FIRST).request["enableInternet"] is True


def test_a_store_that_no_session_there_can_open_is_refused(box: Box) -> None:
    box.use(uplink=True)
    with pytest.raises(Rejected, match="it has no registers"):
        box.platform.prepare(box.order(), shipping(box, refusal="it has no registers"))
    assert box.datasets() == []
    given = Shipping(box.folder / "uplink.pyz", OPENS, this_machine=True)
    with pytest.raises(Rejected, match="only this machine can open that store"):
        list(contents(any_order(FIRST, 1, 1), replace(box.materials(), shipping=given)))


def test_an_uplink_needs_the_internet() -> None:
    with pytest.raises(ValidationError, match="an uplink needs the internet"):
        KaggleOptions(uplink=True, internet=False)


def test_without_an_uplink_nothing_changes(box: Box) -> None:
    box.platform.prepare(box.order(), box.materials_of(WAITS))
    assert list(kinds(box).values()) == [["materials"]]
    traits = box.offer("cpu").traits
    assert (traits.uplink, traits.durable_mid_run, traits.absence_seconds) == (Uplink.NONE, False, 1.0)
    box.platform.launch(box.order())
    assert box.kaggle.kernel(FIRST).request.get("enableInternet", False) is False


def test_with_an_uplink_a_session_is_durable_while_it_ships(box: Box) -> None:
    box.use(uplink=True, uplink_silence_seconds=700.0)
    traits = box.offer("cpu").traits
    assert (traits.uplink, traits.durable_mid_run, traits.silence_seconds) == (Uplink.STORE, True, 700.0)
    status = AgentStatus("aaaa", 1, 1.0, "training", unshipped_seconds=60.0)
    assert is_durable(traits, status)
    assert not is_durable(traits, replace(status, unshipped_seconds=UNSHIPPED_SECONDS_MAX + 1))
    assert not is_durable(traits, replace(status, unshipped_seconds=None))
    assert not is_durable(traits, None)


# --- After its end ----------------------------------------------------------------------------------------

_SAYS = """
import json, pathlib, sys, threading, time
outbox = pathlib.Path(json.loads(sys.argv[3])["outbox"])
(outbox / "incarnation").write_text("other")
status = {{"incarnation": "other", "heartbeat": 1, "written_at": time.time(), "state": "training",
          "unshipped_seconds": {unshipped}}}
(outbox / "status.json").write_text(json.dumps(status))
threading.Event().wait(3600)
"""


@pytest.fixture
def dead(boxes: Boxes, request: pytest.FixtureRequest) -> tuple[Box, VirtualClock]:
    """A session whose machine died, and whose output never appears. It says whether it had shipped."""
    box = boxes(Warts(output_lag_seconds=EVER))
    box.use(publish_seconds=3600.0, unshipped_seconds=600.0)
    launch(box, _SAYS.format(unshipped=request.param))
    box.until(lambda: box.see(FIRST).status is not None)
    box.kaggle.kernel(FIRST).kill()
    box.until(lambda: box.kaggle.kernel(FIRST).state is State.ERROR)
    clock = VirtualClock()
    box.platform = box.another_controller(clock=clock)
    return box, clock


def looks(box: Box, clock: VirtualClock, minutes: float) -> Sighting:
    for _ in range(int(minutes)):
        clock.advance(60.0)
        seen = observed(box.platform, [FIRST])[FIRST]
    return seen.sighting


@pytest.mark.parametrize("dead", [5.0], indirect=True)
def test_what_was_not_shipped_is_waited_for_minutes_only(dead: tuple[Box, VirtualClock]) -> None:
    box, clock = dead
    assert looks(box, clock, 8) is Sighting.SAVING
    assert looks(box, clock, 8) is Sighting.ENDED
    assert box.platform.stop(FIRST) is StopReply.ENDED


@pytest.mark.parametrize("dead", [4000.0, "None"], indirect=True)
def test_a_session_that_had_not_shipped_for_long_is_waited_for_like_any(
    dead: tuple[Box, VirtualClock],
) -> None:
    """Its work is nowhere else."""
    box, clock = dead
    assert looks(box, clock, 300) is Sighting.SAVING


def test_a_session_that_hears_it_has_time_to_save_and_leave(box: Box) -> None:
    """It is asked through the home store. If it does not leave, its kernel is deleted."""
    box.use(grace_seconds=60.0)
    launch(box)
    box.until_claimed()
    clock = VirtualClock()
    box.platform = box.another_controller(clock=clock)
    for seconds in (0.0, 30.0, 29.0):
        clock.advance(seconds)
        assert box.platform.stop(FIRST) is StopReply.REQUESTED
    assert box.kaggle.kernel(FIRST).state is State.RUNNING
    clock.advance(2.0)
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.see(FIRST).sighting is Sighting.ABSENT


def test_one_that_says_that_it_ships_may_take_longer(boxes: Boxes) -> None:
    box = boxes()
    box.use(grace_seconds=60.0, saving_seconds=600.0)
    launch(box, _SAYS.format(unshipped=5.0).replace('"training"', '"shipping"'))
    box.until(lambda: box.see(FIRST).status is not None)
    clock = VirtualClock()
    box.platform = box.another_controller(clock=clock)
    for seconds, reply in (
        (0.0, StopReply.REQUESTED),
        (500.0, StopReply.REQUESTED),
        (200.0, StopReply.ENDED),
    ):
        clock.advance(seconds)
        assert box.platform.stop(FIRST) is reply


def test_a_session_that_waits_in_the_queue_is_deleted_at_once(boxes: Boxes) -> None:
    box = boxes(queue_seconds=EVER)
    launch(box)
    assert box.platform.stop(FIRST) is StopReply.ENDED


def test_a_session_that_failed_says_why_as_before(box: Box) -> None:
    launch(box, FAILS)
    seen = box.until_ended(FIRST)
    assert seen.ending is Outcome.CRASHED
    assert "it went wrong" in seen.detail


def test_the_name_of_a_credential_file_shows_whose_it_is() -> None:
    name = StagedFile("credential", "a" * 12, "b" * 12, "c" * 64).name
    assert StagedFile.parse(name) == StagedFile("credential", "a" * 12, "b" * 12, "c" * 64)
