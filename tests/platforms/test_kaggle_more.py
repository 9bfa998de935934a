"""The kaggle platform when its data appears late, and when its user acts meanwhile."""

from __future__ import annotations

import fcntl
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.order import Outcome
from orchestrator.core.session import Sighting
from orchestrator.errors import AccessDenied, Refused, Transient
from orchestrator.platforms.kaggle import platform as kaggle_platform
from orchestrator.platforms.kaggle import staging, uploads
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.memory import Known, Memory
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.platforms.kaggle.platform import KagglePlatform
from tests.conformance.test_platforms import agent
from tests.platforms.kaggle_box import FAILS, FIRST, WAITS, Box, Boxes, box, boxes
from tests.platforms.kaggle_wire import KEY, said, wire
from tests.seen import collected, observed
from tests.stand_ins.kaggle import Fault
from tests.stand_ins.kaggle.session import State

__all__ = ["agent", "box", "boxes"]


def test_a_listed_output_that_does_not_come_is_not_taken_for_none(box: Box, tmp_path: Path) -> None:
    box.run_to_end()
    box.kaggle.fail("download", Fault.NESTED, times=2)  # a 403, and again with the new address
    with pytest.raises(Transient, match="lists a missing file"):
        collected(box.platform, FIRST, tmp_path / "into")
    assert collected(box.platform, FIRST, tmp_path / "into").manifests[-1].ref.step == 6


@pytest.mark.parametrize("call", ["StartBlobUpload", "CreateDataset", "SaveKernel"])
def test_what_kaggle_does_not_allow_is_refused_and_not_missing(box: Box, call: str) -> None:
    """`NotFound` would mean that the staged files are gone, and they would be staged again."""
    box.kaggle.fail(call, Fault.NESTED)
    with pytest.raises(Refused, match="does not allow"):
        box.start(box.order())


def test_what_kaggle_is_slow_to_take_in_is_not_uploaded_again(boxes: Boxes) -> None:
    box = boxes(ready_seconds=3600.0)
    box.use(ready_seconds=0.2)
    with pytest.raises(Transient, match="still blobs_received"):
        box.platform.prepare(box.order(), box.materials())
    [name] = box.datasets()
    versions = box.kaggle.datasets._all[name].versions
    versions[-1] = replace(versions[-1], ready_at=0.0)
    box.use(ready_seconds=30.0)  # as a controller that starts meanwhile
    box.platform.prepare(box.order(), box.materials())
    assert box.kaggle.calls.count("upload") == 1
    assert box.staged() == ["materials"]


