"""A notebook as a job's command, before anything is submitted: what is accepted, and what is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.commanding import executed
from orchestrator.spec.commands import missing_script
from tests.agent.cells import write
from tests.agent.sessions import new_order


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write(tmp_path / "notes" / "train.ipynb", "steps = 1\nresume = None", tags={0: ["parameters"]})
    write(tmp_path / "free.ipynb", "1")
    write(tmp_path / "r.ipynb", "1", metadata={"kernelspec": {"name": "ir", "language": "R"}})
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "free.ipynb --anything 1",
        "./notes/train.ipynb --steps {steps} --resume={resume}",
        ["notes/train.ipynb", "--steps", "{steps}"],
        "jupyter nbconvert --to notebook --execute free.ipynb",
        "papermill free.ipynb out.ipynb",
        {"shell": "python -m orchestrator.notebook free.ipynb && cp free.executed.ipynb x"},
    ],
)
def test_a_notebook_that_can_be_run_is_accepted(source: Path, command: Any) -> None:
    assert missing_script(command, source) is None


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("train.ipynb", "train.ipynb is not in the source folder .*; did you mean notes/train.ipynb?"),
        ("r.ipynb", "r.ipynb: its language is R, and only Python can be run"),
        ("notes/train.ipynb --epochs 3", "no parameter of the notebook: --epochs 3; its parameters: --steps"),
        ("python free.ipynb -x 1", "python cannot run a notebook; write `command: free.ipynb -x 1`"),
        ("python3 -u free.ipynb", "python3 cannot run a notebook; write `command: free.ipynb`"),
        ("torchrun free.ipynb", "torchrun cannot run a notebook"),
        ("bash free.ipynb", "bash cannot run a notebook"),
        ("/tmp/free.ipynb", "must lie in the source folder"),
        ("../free.ipynb", "must lie in the source folder"),
        ({"shell": "ls && free.ipynb"}, "write `python -m orchestrator.notebook free.ipynb` there"),
        ({"shell": "python free.ipynb | tee log"}, "a shell cannot run the notebook free.ipynb"),
    ],
)
def test_a_notebook_that_cannot_be_run_is_told_with_the_remedy(source: Path, command: Any, told: str) -> None:
    found = missing_script(command, source)
    assert found is not None
    begin, _, end = told.partition(" .*")
    assert begin in found
    assert end in found


def test_our_runner_executes_it_in_the_sessions_python() -> None:
    order = new_order(command=("a.ipynb", "--resume", "{resume}", "--x"))
    assert executed(order, None) == (sys.executable, "-m", "orchestrator.notebook", "a.ipynb", "--x")
    assert executed(order, "c/1.pt")[3:] == ("a.ipynb", "--resume", "c/1.pt", "--x")
