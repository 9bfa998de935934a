"""A notebook through `submit`: to its session limit, resumed, done; and one whose cell fails."""

from __future__ import annotations

import json

from tests.agent.cells import texts, write
from tests.cli.calls import PATIENCE, Caller
from tests.waiting import wait_until

CONFIG = """
platforms:
  here: {type: process, session_seconds: 20, setup_seconds: 1, grace_seconds: 8, poll_seconds: 0.2}
"""
JOB = """
name: noted
source: source
command: notes/{name}.ipynb --steps {{steps}}
work: {{total: 60, global_batch: 8}}
checkpoint: {{interval: 1s}}
profiles:
  cpu: {{micro_batch: 8, precision: fp32}}
"""
BEGIN = """\
from orchestrator.training import Training
training = Training.from_environment()
state = {"sessions": []}
state |= training.resume(state)
state["sessions"].append(training.start)
"""
LOOP = """\
import time
for step in training.steps(steps, state):
    print("step", step, "of", steps)
    time.sleep(0.5)
"""


def submitted(user: Caller, name: str, *cells: str) -> str:
    user.config(CONFIG)
    write(user.folder / "source" / "notes" / f"{name}.ipynb", *cells, tags={0: ["parameters"]})
    (user.folder / "job.yaml").write_text(JOB.format(name=name))
    return user.submitted("job.yaml")


def pulled(user: Caller, run: str, name: str) -> bytes:
    user("pull", run, "--outputs", "-o", "results")
    [path] = (user.folder / "results").rglob(f"{name}.executed.ipynb")
    return path.read_bytes()


def test_a_notebook_saves_at_its_session_limit_and_is_resumed_to_the_end(user: Caller) -> None:
    run = submitted(user, "train", "steps = 1", BEGIN, LOOP, "print('sessions began at', state['sessions'])")
    user.wait_for_phase(run, "done")
    log = user("logs", run).out
    assert "step 1 of 60\n" in log
    sessions = user("show", run, "--json").json["sessions"]
    assert len(sessions) >= 2
    begins = json.loads(texts(pulled(user, run, "train"))[-1].rpartition(" at ")[2])
    told = [each for each in sessions[:-1] if each["to_step"] is not None]  # the others left no state
    assert begins == [each["order"]["resume_step"] for each in (*told, sessions[-1])]
    assert begins == sorted(begins)
    assert 0 < begins[1] < 60  # the last session may have had no step left to do
    assert f"step {begins[1] + 1} of 60\n" in log


def test_a_failing_cell_fails_the_run_and_the_executed_notebook_comes_home(user: Caller) -> None:
    run = submitted(user, "fails", "steps = 1", "print('before')", "raise RuntimeError('no such luck')")
    wait_until(lambda: user.record(run).standing == "failed", "the run to fail")
    shown, _ = user.start("show", run).communicate(timeout=PATIENCE)
    assert "RuntimeError: no such luck" in shown
    executed = pulled(user, run, "fails")
    assert texts(executed)[-2:] == ["before\n", ""]
    assert json.loads(executed)["cells"][-1]["outputs"][0]["evalue"] == "no such luck"
