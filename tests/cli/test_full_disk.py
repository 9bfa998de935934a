"""A full disk: every message names it, and the run waits for room instead of failing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client import pulling
from orchestrator.clock import SystemClock
from orchestrator.core.checkpoint import Accepted
from orchestrator.core.closing import closing
from orchestrator.core.event import CheckpointAccepted, GaveUp, Held
from orchestrator.core.order import Outcome
from orchestrator.errors import NoRoom
from orchestrator.files import disk_of, free_bytes, room_text
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.memory import MemoryStore
from tests.cli.calls import UNLIMITED, Caller
from tests.conformance.store_suite import outbox
from tests.core.runs import NOW, ended, record, running
from tests.disks import MB, fill, mounted
from tests.platforms.test_process import STILLBORN, Box
from tests.waiting import wait_until

FILES = {"model": [b"a" * MB, b"b" * MB], "optimizer": [b"c" * MB], "again": [b"a" * MB]}


SPARSE = """
import os, pathlib
checkpoints = pathlib.Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
for step in (1, 2, 3):
    draft = checkpoints / ".building"
    draft.mkdir()
    with open(draft / "weights", "wb") as file:
        file.write(b"small")
        for at in range(0, 2_000_000_000 if step == 1 else 0, 100_000_000):
            file.seek(at)
            file.write(b"%d" % at)
        file.truncate(2_000_000_000 if step == 1 else 5)
    draft.rename(checkpoints / f"step-{step}")
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Named before `user` by the tests that want both, so that the user's processes end before it is gone."""
    with mounted(tmp_path, 8 * MB) as found:
        yield found


def test_a_run_whose_sessions_find_no_room_is_held_and_goes_on(disk: Path, user: Caller) -> None:
    (user.home / "platforms").symlink_to(disk)
    user.config(UNLIMITED)
    run = user.submitted(user.job(total=400, pace=0.01, gate=200))
    user.wait_for_checkpoint(run)
    filler = fill(disk)
    user.open_gate(400)

    seen = user.record(run).accepted

    def is_named() -> bool:
        nonlocal seen
        if (found := user.record(run).accepted) != seen:
            fill(disk)  # there was room, because the agent removed older ones
            seen = found
        return f"the disk {disk} (" in user("show", run).out

    wait_until(is_named, "the full disk to be named")
    wait_until(lambda: user.phase(run) in ("held", "preparing", "launching"), "the run to wait for room")
    if user.phase(run) == "held":  # not even one save came through; otherwise the next session is staged
        said = user("ps").out
        assert f"the disk {disk} (" in said
        assert "then `orchestrator release` tries again" in said
        filler.unlink()
        user("release", run)
    filler.unlink(missing_ok=True)
    wait_until(lambda: user.record(run).standing == "done", "the run to go on")


def test_a_save_of_holes_fills_no_disk_and_is_named_once(tmp_path: Path, user: Caller) -> None:
    with mounted(tmp_path, 64 * MB) as disk:
        user.home = disk / "home"
        user.config(UNLIMITED)
        (user.folder / "job").mkdir()
        (user.folder / "job" / "train.py").write_text(SPARSE)
        (user.folder / "sparse.yaml").write_text(
            "name: sparse\nsource: job\ncommand: python train.py\nwork: {total: 3, global_batch: 1}\n"
            "profiles: {cpu: {micro_batch: 1, precision: fp32}}\n"
        )
        run = user.submitted("sparse.yaml")
        wait_until(lambda: user.record(run).standing == "done", "the run to be done")
        shown = user("show", run).out
        assert "at step 3, 5 B" in shown
        assert shown.count("it is 2.0 GB, of which only") == 1
        assert "the checkpoint of step 1 was not committed" in shown
        user("down")


def test_a_full_home_is_named_before_anything_else(disk: Path, user: Caller) -> None:
    user.home = disk / "home"
    user.config(UNLIMITED)
    filler = fill(disk)
    said = user("submit", user.job(), code=4).err
    assert f"the disk {disk} (" in said
    assert "full" in said
    assert "`orchestrator rm`" in said
    filler.unlink()
    assert user.submitted("job.yaml")


