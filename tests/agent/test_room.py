"""What does not fit on the disk of a session, or is almost all holes, is refused before any of it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from orchestrator.agent.committer import Committed, Committer, NotCommitted
from orchestrator.agent.folder import Folder
from orchestrator.agent.log import Log
from orchestrator.agent.relay import Relay
from orchestrator.clock import SystemClock
from orchestrator.core.job import Best, Keep
from orchestrator.core.mask import Mask
from orchestrator.core.order import Outcome
from orchestrator.files import Lack, check_room, free_bytes
from orchestrator.session.committing import Hollow, Outbox
from tests.agent.sessions import QUICK, Stay, new_order, session, written
from tests.agent.test_outbox import blobs, saved
from tests.disks import MB, fill, mounted
from tests.waiting import wait_until

BIG, SMALL = os.urandom(MB) * 40, b"small"
SETTLING = replace(QUICK, settle=0.15, save_floor=0.0, save_ceiling=0.1, part_bytes=MB)
HOLES = """
import os, pathlib

def hole(path, gap):
    with open(path, "wb") as file:
        for at in range(0, 2_000_000_000, gap):
            file.seek(at)
            file.write(b"%d" % at)
        file.truncate(2_000_000_000)

"""
CONTRACT = (
    HOLES
    + """
checkpoints = pathlib.Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
for step, gap in ((1, 2_000_000_000), (2, 100_000_000), (3, 0)):
    draft = checkpoints / ".building"
    draft.mkdir()
    if gap:
        hole(draft / "weights", gap)
    (draft / "small").write_bytes(b"small")
    draft.rename(checkpoints / f"step-{step}")
"""
)
WATCHED = (
    HOLES
    + """
import time
def heard(step):
    while not os.path.exists(f"heard_{step}"):
        time.sleep(0.02)
for step, gap in ((1, 2_000_000_000), (2, 100_000_000)):
    hole(f"ckpt_{step}.bin", gap)
    heard(step)
