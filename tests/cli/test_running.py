"""Runs in progress: views that end, wishes, killed controllers, runs that wait for each other."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from pathlib import Path
from random import Random
from threading import Event

from orchestrator import config
from orchestrator.client.config_changes import SETTLED_SECONDS, ConfigChanges
from orchestrator.client.home import Home
from orchestrator.ledger import Ledger
from tests.cli.calls import CONFIG, PATIENCE, UNLIMITED, Caller
from tests.simulation.clock import VirtualClock
from tests.waiting import wait_until

SIMULATED = """
platforms:
  far:
    type: simulated
    uplink: none
    offers: [{accelerator: cpu, steps_per_second: 0.5}]
    pending_seconds: 0.1
    setup_seconds: 0.1
    heartbeat_seconds: 0.2
    poll_seconds: 0.2
    visibility_seconds: 1
"""


def test_ctrl_c_ends_the_view_and_never_the_run(user: Caller) -> None:
    user.config(UNLIMITED)  # `cancel` says something else between two sessions
    follower = user.start("submit", user.job(total=20_000), "--follow")
    assert follower.stdout is not None
    run = follower.stdout.readline().strip()
    assert any("s01 starts" in line for line in iter(follower.stdout.readline, ""))
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=PATIENCE)
    assert follower.returncode == 130, err
    assert f"{run} continues" in out
    assert f"orchestrator show {run} -f" in out
    user.wait_for_phase(run, "running")
    again = user.start("show", run, "-f", "--json")
    assert again.stdout is not None
    assert again.stdout.readline()
    user.wait_for_checkpoint(run)
    assert "saved and left" in user("cancel", run).out
    again.communicate(timeout=PATIENCE)
    assert again.returncode == 1, "the run was not finished"
    assert user.phase(run) == "cancelled"
    assert user("cancel", run, "--json").json["changed"] is False


def test_ctrl_c_before_a_run_is_recorded_leaves_nothing_of_it(user: Caller) -> None:
    """An empty folder would count as another ledger's run, and `prune` would keep the files it might need."""
    url = user.home / "ledger.sqlite"
    Ledger.open(f"sqlite:///{url}").close()
    writer = sqlite3.connect(url, timeout=PATIENCE, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")  # so that the submit waits before it records the run
    submit = user.start("submit", user.job())
    wait_until(lambda: list(user.home.glob("runs/*")), "the run's folder")
    submit.send_signal(signal.SIGINT)
    writer.close()
    _, err = submit.communicate(timeout=PATIENCE)
    assert submit.returncode == 130, err
    assert user("ps", "--all", "--json").json["runs"] == []
    assert list(user.home.glob("runs/*")) == []


def test_ctrl_c_is_noticed_wherever_it_arrives(user: Caller) -> None:
    run = user.submitted(user.job(total=20_000))
    random = Random(7)
    for words in (("show", run, "-f"), ("logs", run, "-f")) * 4:
        viewer = user.start(*words)
        assert viewer.stdout is not None
        assert viewer.stdout.readline()
        Event().wait(random.uniform(0.0, 0.6))
        viewer.send_signal(signal.SIGINT)
        _, err = viewer.communicate(timeout=PATIENCE)
        assert viewer.returncode == 130, err
    user("cancel", run)


def test_hold_release_and_pull_while_it_runs(user: Caller, tmp_path: Path) -> None:
    run = user.submitted(user.job(total=20_000))
    user.wait_for_checkpoint(run)
    pulled = user("pull", run, "-o", str(tmp_path / "early"), "--json").json
    assert (tmp_path / "early" / "state.json").read_text() == f'{{"step": {pulled["step"]}}}'
    assert user("hold", run, "--json").json["changed"] is True
    user.wait_for_phase(run, "held")
    assert "is already held" in user("hold", run).out
    assert user("show", run, "-f", code=3).out.count("orchestrator release") == 1
    step = user.wait_for_checkpoint(run)
    assert user("release", run, "--json").json["changed"] is True
    user.wait_for_phase(run, "running")
    orders = [each["order"] for each in user("show", run, "--json").json["sessions"]]
    assert step in {order["resume_step"] for order in orders}, "it went on from where it was held"
    assert "is not held" in user("release", run).out
    user("cancel", run)
    user.wait_for_phase(run, "cancelled")


def test_two_submits_share_one_controller_and_one_slot(user: Caller) -> None:
    # With a session limit the waiting run would get the slot when the session hits it.
    user.config(UNLIMITED)
    first, second = (user.start("submit", user.job(total=20_000), "--json") for _ in range(2))
    assert [child.wait(timeout=PATIENCE) for child in (first, second)] == [0, 0]
    rows = user("ps", "--json").json["runs"]
    assert len({row["run"] for row in rows}) == 2, "the same file twice is two runs"
    wait_until(lambda: sorted(r["phase"] for r in user("ps", "--json").json["runs"]) == ["queued", "running"],
               "one to run and one to wait")  # fmt: skip
    [waiting] = [row["run"] for row in user("ps", "--json").json["runs"] if row["phase"] == "queued"]
    assert "no free slot: 1 of 1 taken by our sessions" in user("why", waiting).out
    assert "nothing was submitted" in user("submit", "job.yaml", "--unless-running").out
    assert len(user("ps", "--json").json["runs"]) == 2
    owner = user.owner()
    assert owner is not None
    refused = user("up", code=2).err
    assert str(owner.pid) in refused
    for row in rows:
        user("cancel", row["run"])
    for row in rows:
        user.wait_for_phase(row["run"], "cancelled")


def test_a_killed_controller_comes_back_with_the_next_command(user: Caller) -> None:
    run = user.submitted(user.job(total=250, gate=150))  # it ends with another controller only
    user.wait_for_checkpoint(run)
    before = user.owner()
    assert before is not None
    viewer = user.start("show", run, "-f")
    assert viewer.stdout is not None
    assert "submitted" not in viewer.stdout.readline(), "only new events are shown"
    os.kill(before.pid, signal.SIGKILL)
    assert any("no controller is running" in line for line in iter(viewer.stdout.readline, ""))
    wait_until(lambda: user.owner() is None, "the controller to be gone")
    user.open_gate(250)
    assert "no controller is running since" in user("show", run).out
    assert user("submit", "job.yaml", "--unless-running", "--json").lines[0]["controller_started"] is True
    viewer.communicate(timeout=PATIENCE)
    assert viewer.returncode == 0
    sessions = user("show", run, "--json").json["sessions"]
    assert [each["order"]["generation"] for each in sessions] == list(range(1, len(sessions) + 1))
    wait_until(lambda: user.owner() is None, "the controller to leave when nothing is left to do")


def test_up_runs_in_the_foreground_until_down(user: Caller) -> None:
    child = user.start("up", "--json")
    wait_until(lambda: user.owner() is not None, "a controller")
    assert user("up", "--detach", "--json").json["started"] is False
    owner = user.owner()
    assert owner is not None
    assert owner.pid == child.pid
    assert user("down", "--json").json["ended"]["pid"] == child.pid
    out, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    assert "has taken over" in out
    assert "no controller is running" in user("down").out


def test_a_config_is_taken_once_nobody_is_writing_it(tmp_path: Path) -> None:
    """An editor empties the file before it writes."""
    told: list[str] = []
    clock, path = VirtualClock(), tmp_path / "config.yaml"
    path.write_text(CONFIG)
    changed = ConfigChanges(Home(tmp_path), config.load(tmp_path), clock, told.append)
    path.write_text("")
    assert not changed()
    path.write_text(CONFIG.replace("process, session_seconds: 5", "proces"))
    for _ in range(3):
        assert not changed()
        clock.advance(SETTLED_SECONDS)
    assert ["cannot be used; continuing with the old one" in line for line in told] == [True]
    path.write_text(CONFIG.replace("session_seconds: 5", "session_seconds: 7"))
    assert not changed()
    clock.advance(SETTLED_SECONDS)
    assert changed()


def test_a_controller_goes_on_with_a_changed_config_unless_it_is_wrong(user: Caller) -> None:
    child = user.start("up")
    assert child.stdout is not None
    before = wait_until(user.owner, "a controller")
    assert before is not None
    user.config(CONFIG.replace("process, session_seconds: 5", "proces"))
    said = iter(child.stdout.readline, "")
    assert any("cannot be used; continuing with the old one" in line for line in said)
    assert user.owner() == before
    user.config(CONFIG.replace("session_seconds: 5", "session_seconds: 7"))
    assert any("the config has changed" in line for line in said)
    assert any("has taken over" in line for line in said)
    after = user.owner()
    assert after is not None
    assert (after.pid, after.since > before.since) == (child.pid, True)
    user("down")
    assert child.wait(PATIENCE) == 0


def test_a_platform_taken_out_of_the_config_is_named_while_it_is_used(user: Caller) -> None:
    user.config(UNLIMITED)
    run = user.submitted(user.job(total=20_000))
    user.wait_for_checkpoint(run)
    user.config("platforms: {there: {type: process}}")
    assert run in user("doctor", code=2).out
    assert "platform here" in user("doctor", code=2).out
    user.config()
    user("doctor")
    user("cancel", run)
    user.wait_for_phase(run, "cancelled")
    assert "unknown until measured" not in user("ps", "--all").out
    assert re.search(r"cancelled after \S+ newest checkpoint", user("show", run, "-f", code=1).out)


def test_what_a_session_would_lose_is_not_thrown_away_silently(user: Caller) -> None:
    user.config(SIMULATED)
    run = user.submitted(user.job(total=100_000))

    def launched() -> bool:
        session = user("show", run, "--json").json["session"]
        return session is not None and session["launched_at"] is not None

    wait_until(launched, "a session that nobody can look into")
    refused = user("cancel", run, code=3).err
    assert "of work in" in refused
    assert f"orchestrator cancel {run} --discard" in refused
    assert user("show", run, "--json").json["wish"] is None
    user("cancel", run, "--discard")
    user.wait_for_phase(run, "cancelled")


def test_a_run_that_gets_nowhere_fails_with_the_logs_tail(user: Caller) -> None:
    user.config(UNLIMITED)
    (user.folder / "source" / "train.py").write_text("print('no such data set'); raise SystemExit(3)")
    text = (user.folder / user.job()).read_text() + "retry: {without_progress: 1}\n"
    (user.folder / "job.yaml").write_text(text)
    answer = user("submit", "job.yaml", "--follow", code=1)
    assert "no such data set" in answer.out
    assert "failed after" in answer.out
    [run] = [row["run"] for row in user("ps", "-a", "--json").json["runs"]]
    assert "no such data set" in user("show", run).out
    assert "has no checkpoint" in user("checkpoints", run).out
    assert "left no checkpoint" in user("pull", run, code=2).err


def test_a_corrupt_newest_checkpoint_falls_back_and_says_so(user: Caller, tmp_path: Path) -> None:
    run = user.submitted(user.job(total=60))
    user.wait_for_phase(run, "done")
    kept = user("checkpoints", run, "--json").json["checkpoints"]
    newest, before = kept[-1], kept[-2]
    manifest = user.home / "store" / "runs" / run / "checkpoints" / newest["name"] / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"accuracy": 1.0', b'"accuracy": 9.0'))
    assert "corrupt" in user("checkpoints", run).out
    answer = user("pull", run, "-o", str(tmp_path / "result"))
    assert "falling back to the one before" in answer.err
    assert (tmp_path / "result" / "state.json").read_text() == f'{{"step": {before["step"]}}}'
    error = user("pull", run, "--best", "--json", code=4).json["error"]
    assert "cannot be used" in error["message"]
