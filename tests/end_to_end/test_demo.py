"""The demo as `make demo` runs it: the bundled job, the demo's driver and config, to the end.

CI runs a tiny model with fewer, paced steps and a shorter wall: it is stopped, killed and resumed as often,
for less work. Here CI trains with torch over session limits on the platform `process`, and compares the bits.
What the whole demo learns is checked by the long test.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.cli.output import Output
from orchestrator.client import Client
from orchestrator.client.home import Home
from orchestrator.core.lifecycle import Phase
from orchestrator.ledger import Owner
from orchestrator.training import state
from scripts import demo
from tests.end_to_end.user import (
    COMMAND_PATIENCE,
    PATIENCE,
    ROOT,
    Role,
    User,
    fingerprints,
    gated,
    paced_demo,
    wait_until,
)

JOB = ROOT / "jobs" / "graphmer_demo.yaml"
SETTINGS = ROOT / "jobs" / "graphmer" / "train_demo.yaml"
CONFIG = ROOT / "scripts" / "demo_config.yaml"
STEPS, PACE_SECONDS, WALL_SECONDS = 66, 1.0, 36  # two session limits or more on any machine


def driver(user: User, job: Path, config: Path) -> list[str]:
    flags = ["--home", str(user.home), "--job", str(job), "--config", str(config)]
    return [sys.executable, str(ROOT / "scripts" / "demo.py"), *flags]


def run_demo(user: User, job: Path, config: Path) -> tuple[str, Path]:
    """The run's name, and the folder that the demo prints at the end."""
    ended = subprocess.run(
        driver(user, job, config), cwd=user.folder, env=user.environment(), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=COMMAND_PATIENCE,
    )  # fmt: skip
    left = {role: processes for role, processes in user.by_role().items() if processes}
    assert left == {}, "nothing of it runs"
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    run = str(user.answer("ps", "--all")["runs"][0]["run"])
    assert re.search(rf"^{run} +done in .*, in \d+ sessions$", said, re.MULTILINE), said
    # A busy machine may need too long to exit after it has saved.
    assert re.search(r"(saved step \d+ and left|asked to leave) for the session's deadline", said), said
    assert re.search(r"steps/s  loss [\d.]+  done in about [\d:]+ \(", said), said
    [folder] = re.findall(r"^folder +(/.*)$", said, re.MULTILINE)
    for command in ("show", "why", "logs", "pull"):
        assert re.search(rf"orchestrator {command} --home \S+ {run}", said), said
    check_crash(user, run, said)
    return run, Path(folder)


def check_crash(user: User, run: str, said: str) -> None:
    """It said so first, killed the controller once, another one took over, and at the end it counts."""
    [victim] = re.findall(r"Now the demo kills its own controller \(process (\d+)\) with kill -9", said)
    [successor] = re.findall(r"A new controller \(process (\d+)\) has taken over", said)
    assert victim != successor
    log = (user.home / "controller.log").read_text()
    assert re.findall(r"controller (\d+) has taken over", log) == [victim, successor]
    assert f"controller {victim} leaves" not in log  # it had no time to
    endings = [stay["ending"] for stay in user.answer("show", run)["sessions"]]
    # A busy machine may need too long for a first checkpoint: that session has crashed.
    stops = sum("deadline" in ending and "crashed" not in ending for ending in endings)
    assert f"crossed {stops} times" in said, said
    assert "the controller was killed once, by this demo; another one took over" in said, said


def train(folder: Path, total: int, settings: Path = SETTINGS, **given: str) -> str:
    """The output of the demo's training when it runs directly, in this folder."""
    folder.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    threads = str(len(os.sched_getaffinity(0)))
    environ |= {"PYTHONPATH": f"{ROOT / 'jobs' / 'graphmer'}:{ROOT}", "OMP_NUM_THREADS": threads, **given}
    flags = ["--steps", str(total), "--micro-batch", "32", "--precision", "fp32", "--seed", "1337"]
    return subprocess.run(
        [sys.executable, "-m", "graphmer.train", "--config", str(settings), *flags],
        cwd=folder, env=environ, check=True, timeout=2 * PATIENCE, capture_output=True, text=True,
    ).stdout  # fmt: skip


def check_demo(user: User, job: Path, config: Path, settings: Path) -> dict[str, float]:
    """Runs the demo and checks what it shows and learnt; returns the metrics of its result."""
    run, folder = run_demo(user, job, config)
    shown = user.answer("show", run)
    assert shown["phase"] == "done"
    assert len(shown["sessions"]) >= 3
    for before, after in pairwise(shown["sessions"]):  # on a busy machine one may have saved nothing
        reached = before["order"]["resume_step"] if before["to_step"] is None else before["to_step"]
        assert after["order"]["resume_step"] == reached
    total = int(shown["job"]["work"]["total"])
    assert state.step_of(folder) == total
    newest = user.answer("checkpoints", run)["checkpoints"][-1]
    metrics = newest["metrics"]
    assert newest["step"] == total
    assert metrics["text_mrr"] > 0 < metrics["frequency_mrr"]
    user.wait_for_silence()
    train(user.folder / "whole", total, settings)
    whole = user.folder / "whole" / "checkpoints" / f"step-{total}"
    weights = [name for name in fingerprints(whole) if name.endswith(".safetensors")]
    assert weights
    assert {n: fingerprints(folder)[n] for n in weights} == {n: fingerprints(whole)[n] for n in weights}
    # The checkpoint loads: a training that resumes from it has only to print the same result again.
    again = train(user.folder / "again", total, settings, ORCHESTRATOR_RESUME_FROM=str(folder))
    assert f"from step {total}" in again
    [mrr] = re.findall(r"text_mrr ([\d.]+)", again)
    assert float(mrr) == pytest.approx(metrics["text_mrr"], rel=1e-3)
    return {name: float(value) for name, value in json.loads((folder / "metrics.json").read_text()).items()}


