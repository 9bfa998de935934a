"""Scripts that save in odd ways: nothing torn becomes a checkpoint, and nothing of theirs is touched."""

from __future__ import annotations

import io
import os
import resource
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent.wholeness import is_whole
from orchestrator.core.checkpoint import Manifest
from orchestrator.core.order import Outcome
from tests.agent.sessions import QUICK, Stay, session, written
from tests.agent.test_session import weights_after
from tests.waiting import wait_until

SETTLING = replace(QUICK, settle=0.15, save_floor=0.0, save_ceiling=0.0, scan=0.1)
COPIED_BYTES_MAX = 64 << 20  # of one file, by an agent with `limited`: a fault must not fill the disk
BEGIN = """\
import os, pathlib, resource, shutil, socket, sys, time, zipfile
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
out = pathlib.Path("out")
out.mkdir()
draft = pathlib.Path("draft")  # what must appear at once is written here, and then renamed
draft.mkdir()
def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
"""


def limited() -> None:
    """In a new agent, before it begins. The script lifts the limit for itself."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (COPIED_BYTES_MAX, resource.RLIM_INFINITY))


def steps(stay: Stay) -> list[int]:
    return [each.ref.step for each in stay.manifests()]


def warnings(stay: Stay) -> str:
    status = stay.status()
    assert status is not None
    return "\n".join(status.warnings)


def beats(stay: Stay, count: int) -> None:
    """Lets some time pass for the agent."""
    begin = stay.wait_for(lambda status: status.heartbeat, "a heartbeat").heartbeat
    stay.wait_for(lambda status: status.heartbeat > begin + count, "time to pass")


ODD = """\
(draft / "ckpt_0").write_bytes(b"the only one that can be taken")
for step in range(1, 6):
    (draft / f"ckpt_{step}").mkdir()
    (draft / f"ckpt_{step}" / "weights").write_bytes(b"w")
(draft / "ckpt_1" / "link").symlink_to("/etc/hostname")
os.mkfifo(draft / "ckpt_2" / "pipe")
listening = socket.socket(socket.AF_UNIX)
os.chdir(draft / "ckpt_3")
listening.bind("socket")
os.chdir("../..")
open(os.fsencode(draft / "ckpt_4") + b"/\\xff", "wb").close()
(draft / "ckpt_5" / "folder").symlink_to("/etc")
with open(draft / "ckpt_6", "wb") as file:
    file.truncate(1 << 40)
os.mkfifo(draft / "ckpt_7")
(draft / "ckpt_8").symlink_to("ckpt_0")
(draft / "ckpt_9").mkdir()
(draft / "ckpt_99999999999999999999").write_bytes(b"too large a step")
(draft / "ckpt_-10").write_bytes(b"no step")
draft.rename(out)
if sys.argv[1:]:
    wait_for("go")
"""


@pytest.mark.parametrize("runs_on", [(), ("on",)])
def test_odd_things_are_told_and_not_taken(tmp_path: Path, runs_on: tuple[str, ...]) -> None:
    source = written(tmp_path, BEGIN + ODD)
    with session(tmp_path / "s", "train.py", *runs_on, source=source, watch="out/ckpt_{step}") as stay:
        stay.start(SETTLING, preexec_fn=limited)
        work = tmp_path / "s" / "work" / "source"
        if runs_on:
            wait_until(lambda: steps(stay) == [0], lambda: f"a commit: {stay.log()}")
            beats(stay, 10)
            before = sorted((work / "out").iterdir())
            (work / "go").touch()
        assert stay.end().outcome is Outcome.COMPLETED
        assert steps(stay) == [0], stay.log()
        for name, why in (
            ("ckpt_1", "'out/ckpt_1/link' is neither a file nor a folder"),
            ("ckpt_2", "'out/ckpt_2/pipe' is neither"),
            ("ckpt_3", "'out/ckpt_3/socket' is neither"),
            ("ckpt_4", "unusable name: 'out/ckpt_4/\\udcff'"),
            ("ckpt_5", "'out/ckpt_5/folder' is neither"),
            ("ckpt_6", "it is almost all holes"),
        ):
            assert f"'out/{name}' is not taken as a checkpoint: " in warnings(stay)
            assert warnings(stay).count(why) == 1
        if runs_on:
            assert sorted((work / "out").iterdir()) == before
        assert (work / "out" / "ckpt_8").is_symlink()


OVERWRITES = """\
import hashlib
state, keep = b"seed", sys.argv[1] == "rotate"
for step in range(1, 1_000_000):
    state = hashlib.sha256(state + step.to_bytes(8, "big")).digest()
    path = out / (f"ckpt_{step}.pt" if keep else "last.pt")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("step", str(step))
        archive.writestr("state", state)
    if keep and step > 1:
        (out / f"ckpt_{step - 1}.pt").unlink()
    if step % 20 == 0:
        time.sleep(step / 400)  # ever longer: on a busy machine nobody can look and copy in a moment
    if pathlib.Path("end").exists():
        break
