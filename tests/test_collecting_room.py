"""What a session left comes home as far as it fits: on this machine, its training has the same disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.action import Collect, Done
from orchestrator.engine.collecting import bring
from orchestrator.errors import QuotaExhausted
from orchestrator.files import Lack, free_bytes
from orchestrator.session.outbox import FolderOutbox
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.store import Store
from tests.conformance.store_suite import RUN, outbox
from tests.disks import MB, fill, mounted

PARTS = [bytes([number]) * MB for number in range(20)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, 64 * MB) as found:
        (found / "home").mkdir()
        yield found


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A large checkpoint and a newer, small one."""
    outbox(tmp_path / "left", 1, {"weights": PARTS})
    outbox(tmp_path / "left", 2, {"weights": [b"small"]})
    return tmp_path / "left"


def collected(
    left: Path, disk: Path, store: Store, known: frozenset[str] = frozenset(), *, last: bool
) -> Done:
    action = Collect(RUN, "r-s01", "here", 1, "a", known, last)
    return bring(action, store, FolderOutbox(left), disk / "home", Done(action), lambda: None)


def steps(done: Done) -> list[int]:
    return [each.ref.step for each in done.checkpoints]


def test_a_large_checkpoint_delays_no_small_one_and_comes_once_there_is_room(disk: Path, left: Path) -> None:
    """The store lies on that disk too, so it takes its size twice."""
    store = FolderStore(disk / "store")
    store.put("first", left / "blobs" / stored_blob(left), stored_blob(left))
    filler = fill(disk, left=35 * MB)
    found = collected(left, disk, store, last=False)
    assert steps(found) == [2]
    assert not found.more
    [note] = found.notes
    assert f"not here yet: 40.0 MB do not fit on the disk {disk} (3" in note
    free = free_bytes(disk)
    assert free is not None
    assert free > 33 * MB, "nothing of it was copied"
    filler.unlink()
    assert steps(
        collected(left, disk, store, frozenset(each.name for each in found.checkpoints), last=False)
    ) == [1]
    stored.verify(store, RUN, "0000000001-g01-a")


def test_the_last_collect_is_not_over_before_all_is_here(disk: Path, left: Path) -> None:
    filler, store = fill(disk, left=15 * MB), MemoryStore()
    found = collected(left, disk, store, last=True)
    assert (steps(found), found.more) == ([2], True)
    known = frozenset(each.name for each in found.checkpoints)
    for _ in range(2):
        with pytest.raises(Lack, match=r"20\.0 MB do not fit on the disk"):
            collected(left, disk, store, known, last=True)
    filler.unlink()
    found = collected(left, disk, store, known, last=True)
    assert (steps(found), found.more) == ([1], False)


def test_a_log_waits_for_room_and_delays_no_checkpoint(disk: Path, left: Path) -> None:
    shutil.rmtree(left / "checkpoints" / "0000000001-g01-a")
    (left / "log").mkdir()
    (left / "log" / "000001.log").write_bytes(b"x" * 6 * MB)
    filler, store = fill(disk, left=5 * MB), MemoryStore()
    found = collected(left, disk, store, last=False)
    assert steps(found) == [2]
    assert "6.0 MB do not fit" in found.notes[0]
    assert not (disk / "home" / "log" / "000001.log").exists()
    filler.unlink()
    collected(left, disk, store, frozenset(each.name for each in found.checkpoints), last=True)
    assert (disk / "home" / "log" / "000001.log").stat().st_size == 6 * MB


def test_what_a_store_would_take_beyond_the_reserve_is_not_begun(disk: Path, left: Path) -> None:
    fill(disk, left=MB // 2)
    with pytest.raises(QuotaExhausted, match=r"the store is full: 1\.0 MB do not fit on the disk"):
        FolderStore(disk / "store").put("first", left / "blobs" / stored_blob(left), stored_blob(left))
    assert (free_bytes(disk) or 0) > MB // 3


def stored_blob(left: Path) -> str:
    """Any of the large ones."""
    return next(path.name for path in sorted((left / "blobs").iterdir()) if path.stat().st_size == MB)
