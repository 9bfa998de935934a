"""The demo as `make demo` runs it: the bundled job, the demo's config, the real command, to the end.

CI runs a tiny model with fewer, paced steps: it is stopped and resumed as often, for much less work.
What the whole demo learns is checked by the long test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.training import state
from tests.end_to_end.user import PATIENCE, ROOT, User, fingerprints, paced_demo

JOB = ROOT / "jobs" / "graphmer_demo.yaml"
CONFIG = ROOT / "jobs" / "graphmer" / "train_demo.yaml"
STEPS, PACE_SECONDS = 120, 0.5  # two session limits or more on any machine


def run_demo(user: User, job: Path) -> tuple[str, Path]:
    """The run's name, and the folder that `submit --follow` prints at the end."""
    shutil.copy(ROOT / "scripts" / "demo_config.yaml", user.home / "config.yaml")
    said = user.run("submit", str(job), "--follow")
    run = str(user.answer("ps", "--all")["runs"][0]["run"])
    assert re.search(rf"^{run} +done in .*, in \d+ sessions$", said, re.MULTILINE), said
    assert re.search(r"saved step \d+ and left for the session's deadline", said), said
    assert re.search(r"steps/s  loss [\d.]+  done in about [\d:]+ \(", said), said
    [folder] = re.findall(r"^folder +(/.*)$", said, re.MULTILINE)
    for command in ("show", "why", "logs", "pull"):
        assert re.search(rf"orchestrator {command} {run}", said), said
    return run, Path(folder)


def train(folder: Path, total: int, config: Path = CONFIG, **given: str) -> str:
    """The output of the demo's training when it runs directly, in this folder."""
    folder.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    threads = str(len(os.sched_getaffinity(0)))
    environ |= {"PYTHONPATH": f"{ROOT / 'jobs' / 'graphmer'}:{ROOT}", "OMP_NUM_THREADS": threads, **given}
    flags = ["--steps", str(total), "--micro-batch", "32", "--precision", "fp32", "--seed", "1337"]
    return subprocess.run(
        [sys.executable, "-m", "graphmer.train", "--config", str(config), *flags],
        cwd=folder, env=environ, check=True, timeout=2 * PATIENCE, capture_output=True, text=True,
    ).stdout  # fmt: skip


def check_demo(user: User, job: Path, config: Path = CONFIG) -> tuple[int, Path]:
    """Runs the demo and checks what it shows; returns its number of steps and the folder of its result."""
    run, folder = run_demo(user, job)
    shown = user.answer("show", run)
    assert shown["phase"] == "done"
    assert len(shown["sessions"]) >= 3
    steps = [stay["order"]["resume_step"] for stay in shown["sessions"]]
    assert steps == sorted(set(steps))
    total = int(shown["job"]["work"]["total"])
    assert state.step_of(folder) == total
    newest = user.answer("checkpoints", run)["checkpoints"][-1]
    metrics = newest["metrics"]
    assert newest["step"] == total
    assert metrics["text_mrr"] > 0 < metrics["frequency_mrr"]
    # The checkpoint loads: a training that resumes from it has only to print the same result again.
    again = train(user.folder / "again", total, config, ORCHESTRATOR_RESUME_FROM=str(folder))
    assert f"from step {total}" in again
    [mrr] = re.findall(r"text_mrr ([\d.]+)", again)
    assert float(mrr) == pytest.approx(metrics["text_mrr"], rel=1e-3)
    user.wait_for_silence()
    return total, folder


@pytest.mark.timeout(3600)
def test_the_demo_crosses_walls_and_hands_its_checkpoint_back(user: User) -> None:
    job = paced_demo(user.folder, STEPS, seconds=PACE_SECONDS)
    check_demo(user, job, config=user.folder / "graphmer" / "train_demo.yaml")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_whole_demo_learns_and_its_weights_are_those_of_one_uninterrupted_training(user: User) -> None:
    total, folder = check_demo(user, JOB)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["text_mrr"] > metrics["frequency_mrr"]
    train(user.folder / "whole", total)
    whole = user.folder / "whole" / "checkpoints" / f"step-{total}"
    weights = [name for name in fingerprints(whole) if name.endswith(".safetensors")]
    assert weights
    assert {n: fingerprints(folder)[n] for n in weights} == {n: fingerprints(whole)[n] for n in weights}