pathlib.Path("ckpt_3.bin").write_bytes(os.urandom(40_000_000))
heard(3)
pathlib.Path("ckpt_4.bin").write_bytes(b"small")
hole("table.out", 100_000_000)
pathlib.Path("small.out").write_bytes(b"small")
"""
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, 64 * MB) as found:
        yield found


@pytest.fixture
def folder(disk: Path) -> Folder:
    folder = Folder(disk)
    folder.lay_out()
    return folder


def outbox_of(folder: Folder, keep: Keep | None = None, part_bytes: int = MB) -> Outbox:
    order = new_order("train.py", keep=keep or Keep())
    return Outbox(folder, order, "abc", {}, SystemClock(), part_bytes)


def ended(committer: Committer) -> list[Committed | NotCommitted]:
    committer.finish()
    committer.join(60.0)
    assert committer.bug is None
    return list(committer.news)


def is_told(stay: Stay, text: str) -> bool:
    return text in stay.log()


def committed(committer: Committer) -> list[int]:
    return [each.manifest.ref.step for each in list(committer.news) if isinstance(each, Committed)]


# --- One judgement --------------------------------------------------------------------------------------


def test_a_twentieth_of_a_disk_stays_free_and_less_for_small_files(disk: Path) -> None:
    free = free_bytes(disk)
    assert free is not None
    check_room(disk, free * 94 // 100)
    with pytest.raises(
        Lack, match=rf"61\.4 MB do not fit on the disk {disk} \(64\.0 MB free, of which 3\.2 MB"
    ):
        check_room(disk, free * 96 // 100)
    fill(disk, left=100_000)
    check_room(disk, 10_000)
    with pytest.raises(Lack, match=r"20\.0 kB do not fit"):
        check_room(disk, 20_000)


def test_files_need_inodes_too(tmp_path: Path) -> None:
    with mounted(tmp_path, 64 * MB, inodes=60) as disk:
        check_room(disk, 1000, 20)
        with pytest.raises(Lack, match=rf"80 more files do not fit on the disk {disk} \(5\d inodes free\)"):
            check_room(disk, 1000, 80)
        folder = Folder(disk)
        folder.lay_out()
        with pytest.raises(Lack, match="84 more files"):
            outbox_of(folder, part_bytes=MB // 4).commit(saved(folder, 1, weights=BIG[: 20 * MB]))
        assert blobs(folder) == set()


# --- Checkpoints by the contract --------------------------------------------------------------------------


def test_holes_of_a_save_are_not_read_and_told_once(disk: Path, tmp_path: Path) -> None:
    with session(disk / "s", "train.py", source=written(tmp_path, CONTRACT), steps_total=3) as stay:
        assert stay.live(SETTLING).outcome is Outcome.COMPLETED
        assert [each.ref.step for each in stay.manifests()] == [3]
        told = [line for line in stay.log().splitlines() if "all holes" in line]
        assert len(told) == 2
        assert all(
            any(f"step {step} was not committed: it is 2.0 GB, of which only" in line for line in told)
            for step in (1, 2)
        )
        assert stay.outputs() == {}


def test_holes_beside_a_little_are_holes_and_beside_much_are_none(folder: Folder) -> None:
    outbox = outbox_of(folder)
    path = saved(folder, 1, little=b"x" * MB)
    with (path / "table").open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(Hollow, match="almost all holes"):
        outbox.commit(path)
    (path / "much").write_bytes(BIG)
    with pytest.raises(Lack, match=r"2\.2 GB do not fit"):
        outbox.commit(path)
    assert blobs(folder) == set()
    os.truncate(path / "table", 1000)
    os.truncate(path / "much", MB)
    assert outbox.commit(path) is not None


def test_holes_that_are_linked_take_room_where_they_go(folder: Folder) -> None:
    path = saved(folder, 1)
    for number in range(90):
        with (path / str(number)).open("wb") as file:
            file.write(b"%d" % number * 4096)
            file.truncate(MB)
    with pytest.raises(Lack, match=r"89\.\d MB do not fit"):
        outbox_of(folder).commit(path)
    assert blobs(folder) == set()


def test_small_saves_do_not_wait_for_a_large_one_and_it_comes_once_there_is_room(folder: Folder) -> None:
    filler = fill(folder.root, left=25 * MB)
    committer = Committer(outbox_of(folder), SystemClock(), 0.05)
    committer.offer(saved(folder, 1, weights=BIG[: 20 * MB]))
    committer.start()
    for step in (2, 3):
        committer.offer(saved(folder, step, weights=SMALL))
    wait_until(lambda: sorted(committed(committer)) == [2, 3], "the small ones")
    wait_until(lambda: any(isinstance(each, NotCommitted) for each in committer.news), "the refusal")
    filler.unlink()
    wait_until(lambda: 1 in committed(committer), "the large one")
    [refused] = [each for each in ended(committer) if isinstance(each, NotCommitted)]
    assert refused.again
    assert "20.0 MB do not fit on the disk" in refused.reason
    assert [each.ref.step for each in Stay(folder.root).manifests()] == [1, 2, 3]


def test_a_save_that_does_not_fit_goes_once_newer_ones_supersede_it(folder: Folder) -> None:
    fill(folder.root, left=45 * MB)
    committer = Committer(outbox_of(folder), SystemClock(), 0.05)
    large = saved(folder, 1, weights=BIG)
    for path in (large, *(saved(folder, step, weights=SMALL) for step in (2, 3, 4, 5))):
        committer.offer(path)
    committer.start()
    news = ended(committer)
    assert committed(committer) == [5, 4, 3], "the newest first, and none that retention would remove"
    assert len(news) == 3
    assert not large.exists()
    assert list(folder.checkpoints.iterdir()) == []


def test_an_older_save_is_kept_if_it_is_the_best(folder: Folder) -> None:
    committer = Committer(outbox_of(folder, Keep(1, Best("loss", "min"))), SystemClock(), 0.05)
    for step, loss in ((1, b"3"), (2, b"1"), (3, b"2"), (4, b"4"), (5, b"5")):
        committer.offer(saved(folder, step, weights=b"%d" % step, metrics__json=b'{"loss": %s}' % loss))
    committer.start()
    ended(committer)
    assert [each.ref.step for each in Stay(folder.root).manifests()] == [2, 4, 5]


# --- The end of a session ---------------------------------------------------------------------------------


def test_the_last_save_is_moved_if_a_copy_does_not_fit(folder: Folder) -> None:
    path, outbox = saved(folder, 7, weights=BIG, other=b"x"), outbox_of(folder)
    with pytest.raises(Lack):
        outbox.commit(path)
    manifest = outbox.commit(path, last=True)
    assert manifest is not None
    stay = Stay(folder.root)
    assert stay.manifests() == [manifest]
    assert stay.content(manifest, "weights") == BIG
    assert not path.exists()


@pytest.mark.parametrize("why", ["the command has it under another name", "there is no room for a piece"])
def test_the_last_save_stays_whole_if_it_cannot_be_moved(folder: Folder, why: str) -> None:
    path = saved(folder, 7, weights=BIG)
    if why.startswith("the command"):
        (folder.source / "best").hardlink_to(path / "weights")
    else:
        fill(folder.root, left=6 * MB)
    committer = Committer(outbox_of(folder), SystemClock(), 0.05)
    committer.offer(path)
    committer.start()
    told = [each for each in ended(committer) if isinstance(each, NotCommitted) and not each.again]
    assert len(told) == 1
    assert "40.0 MB do not fit on the disk" in told[0].reason
    assert (path / "weights").read_bytes() == BIG
    assert blobs(folder) == set()


def test_a_last_save_without_any_room_is_the_reason_of_the_end(disk: Path, tmp_path: Path) -> None:
    fill(disk, left=46 * MB)
    script = CONTRACT.replace("hole(draft", "(draft").replace(
        ", gap)\n    (draft", ").write_bytes(bytes(40_000_000))\n    (draft"
    )
    script = script.replace("((1, 2_000_000_000), (2, 100_000_000), (3, 0))", "((3, 1),)")
    with session(disk / "s", "train.py", source=written(tmp_path, script), steps_total=3) as stay:
        result = stay.live(SETTLING)
    assert result.outcome is Outcome.CRASHED
    assert "exited 0, but the checkpoint of step 3 was not committed: 40.0 MB do not fit on" in result.message


# --- What a script saves by itself, outputs, log and progress ---------------------------------------------


def test_watched_saves_and_outputs_that_do_not_fit_are_named_with_their_sizes(
    disk: Path, tmp_path: Path
) -> None:
    source = written(tmp_path, WATCHED)
    with session(
        disk / "s", "train.py", source=source, watch="ckpt_{step}.bin", outputs=("*.out", "ckpt_3.bin")
    ) as stay:
        stay.start(SETTLING)
        for step, why in (
            (1, "it is 2.0 GB, of which"),
            (2, "it is 2.0 GB, of which"),
            (3, "40.0 MB do not fit"),
        ):
            told = f"'ckpt_{step}.bin' is not taken as a checkpoint: {why}"
            wait_until(partial(is_told, stay, told), told)
            (stay.root / "work" / "source" / f"heard_{step}").touch()
        assert stay.end().outcome is Outcome.COMPLETED
        assert [each.ref.step for each in stay.manifests()] == [4]
        assert stay.outputs() == {"small.out": SMALL}
        said = stay.log()
    assert said.count("is not taken as a checkpoint") == 3, said
    assert "not kept of the outputs: 'ckpt_3.bin': 40.0 MB do not fit" in said
    assert "'table.out': it is 2.0 GB, of which only" in said


def test_the_log_and_the_progress_leave_room(disk: Path) -> None:
    (disk / "log").mkdir()
    log = Log(disk / "log", SystemClock(), segment_bytes=MB, total_bytes=64 * MB)
    (disk / "progress").write_bytes(b'{"step": 1}\n' * 10_000)
    relay = Relay(disk / "progress", disk / "copy", Mask())
    filler = fill(disk, left=300_000)
    before = free_bytes(disk)
    for _ in range(20):
        log.write(b"x" * 63_999 + b"\n")
    relay.copy()
    assert log.lost == 20 * 64_000
    assert free_bytes(disk) == before
    filler.unlink()
    log.write(b"more\n")
    relay.copy()
    assert (disk / "log" / "000002.log").read_bytes().endswith(b"more\n")
    assert (disk / "copy").read_bytes() == (disk / "progress").read_bytes()


def test_what_is_given_back_to_a_command_must_fit(disk: Path, folder: Folder) -> None:
    manifest = outbox_of(folder).commit(saved(folder, 1, weights=BIG[: 20 * MB]))
    assert manifest is not None
    with session(
        disk / "s", "train.py", staged=folder.outbox, resume=manifest.name, resume_step=1, steps_total=3
    ) as stay:
        fill(disk, left=15 * MB)
        result = stay.live()
    assert result.outcome is Outcome.CRASHED
    assert "set up: 20.0 MB do not fit on the disk" in result.message