shutil.rmtree(out)
"""


@pytest.mark.parametrize(("how", "watch"), [("in place", "out/last.pt"), ("rotate", "out/ckpt_{step}.pt")])
def test_what_is_written_all_the_time_is_taken_whole(tmp_path: Path, how: str, watch: str) -> None:
    """Overwritten in place, or removed by the script's own rotation; and all of it is gone at the end."""
    source = written(tmp_path, BEGIN + OVERWRITES)
    with session(tmp_path / "s", "train.py", how, source=source, watch=watch) as stay:
        stay.start(SETTLING)
        for count in (1, 2, 3):
            wait_until(lambda: len(stay.log().split("committed ")) > count, lambda: f"commits: {stay.log()}")  # noqa: B023
        (tmp_path / "s" / "work" / "source" / "end").touch()
        assert stay.end().outcome is Outcome.COMPLETED
        assert stay.manifests()
        for each in stay.manifests():
            with zipfile.ZipFile(io.BytesIO(stay.content(each, each.files[0].path))) as archive:
                step = int(archive.read("step"))
                assert archive.read("state") == weights_after(step)
                assert how == "in place" or step == each.ref.step


FOLDERS = """\
for step in (5, 6, 7):
    (out / f"ckpt_{step}").mkdir()
    (out / f"ckpt_{step}" / "weights").write_bytes(b"w")
    wait_for(f"go_{step}")
    (out / f"ckpt_{step}" / "optimizer").write_bytes(b"o")
wait_for("end")
"""


def test_a_folder_is_taken_when_it_is_complete(tmp_path: Path) -> None:
    """It is written file by file, with long pauses in which nothing is open."""
    source = written(tmp_path, BEGIN + FOLDERS)
    # A folder must be quiet for ten times as long: longer than this test may be stalled.
    slow = replace(SETTLING, settle=4.0)
    with session(tmp_path / "s", "train.py", source=source, watch="out/ckpt_{step}") as stay:
        stay.start(slow)
        work = tmp_path / "s" / "work" / "source"
        wait_until((work / "out" / "ckpt_5").exists, "the first save to begin")
        beats(stay, 60)
        assert steps(stay) == []
        (work / "go_5").touch()
        wait_until((work / "out" / "ckpt_6").exists, "the next save to begin")
        wait_until(lambda: steps(stay) == [5], lambda: f"a commit: {stay.log()}")
        beats(stay, 60)
        assert steps(stay) == [5], "the second one lacks what the first had"
        (work / "go_6").touch()
        (work / "go_7").touch()
        wait_until(lambda: {6, 7} & {*steps(stay)}, lambda: f"a commit: {stay.log()}")
        (work / "end").touch()
        assert stay.end().outcome is Outcome.COMPLETED
        assert 7 in steps(stay)
        for each in stay.manifests():
            assert [Path(entry.path).name for entry in each.files] == ["optimizer", "weights"]


def test_the_parts_of_two_ranks_are_no_checkpoint(tmp_path: Path) -> None:
    parts = (
        "for rank in (0, 1):\n    (draft / f'ckpt_5_rank{rank}.pt').write_bytes(b'half')\n"
        "draft.rename(out)\nwait_for('end')\n"
    )
    source = written(tmp_path, BEGIN + parts)
    with session(tmp_path / "s", "train.py", source=source, watch="out/ckpt_{step}_rank*.pt") as stay:
        stay.start(SETTLING)
        stay.wait_for(lambda status: status.warnings, "a warning")
        (tmp_path / "s" / "work" / "source" / "end").touch()
        stay.end()
        assert "'out/ckpt_5_rank0.pt' and 'out/ckpt_5_rank1.pt' are both step 5" in warnings(stay)
        kept = stay.outputs()
        assert {"out/ckpt_5_rank0.pt", "out/ckpt_5_rank1.pt"} <= kept.keys(), "nothing that was saved is lost"
        assert "into one folder" in warnings(stay)
        assert steps(stay) == []


