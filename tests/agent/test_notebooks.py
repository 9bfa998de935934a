"""Notebooks as commands, in real kernels: their output, arguments, end, and the executed copy."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent import archive
from orchestrator.agent.causes import cause
from orchestrator.core.order import Outcome, Result
from tests.agent.cells import texts, write
from tests.agent.sessions import PATIENCE, QUICK, Stay, session
from tests.waiting import wait_until

TRAINING = """\
from orchestrator.training import Training
training = Training.from_environment()
state = {"seen": 0}
state |= training.resume(state)
print("begins after", training.start)
"""
LOOP = """\
import time
for step in training.steps(100_000, state):
    state["seen"] += 1
    print("step", step)
    time.sleep(0.02)
"""
SAVER = """\
import os, signal, sys, time
def stop(*_):
    os.mkdir(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"] + "/step-3")
    open(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"] + "/step-3/state", "w").write("3")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("script is ready", flush=True)
time.sleep(600)
"""


def stopped(stay: Stay, ready: str) -> Result:
    """The session's result after SIGTERM, which it gets once its log says that it is ready."""
    agent = stay.start(replace(QUICK, save_floor=60.0, save_ceiling=60.0))
    wait_until(lambda: ready in stay.log(), lambda: f"{ready!r} in the log: {stay.log()}")
    agent.send_signal(signal.SIGTERM)
    return stay.end()


def test_a_notebook_runs_like_a_script(tmp_path: Path) -> None:
    """Its folder, its arguments, its parameters, magics, and what it shows."""
    write(
        tmp_path / "source" / "notes" / "train.ipynb",
        "steps = 1\nname = '1'\nrate = 0.5\nresume = None",
        "import os, sys, beside\nprint(os.getcwd(), sys.argv, beside.V)\nprint(steps, name, rate, resume)",
        "!echo from a shell\n%env KIND",
        "print('key is', os.environ['KEY'])\n'shown'",
        "raise ValueError('expected')",
        "import atexit, threading\natexit.register(print, 'at exit')\n"
        "threading.Timer(0.5, print, ['of a thread']).start()",
        "exit()",
        "print('never')",
        tags={0: ["parameters"], 4: ["raises-exception"]},
    )
    (tmp_path / "source" / "notes" / "beside.py").write_text("V = 'beside it'\n")
    with session(
        tmp_path / "s", source=tmp_path / "source", env=(("KIND", "a kind"),), outputs=("*.csv",),
        command=("notes/train.ipynb", "--steps", "7", "--name=2", "--resume", "{resume}"),
        secrets=("KEY",), values={"KEY": "a very secret value"},
    ) as stay:  # fmt: skip
        assert stay.live().outcome is Outcome.COMPLETED, stay.log()
        [(name, executed)] = stay.outputs().items()
        log = stay.log()
    where = tmp_path / "s" / "work" / "source"
    told = f"{where} ['notes/train.ipynb', '--steps', '7', '--name=2'] beside it\n7 2 0.5 None\n"
    assert name == "notes/train.executed.ipynb"
    assert texts(executed)[2:5] == [told, "from a shell\n", "key is ***\n"]
    assert b"a very secret value" not in executed
    seen = (told, "a kind", "from a shell", "'shown'", "Error: expected", "of a thread\nat exit\n")
    assert [each for each in seen if each not in log] == []
    assert "never" not in log


def test_sigterm_reaches_the_training_in_a_cell_and_it_resumes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source / "train.ipynb", TRAINING, LOOP)
    with session(tmp_path / "1", command=("train.ipynb",), source=source, steps_total=100_000) as first:
        result = stopped(first, "step 5\n")
        assert result.outcome is Outcome.STOPPED, first.log()
        [saved] = first.manifests()
        assert result.step == saved.ref.step >= 5
        [executed] = first.outputs().values()  # although the job names no outputs
        assert texts(executed)[1].startswith("step 1\nstep 2\n")
    write(source / "train.ipynb", TRAINING)
    with session(
        tmp_path / "2", command=("train.ipynb",), source=source, generation=2, resume=saved.name,
        resume_step=saved.ref.step, staged=tmp_path / "1" / "outbox",
    ) as second:  # fmt: skip
        assert second.live().outcome is Outcome.COMPLETED
        assert f"begins after {saved.ref.step}\n" in second.log()


def test_a_script_that_a_cell_runs_hears_sigterm_and_may_exit_75(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source / "train.ipynb", "!{__import__('sys').executable} save.py", "print('not reached')")
    (source / "save.py").write_text(SAVER)
    with session(tmp_path / "s", command=("train.ipynb",), source=source) as stay:
        result = stopped(stay, "script is ready")
        assert (result.outcome, result.exit_code, result.step) == (Outcome.STOPPED, 75, 3), stay.log()
        assert "not reached" not in stay.log()


def test_a_notebook_that_does_not_handle_sigterm_ends_as_a_script_would(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write(source / "train.ipynb", "import time\nprint('ready')\ntime.sleep(600)")
    with session(tmp_path / "s", command=("train.ipynb",), source=source) as stay:
        result = stopped(stay, "ready\n")
        assert result.exit_code == -signal.SIGTERM
        assert "ended without saving" in result.message
        assert texts(*stay.outputs().values()) == ["ready\n"]


@pytest.mark.parametrize(
    ("cell", "exit_code", "last", "error"),
    [
        ("{}['lost']", 1, "KeyError: 'lost'", "KeyError: 'lost'"),
        ("input('your name?')", 1, "StdinNotImplementedError: raw_input was called", "StdinNotImplemented"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL", ""),
    ],
)
def test_a_failing_cell_fails_the_session_as_a_script_would(
    tmp_path: Path, cell: str, exit_code: int, last: str, error: str
) -> None:
    source = tmp_path / "source"
    write(source / "train.ipynb", "print('first')", cell, "print('not reached')")
    with session(tmp_path / "s", command=("train.ipynb",), source=source) as stay:
        result = stay.live()
        assert (result.outcome, result.exit_code) == (Outcome.CRASHED, exit_code), stay.log()
        assert last in result.tail.rstrip().splitlines()[-1]
        assert result.error.startswith(error)
        assert bool(result.error) == bool(error)
        assert "\x1b" not in result.tail
        [executed] = stay.outputs().values()
        assert texts(executed) == ["first\n", "", ""]
        kinds = [each["output_type"] for each in json.loads(executed)["cells"][1]["outputs"]]
        assert kinds == (["error"] if error else [])


def test_without_ipykernel_it_says_what_to_install_and_is_not_repeated(tmp_path: Path) -> None:
    archive.build(tmp_path / "agent.pyz")
    write(tmp_path / "train.ipynb", "1")
    code = (
        "import sys; sys.path.insert(0, 'agent.pyz')\n"
        "from orchestrator.notebook.__main__ import main; sys.exit(main(['train.ipynb']))"
    )
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert answer.returncode == 1
    assert "add `ipykernel` to the job's requirements" in answer.stderr
    assert cause(answer.returncode, answer.stderr).hopeless