def test_a_log_that_is_refused_hides_no_session(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    with wire() as server:
        server.always("GetKernelSessionStatus", said({"status": "RUNNING"}))
        server.always(FIRST, said({"code": 400, "message": "no logs of this kind"}, 400))
        options = KaggleOptions(username="ada", key_file=key_file, endpoint=server.url)
        clock = SystemClock()
        platform = KagglePlatform("here", options, Account("here", options, clock), tmp_path, clock)
        assert observed(platform, [FIRST])[FIRST].sighting is Sighting.RUNNING
        assert len(server.calls(FIRST)) == 1


def test_a_kernel_that_was_saved_and_never_ran_is_discarded(box: Box) -> None:
    """A refused push may leave such a kernel; nobody knows whether it does."""
    box.run(WAITS)
    box.kaggle.kernel(FIRST).state = State.NEW_SCRIPT
    assert box.see(FIRST).sighting is Sighting.PENDING
    box.platform.discard(FIRST)
    assert box.see(FIRST).sighting is Sighting.ABSENT
    assert box.mounted() == []


def test_a_token_that_is_renewed_is_used_from_the_next_call_on(box: Box, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("revoked")
    settings = box.kaggle.settings
    options = KaggleOptions(username=settings.username, key_file=key_file, endpoint=box.kaggle.url)
    account = Account("here", options, SystemClock())
    with pytest.raises(AccessDenied):
        account.client.quota()
    key_file.write_text(settings.key)
    assert account.client.quota().gpu is not None
    assert account.client is account.client


def test_an_output_that_is_listed_in_part_is_waited_for(boxes: Boxes) -> None:
    box = boxes()
    box.run_to_end()
    box.use(publish_seconds=60.0)
    outputs = box.kaggle.kernel(FIRST).outputs
    [late, *_] = [each for each in outputs if "/blobs/" in each[0]]
    outputs.remove(late)
    with pytest.raises(Transient, match="not complete yet"):
        box.collect(FIRST)
    outputs.append(late)
    assert box.collect(FIRST).corrupt == ()


def test_a_list_that_was_whole_and_is_shorter_now_is_waited_for(boxes: Boxes) -> None:
    box = boxes()
    box.run_to_end()
    outputs = box.kaggle.kernel(FIRST).outputs
    late = [each for each in outputs if "/checkpoints/" in each[0]][-1]
    outputs.remove(late)
    for platform in (box.platform, box.another_controller()):
        with pytest.raises(Transient, match="does not show"):
            platform.open(FIRST)
    outputs.append(late)
    assert len(box.collect(FIRST).manifests) == len(box.platform.open(FIRST).checkpoints()) > 1


def test_a_list_that_gets_shorter_while_it_is_read_is_no_sign_of_a_removal(box: Box) -> None:
    box.run_to_end()
    box.kaggle.warts.url_lag_seconds = 1e9  # so that the list is read again
    outbox = box.platform.open(FIRST)
    [name, *_] = outbox.checkpoints()
    outputs = box.kaggle.kernel(FIRST).outputs
    outputs[:] = [each for each in outputs if "/checkpoints/" not in each[0]]
    for _ in range(2):
        with pytest.raises(Transient, match="lists a missing file"):
            outbox.manifest(name)


SUPERSEDES = f"""{FAILS.partition("print")[0]}
import json
folder = outbox / "checkpoints" / "0000000004-g01-other"
folder.mkdir(parents=True)
(folder / "manifest.json").write_text("{{}}")
status = {{"incarnation": "other", "heartbeat": 1, "written_at": 1.0, "state": "training"}}
(outbox / "status.json").write_text(json.dumps(status | {{"checkpoint": "0000000003-g01-other"}}))
sys.exit(3)
"""


def test_a_checkpoint_that_a_newer_one_has_replaced_is_not_waited_for(box: Box) -> None:
    """A session that is ended from outside has said less than it did."""
    box.run(SUPERSEDES)
    assert box.until_ended(FIRST).ending is Outcome.CRASHED


def test_materials_are_packed_in_the_platforms_own_folder_and_leave_nothing(box: Box) -> None:
    killed = box.folder / "sessions" / "packing" / FIRST
    killed.mkdir(parents=True)
    (killed / "materials").write_text("of a controller that was killed")
    box.platform.prepare(box.order(), box.materials())
    assert not killed.exists()
    assert box.staged() == ["materials"]


def test_what_is_packed_only_its_owner_can_read(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def upload(client: KaggleClient, path: Path, say: Callable[[str], None]) -> str:
        modes.append(stat.S_IMODE(path.parent.stat().st_mode))
        return uploads.upload(client, path, say)

    monkeypatch.setattr(staging, "upload", upload)
    box.platform.prepare(box.order(), box.materials())
    assert modes == [0o700]


@pytest.mark.timeout(30)
def test_a_launch_of_a_process_that_is_stopped_is_not_waited_for(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `doctor --live` after Ctrl-Z."""
    monkeypatch.setattr(kaggle_platform, "LOCK_SECONDS_MAX", 0.1)
    order = box.order()
    box.platform.prepare(order, box.materials())
    with (box.folder / "sessions" / "launch-lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Transient, match="another process has not finished its launch"):
            box.platform.launch(order)
    assert box.kaggle.pushed == []
    box.platform.launch(order)
    assert len(box.kaggle.pushed) == 1


def test_a_look_that_hears_no_agent_changes_nothing_that_another_heard(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several may look at the same time."""
    box.run(WAITS)
    box.until_claimed()
    remembered = Memory.note
    noted: list[str] = []

    def note(memory: Memory, session: str, **changes: object) -> Known:
        noted.extend(changes)
        return remembered(memory, session, **changes)

    monkeypatch.setattr(Memory, "note", note)
    assert box.see(FIRST).sighting is Sighting.RUNNING
    assert "session_id" in noted
    assert "worked" not in noted