def test_a_training_may_go_back_a_few_steps(tmp_path: Path) -> None:
    script = """\
for step in ("0010", "0020", "0015"):
    (out / f"ckpt_{step}.pt").write_bytes(b"w")
    wait_for(f"go_{step}")
"""
    source = written(tmp_path, BEGIN + script)
    with session(tmp_path / "s", "train.py", source=source, watch="out/ckpt_{step}.pt") as stay:
        stay.start(SETTLING)
        for step in (10, 20, 15):
            wait_until(lambda: step in steps(stay), lambda: f"a commit: {stay.log()}")  # noqa: B023
            (tmp_path / "s" / "work" / "source" / f"go_00{step}").touch()
        assert stay.end().outcome is Outcome.COMPLETED
        assert warnings(stay) == ""


def test_a_full_disk_costs_the_copy_and_nothing_else(tmp_path: Path) -> None:
    """The limit of a file's size stands for it."""
    script = f"""\
with open(out / "ckpt_1", "wb") as file:
    file.truncate({COPIED_BYTES_MAX + 1})
wait_for("go")
(out / "ckpt_2").write_bytes(b"small")
wait_for("end")
"""
    source = written(tmp_path, BEGIN + script)
    with session(tmp_path / "s", "train.py", source=source, watch="out/ckpt_{step}") as stay:
        stay.start(SETTLING, preexec_fn=limited)
        stay.wait_for(lambda status: status.warnings, "a warning")
        work = tmp_path / "s" / "work"
        assert "'out/ckpt_1' could not be copied: File too large" in warnings(stay)
        wait_until(lambda: not (work / "watched" / ".tmp-copy").exists(), "the space to be given back")
        (work / "source" / "go").touch()
        wait_until(lambda: steps(stay) == [2], lambda: f"a commit: {stay.log()}")
        (work / "source" / "end").touch()
        assert stay.end().outcome is Outcome.COMPLETED
        assert (work / "source" / "out" / "ckpt_1").stat().st_size == COPIED_BYTES_MAX + 1


def test_odd_names_among_what_is_left_cost_a_warning(tmp_path: Path) -> None:
    """Neither a number that is no step nor a name that is no text ends the agent."""
    script = """\
pathlib.Path("ckpt_123456789012345678901.pt").write_bytes(b"w")
with open(b"huge-\\xff\\n", "wb") as file:
    file.truncate(1 << 40)
open(b"small-\\xff\\n", "wb").close()
pathlib.Path("result.txt").write_text("1")
"""
    source = written(tmp_path, BEGIN + script)
    with session(tmp_path / "s", "train.py", source=source) as stay:
        assert stay.live(SETTLING, preexec_fn=limited).outcome is Outcome.COMPLETED
        assert "huge-\\udcff" in warnings(stay)
        assert set(stay.outputs()) == {"ckpt_123456789012345678901.pt", "result.txt"}


def test_a_script_may_save_by_the_contract_and_by_itself(tmp_path: Path) -> None:
    script = """\
folder = pathlib.Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
(out / "ckpt_5.pt").write_bytes(b"by itself")
wait_for("go")
(folder / ".tmp").mkdir()
(folder / ".tmp" / "weights").write_bytes(b"by the contract")
(folder / ".tmp").rename(folder / "step-7")
print("resumes", os.environ.get("ORCHESTRATOR_RESUME_FROM"))
"""
    source = written(tmp_path, BEGIN + script)
    with session(tmp_path / "1", "train.py", source=source, watch="out/ckpt_{step}.pt") as stay:
        stay.start(SETTLING)
        wait_until(lambda: steps(stay) == [5], lambda: f"a commit: {stay.log()}")
        (tmp_path / "1" / "work" / "source" / "go").touch()
        assert stay.end().step == 7
        newest: Manifest = stay.manifests()[-1]
        assert [entry.path for entry in newest.files] == ["weights"]
    (source / "go").touch()
    with session(
        tmp_path / "2", "train.py", source=source, watch="out/ckpt_{step}.pt", generation=2,
        staged=tmp_path / "1" / "outbox", resume=newest.name, resume_step=7,
    ) as stay:  # fmt: skip
        stay.live(SETTLING)
        resumes = stay.log().partition("resumes ")[2].splitlines()[0]
        assert Path(resumes).is_relative_to(tmp_path / "2" / "work")
        assert not Path(resumes).is_relative_to(tmp_path / "2" / "work" / "source")


def test_no_damage_to_an_archive_is_more_than_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("state", b"x" * 10)
    data = path.read_bytes()
    assert is_whole(path) is True
    for place in range(4, len(data)):
        for value in (0x00, 0x7F, 0xFF):
            path.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
            assert is_whole(path) in (True, False)
    for size in range(4, len(data)):
        path.write_bytes(data[:size])
        assert is_whole(path) is False


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ckpt_1.pt")
    with pytest.raises(OSError, match=r"ckpt_1\.pt"):
        is_whole(tmp_path / "ckpt_1.pt")
