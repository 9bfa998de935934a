"""TensorBoard's files of several sessions, read back as TensorBoard reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.training import Training, summary_writer
from tests.training.events import tensorboard

SESSION = """
import os, sys
from orchestrator.training import Training, summary_writer
training = Training.from_environment()
first, last, killed, value = training.start + 1, int(sys.argv[1]), sys.argv[2] == "killed", float(sys.argv[3])
writer = summary_writer(training, "logs")
for step in range(first, last + 1):
    writer.add_scalar("loss", value, step)
    if step in (40, 70):
        training.save(step, {"x": 1}, required=True)
if killed:
    writer.flush()
    os.kill(os.getpid(), 9)
"""


def train(folder: Path, number: int, resume: int, last: int, ending: str, value: float) -> None:
    given = {"ORCHESTRATOR_SESSION_NAME": f"run-s{number:02d}", "ORCHESTRATOR_CHECKPOINT_DIR": "c"}
    if resume:
        given["ORCHESTRATOR_RESUME_FROM"] = str(folder / "c" / f"step-{resume}")
    command = [sys.executable, "-c", SESSION, str(last), ending, str(value)]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": ":".join(sys.path), **given}, check=False)
    assert done.returncode == (-9 if ending == "killed" else 0)


def test_the_files_of_all_sessions_form_one_unbroken_curve(tmp_path: Path) -> None:
    """Killed at 50 with a checkpoint of 40, and left at 70."""
    train(tmp_path, 1, 0, 50, "killed", 1.0)
    train(tmp_path, 2, 40, 70, "left", 2.0)
    train(tmp_path, 3, 70, 80, "left", 3.0)
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert [name.split(".")[-1] for name in names] == ["run-s01", "run-s02", "run-s03"]
    found = tensorboard(tmp_path / "logs")
    assert [step for step, _ in found] == list(range(1, 81))
    assert [value for _, value in found] == [1.0] * 40 + [2.0] * 30 + [3.0] * 10


def test_writers_that_start_in_one_second_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for number in range(4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ORCHESTRATOR_SESSION_NAME", f"run-s{number:02d}")
            writer = summary_writer(Training(tmp_path / "c"), tmp_path / "logs")
        writer.add_scalar("loss", 1.0, number)
        writer.close()
    assert sorted(step for step, _ in tensorboard(tmp_path / "logs")) == [0, 1, 2, 3]


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with summary_writer(Training(tmp_path / "c"), tmp_path / "logs") as writer:
        writer.add_scalar("loss", 1.0, 1)
        writer.close()
    assert not (tmp_path / "logs").exists()


def test_without_a_writer_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['tensorboardX'] = sys.modules['torch.utils.tensorboard'] = None\n"
        "from orchestrator.training import Training, summary_writer; from pathlib import Path\n"
        "try: summary_writer(Training(Path('c')))\n"
        "except ImportError as error: print(error)"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, env=path, capture_output=True, text=True, check=True)
    assert "add tensorboardX to the job's requirements" in done.stdout


def test_the_time_of_a_report_is_told(tmp_path: Path) -> None:
    Training(tmp_path / "c", progress=tmp_path / "progress").report(1, loss=0.5)
    assert json.loads((tmp_path / "progress").read_text())["time"] > 1.7e9