def test_a_launch_on_a_full_disk_names_it_and_starts_nothing(disk: Path) -> None:
    box = Box(disk)
    platform = box.platform()
    platform.prepare(box.order, box.materials(STILLBORN))
    filler = fill(disk)
    with pytest.raises(OSError, match="No space left") as caught:
        platform.launch(box.order)
    assert disk_of(Path(caught.value.filename)) == disk
    output = box.sessions / "a-s01" / "agent.out"
    assert not output.exists()
    filler.unlink()
    platform.launch(box.order)
    wait_until(lambda: output.exists() and "no module" in output.read_text(), "what the agent said")


@pytest.mark.parametrize("message", [
    "exit code 1: OSError: [Errno 28] No space left on device: 'model.pt'",
    "exit code 1: RuntimeError: unexpected pos 64 vs 0; the disk /kaggle/working (12 kB free) is full",
    "exited 0, but the checkpoint of step 9 was not committed: [Errno 122] Disk quota exceeded",
    "exited 0, but the checkpoint of step 9 was not committed: 9.0 GB do not fit on the disk / (1.2 MB free)",
])  # fmt: skip
def test_a_session_that_found_no_room_is_not_repeated_until_a_person_acts(message: str) -> None:
    found = closing(record(*running(), ended(Outcome.CRASHED, message=message), without_progress=1), NOW)
    assert isinstance(found, Held)
    assert message in found.reason


def test_what_only_mentions_a_disk_fails_as_before() -> None:
    crash = ended(Outcome.CRASHED, message="exit code 1: ValueError: 28 is not a disk")
    assert isinstance(closing(record(*running(), crash, without_progress=1), NOW), GaveUp)


# --- pull -------------------------------------------------------------------------------------------------


@pytest.fixture
def pull(tmp_path: Path) -> Callable[[Path], pulling.Pulled]:
    store = MemoryStore()
    manifest = outbox(tmp_path / "outbox", 100, FILES)
    stored.publish(store, manifest.run, manifest, tmp_path / "outbox")
    kept = Accepted(manifest.ref, manifest.size, sha256=manifest.sha256)
    found = replace(record(*running(), CheckpointAccepted(NOW, kept)), run=manifest.run)
    return lambda target: pulling.bring(store, found, None, target, SystemClock())


def test_a_pull_that_would_not_fit_copies_nothing(disk: Path, pull: Callable[[Path], pulling.Pulled]) -> None:
    (disk / "filler").write_bytes(b"x" * 4 * MB)
    with pytest.raises(NoRoom, match=rf"the disk {disk} \(.* free, 5.0 MB needed\)"):
        pull(disk / "mine")
    assert [path.name for path in disk.iterdir()] == ["filler"]


def test_a_pull_needs_the_room_for_one_copy_and_a_part(
    tmp_path: Path, pull: Callable[[Path], pulling.Pulled]
) -> None:
    with mounted(tmp_path, 5 * MB + 200_000) as disk:  # 4 MB of files, of which two share a part
        pulled = pull(disk / "mine")
        assert {path.name: path.stat().st_size for path in pulled.folder.iterdir()} == {
            name: sum(map(len, parts)) for name, parts in FILES.items()
        }
        assert [path.name for path in disk.iterdir()] == ["mine"], "nothing else stays"


def test_the_disk_of_a_path_that_is_not_there_yet(disk: Path) -> None:
    below = disk / "not" / "yet"
    assert disk_of(below) == disk
    assert free_bytes(below) == shutil.disk_usage(disk).free
    assert room_text(below, 3 * MB) == f"the disk {disk} (8.0 MB free, 3.0 MB needed)"
    link = disk.parent / "link"
    link.symlink_to(disk)
    assert disk_of(link / "file") == disk
    assert os.path.ismount(disk)
