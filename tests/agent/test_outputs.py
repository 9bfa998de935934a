"""What a session leaves for people: files that its job names, or what a failed or the last session wrote."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from orchestrator.agent import gathering
from orchestrator.core.order import Outcome
from tests.agent.sessions import session

WRITES = """\
import os, pathlib, sys
pathlib.Path("results/deep").mkdir(parents=True)
pathlib.Path("results/a.csv").write_text("1")
pathlib.Path("results/deep/b.csv").write_text("2")
pathlib.Path("results/c.txt").write_text("3")
pathlib.Path("model.pt").write_bytes(b"weights")
pathlib.Path("__pycache__").mkdir()
pathlib.Path("__pycache__/train.pyc").write_bytes(b"x")
os.symlink("/etc/hostname", "link")
pathlib.Path("config.yaml").write_text("changed")
saved = pathlib.Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"], "checkpoint-100")
saved.mkdir()
(saved / "weights").write_bytes(b"not called step-100")
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text(f"{WRITES}sys.exit(int(sys.argv[1]))\n")
    (folder / "config.yaml").write_text("as sent")
    (folder / "data.txt").write_text("as sent")
    return folder


UNASKED = {
    "results/a.csv": b"1",
    "results/deep/b.csv": b"2",
    "results/c.txt": b"3",
    "model.pt": b"weights",
    "config.yaml": b"changed",
    ".orchestrator/checkpoints/checkpoint-100/weights": b"not called step-100",
}


@pytest.mark.parametrize(("code", "outcome"), [("0", Outcome.COMPLETED), ("3", Outcome.CRASHED)])
def test_what_a_script_wrote_is_kept_whatever_it_is(
    tmp_path: Path, source: Path, code: str, outcome: Outcome
) -> None:
    with session(tmp_path / "s", "train.py", code, source=source) as stay:
        assert stay.live().outcome is outcome
        assert stay.outputs() == UNASKED
        assert stay.manifests() == []