def short_walls(folder: Path) -> Path:
    """The demo's config, with WALL_SECONDS."""
    given = CONFIG.read_text()
    config = folder / "demo_config.yaml"
    config.write_text(re.sub(r"session_seconds: \d+", f"session_seconds: {WALL_SECONDS}", given))
    assert config.read_text() != given
    return config


@pytest.mark.timeout(3600)
def test_the_demo_crosses_walls_and_a_crash_and_its_weights_are_those_of_one_uninterrupted_training(
    user: User,
) -> None:
    job = paced_demo(user.folder, STEPS, seconds=PACE_SECONDS)
    check_demo(user, job, short_walls(user.folder), user.folder / "graphmer" / "train_demo.yaml")


@pytest.mark.timeout(1800)
def test_ctrl_c_at_the_kill_leaves_nothing_running_and_the_next_demo_goes_on_with_the_run(user: User) -> None:
    gate = user.folder / "gates" / "60"
    gate.parent.mkdir()
    gate.touch()
    command = f"python train.py {{steps}} --pause 0.1 --save-every 10 --gates {gate.parent}"
    run = user.submit(command=command, work={"total": 70, "global_batch": 8})
    user.wait_for(run, lambda record: record.accepted, "a checkpoint")
    user.run("hold", run)
    user.wait_for(run, lambda record: record.phase is Phase.HELD, "the hold")
    user.run("release", run)  # into a second session
    # As `make demo-docker` does it: with the config that is in the home already, and a platform.
    words = [*driver(user, user.folder / "job.yaml", user.home / "config.yaml"), "--platform", "here"]
    code, said = shown_until("kill -9", words, user, lambda demo: demo.send_signal(signal.SIGINT))
    assert code == 130, said
    assert f"{run} is under way: nothing was submitted" in said, said
    assert "so the run is held now" in said.partition("The view has ended")[2], said
    assert "make demo-docker" in said, said
    left = {role: processes for role, processes in user.by_role().items() if processes}
    assert left == {}, "nothing of it runs"
    assert user.record(run).phase is Phase.HELD
    code, said = shown_until("s03 starts", words, user, lambda _: gate.unlink())
    assert code == 0, said
    assert f"{run} is under way: nothing was submitted" in said, said
    assert "kill -9" not in said, said
    assert "the controller was killed once" in said, said
    assert user.record(run).phase is Phase.DONE
    user.wait_for_silence()


def test_a_controller_that_goes_on_is_told_and_not_waited_for_for_ever(
    user: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "TOLD_SECONDS", 0.0)
    monkeypatch.setattr(demo, "LEAVE_SECONDS", 0.1)
    run = user.submit(command=gated(user, 10, pause=0.1), work={"total": 20, "global_batch": 8})
    [controller] = user.by_role()[Role.CONTROLLER]
    with Client(Home.of(str(user.home))) as client:
        demo._await_end(client, Output(as_json=False))
        told = capsys.readouterr().err
        assert f"waiting for the demo's controller (process {controller.pid})" in told
        assert f"process {controller.pid}, the demo's controller, still runs" in told
        assert f"--home {user.home} down` ends it" in told
        user.run("cancel", run)
        monkeypatch.setattr(demo, "TOLD_SECONDS", PATIENCE)
        demo._await_end(client, Output(as_json=False))
    assert capsys.readouterr().err == ""
    assert user.by_role()[Role.CONTROLLER] == []


def shown_until(
    text: str, words: list[str], user: User, then: Callable[[subprocess.Popen[str]], None]
) -> tuple[int, str]:
    """Runs the demo, and does this once it shows the text; returns its exit code and all that it showed."""
    with subprocess.Popen(
        words, cwd=user.folder, env=user.environment(), stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as shown:  # fmt: skip
        assert shown.stdout is not None
        said = ""
        while text not in said:
            line = shown.stdout.readline()
            assert line, said
            said += line
        then(shown)
        said += shown.communicate(timeout=PATIENCE)[0]
    return shown.returncode, said


def test_it_kills_no_process_but_its_own_controller(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], cwd=tmp_path) as other:
        try:
            named = Owner("submit", other.pid, socket.gethostname(), 0.0)
            assert not demo.kill(named, lambda: named)  # its number went to a program that is not ours
            theirs = Owner("submit", other.pid, "another-machine", 0.0)
            assert not demo.kill(theirs, lambda: theirs)
            assert other.poll() is None
        finally:
            other.kill()
    ours = [sys.executable, "-c", "import time; time.sleep(600)", "orchestrator", "up"]
    with subprocess.Popen(ours, cwd=tmp_path) as process:
        try:
            wait_until(Path(f"/proc/{process.pid}/cmdline").read_bytes, "its words, after its exec")
            controller = Owner("submit", process.pid, socket.gethostname(), 0.0)
            assert not demo.kill(controller, lambda: None)  # it does not hold the ledger any more
            assert process.poll() is None
            assert demo.kill(controller, lambda: controller)
            assert process.wait(PATIENCE) == -signal.SIGKILL
        finally:
            process.kill()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_whole_demo_learns_and_its_weights_are_those_of_one_uninterrupted_training(user: User) -> None:
    metrics = check_demo(user, JOB, CONFIG, SETTINGS)
    assert metrics["text_mrr"] > metrics["frequency_mrr"]