def test_a_step_that_is_saved_once_more_is_no_output(tmp_path: Path) -> None:
    """As by a script that saves at every tenth step and at the end. The second folder has the inode of the
    first, which was removed, if it can get that before the agent looks."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import os, pathlib\n"
        "saved = pathlib.Path(os.environ['ORCHESTRATOR_CHECKPOINT_DIR'], 'step-3')\n"
        "draft, first = saved.with_name('draft'), 0\n"
        "for again in (False, True):\n"
        "    for _ in range(300):\n"
        "        draft.mkdir()\n"
        "        if not again or draft.stat().st_ino == first: break\n"
        "        draft.rmdir()\n"
        "    draft.mkdir(exist_ok=True)\n"
        "    first = draft.stat().st_ino\n"
        "    (draft / 'weights').write_bytes(b'weights')\n"
        "    draft.rename(saved)\n"
        "    while not again and saved.exists(): pass\n"
    )
    with session(tmp_path / "s", "train.py", source=folder, steps_total=3) as stay:
        assert stay.live().outcome is Outcome.COMPLETED
        assert [manifest.ref.step for manifest in stay.manifests()] == [3]
        assert stay.outputs() == {}


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (("results/*.csv",), ["results/a.csv"]),
        (("**/*.csv", "model.pt"), ["model.pt", "results/a.csv", "results/deep/b.csv"]),
        (("results/",), ["results/a.csv", "results/c.txt", "results/deep/b.csv"]),
        (("results/dee?",), ["results/deep/b.csv"]),
        (("data.txt", "link"), ["data.txt"]),  # a link is never followed
        (("nothing/*",), []),
        ((), []),
    ],
)
def test_the_job_may_name_its_outputs(
    tmp_path: Path, source: Path, patterns: tuple[str, ...], kept: list[str]
) -> None:
    with session(tmp_path / "s", "train.py", "3", source=source, outputs=patterns) as stay:
        stay.live()
        assert sorted(stay.outputs()) == kept


def test_a_session_that_goes_on_elsewhere_leaves_only_what_the_job_names(tmp_path: Path) -> None:
    with session(tmp_path / "1", "train.py", "--leave-at", "5") as stay:
        assert stay.live().outcome is Outcome.STOPPED
        assert stay.outputs() == {}
    with session(tmp_path / "2", "train.py", "--leave-at", "5", outputs=("pids",)) as stay:
        stay.live()
        assert json.loads(stay.outputs()["pids"])
        [kept] = list((tmp_path / "2" / "outbox" / "checkpoints").glob("*-outputs"))
        assert kept.name.startswith("0000000005-g01-")


def test_the_smallest_files_are_kept_and_the_largest_named(tmp_path: Path) -> None:
    for name, size in (("small", 10), ("fits", 80), ("large", 90), ("huge", 5000)):
        (tmp_path / name).write_bytes(b"x" * size)
    found = gathering.unasked(tmp_path, tmp_path / "none", {}, lambda _: False, bytes_max=100)
    assert [each.path for each in found.files] == ["small", "fits"]
    assert found.left == (
        "not kept, because outputs are limited to 100 bytes or 20,000 files: huge (5 kB), large (90 bytes); "
        "to keep them, name them under `outputs`"
    )


def test_what_was_there_before_and_what_is_a_checkpoint_is_no_output(tmp_path: Path) -> None:
    for name in ("sent", "touched", "ckpt_1.pt"):
        (tmp_path / name).write_text(name)
    before = dict(gathering.files_in(tmp_path))
    os.utime(tmp_path / "touched", (1, 1))
    found = gathering.unasked(tmp_path, tmp_path / "none", before, lambda name: name == "ckpt_1.pt")
    assert [each.path for each in found.files] == ["touched"]


def test_no_path_stands_for_two_files(tmp_path: Path, source: Path) -> None:
    """A manifest with such a path is corrupt, and all outputs would be lost."""
    (source / "train.py").write_text(
        f"{WRITES}own = pathlib.Path('.orchestrator/checkpoints/checkpoint-100')\n"
        "own.mkdir(parents=True)\n(own / 'weights').write_bytes(b'another')\n"
    )
    with session(tmp_path / "s", "train.py", source=source) as stay:
        stay.live()
        assert stay.outputs() == UNASKED


def test_too_many_long_names_are_told(tmp_path: Path, source: Path) -> None:
    """The manifest would be larger than readers accept."""
    (source / "train.py").write_text(
        "import os\nfor place in range(100, 300):\n    path = '/'.join(str(place) * 70 for _ in range(15))\n"
        "    os.makedirs(path)\n    for name in range(28):\n        open(f'{path}/{name}', 'w').close()\n"
    )
    with session(tmp_path / "s", "train.py", source=source) as stay:
        assert stay.live().outcome is Outcome.COMPLETED
        status = stay.status()
        assert status is not None
        assert any("manifest is larger than" in each for each in status.warnings), status.warnings


@pytest.mark.parametrize("pattern", ["**/x", "**/**/**/**/**/**/**/x"])
def test_folders_at_any_depth_are_matched_at_once(pattern: str) -> None:
    matches = re.compile(gathering.expression(pattern)).match
    assert matches("x")
    assert matches("a/b/x")
    assert not matches("a/" * 500 + "b")


def test_a_full_outbox_costs_the_outputs_and_nothing_else(tmp_path: Path, source: Path) -> None:
    """Something of the session's own stands where the blobs go."""
    (source / "train.py").write_text(
        f"{WRITES}import shutil\nblobs = pathlib.Path('../../outbox/blobs')\n"
        "shutil.rmtree(blobs)\nblobs.write_text('')\n"
    )
    with session(tmp_path / "s", "train.py", source=source) as stay:
        assert stay.live().outcome is Outcome.COMPLETED
        status = stay.status()
        assert status is not None
        assert any("the outputs could not be kept" in each for each in status.warnings)
