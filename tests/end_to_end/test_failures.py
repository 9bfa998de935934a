"""The failures that a user meets, the way they happen: real commands, real sessions, and their messages."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.event import Assigned, Ended
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Order, Outcome
from tests.end_to_end.conftest import SmallDisk
from tests.end_to_end.user import (
    Role,
    User,
    fingerprints,
    gated,
    move_home,
    opens,
    train_in_one_piece,
    wait_until,
)
from tests.forging import forge

pytestmark = pytest.mark.timeout(900)
LONG = "--pause 0.1"  # per step, so that there is time to disturb it


def orders(user: User, run: str) -> list[Order]:
    """The orders of the run's sessions."""
    return [stored.event.order for stored in user.history(run) if isinstance(stored.event, Assigned)]


def endings(user: User, run: str) -> list[Outcome]:
    return [stored.event.outcome for stored in user.history(run) if isinstance(stored.event, Ended)]


def check_as_in_one_piece(user: User, run: str, steps: int) -> None:
    """The run's final checkpoint, pulled, must equal that of an uninterrupted training byte for byte."""
    user.run("pull", run, "-o", str(user.folder / "final"))
    expected = train_in_one_piece(user.folder / "one-piece", "train.py", steps)
    assert fingerprints(user.folder / "final") == expected


def test_a_run_that_fails_the_same_way_twice_fails_with_the_logs_tail(user: User) -> None:
    never = {"interval": "1h"}  # a save on a slow machine is progress: the error would be a new one
    job = user.write_job(command="python train.py {steps} --raise-at 3", checkpoint=never)
    said = user.run("submit", str(job), "--follow", expect=1)
    assert "the same error at step 3 as in the session before, so it is not repeated" in said
    assert "ValueError: the planted fault" in said
    [listed] = user.answer("ps", "--all")["runs"]
    assert listed["phase"] == "failed"
    shown = user.answer("show", listed["run"])
    assert len(shown["sessions"]) == 2
    assert "Traceback (most recent call last)" in shown["reason"]
    assert "ValueError: the planted fault" in user.run("logs", listed["run"])
    user.run("pull", listed["run"], expect=2)


def test_out_of_memory_goes_on_with_a_smaller_micro_batch_from_the_checkpoint(
    new_user: Callable[..., User],
) -> None:
    user = new_user(memory_gb=0.6)
    run = user.submit(
        command="python train.py {steps} --save-every 10 --hungry-from 25 --micro-batch {micro_batch}",
        work={"total": 40, "global_batch": 8},
    )
    user.wait_for_end(run)
    first, second = orders(user, run)
    assert (first.micro_batch, second.micro_batch) == (8, 4)
    assert second.resume_step == 20
    assert endings(user, run) == [Outcome.OUT_OF_MEMORY, Outcome.COMPLETED]
    shown = user.answer("show", run)
    assert shown["micro_batch_caps"] == {"cpu": 4}
    assert "out of memory" in shown["sessions"][0]["ending"]
    check_as_in_one_piece(user, run, 40)


def test_a_loss_that_is_no_number_is_reported(user: User) -> None:
    run = user.submit(command="python train.py {steps} --nan-at 3 --pause 0.1")
    user.wait_for_end(run)
    assert any("loss is nan at step 3" in note for note in user.answer("show", run)["notes"])
    assert "loss is nan at step 3" in user.run("show", run)


def test_damaged_checkpoints_are_passed_over_and_said_to_be(user: User) -> None:
    """The newest was replaced with another consistent one. The previous one has a flipped bit."""
    run = user.submit(command=f"python train.py {{steps}} {LONG} --save-every 20 --hold-at 90")
    user.wait_for(run, lambda r: len(r.accepted) >= 3, "three checkpoints")
    user.run("hold", run)
    record = user.wait_for(run, lambda r: r.phase is Phase.HELD, "the hold")
    whole, before, newest = sorted(record.accepted, key=lambda c: c.ref.step)[-3:]
    stored = user.home / "store" / "runs" / run
    forge(stored, newest.name)
    manifest = json.loads((stored / "checkpoints" / before.name / "manifest.json").read_bytes())
    [part] = manifest["files"][0]["parts"]
    [blob] = stored.rglob(part["sha256"])
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)
    user.run("release", run)
    user.wait_for_end(run)
    notes = user.answer("show", run)["notes"]
    for name, why in ((newest.name, "its manifest was replaced"), (before.name, "is altered")):
        assert any(f"checkpoint {name} cannot be used" in n and why in n for n in notes), notes
    resumed = next(stay for stay in user.answer("show", run)["sessions"][1:])
    assert resumed["order"]["generation"] == 2
    assert f"falling back to step {whole.ref.step}" in " ".join(notes)
    check_as_in_one_piece(user, run, 100)


def test_a_disk_that_fills_up_during_a_save_loses_no_earlier_checkpoint(
    small_disk: SmallDisk, user: User
) -> None:
    """The full disk is the one that holds everything: home, ledger, store and sessions."""
    fill = small_disk(user)
    run = user.submit(command=gated(user, 50, pause=0.1), retry={"without_progress": 50})
    kept = user.wait_for(run, lambda r: len(r.accepted) >= 1, "a checkpoint").accepted
    free = fill()
    opens(user, 50)
    wait_until(
        lambda: b"could not be saved" in said(user, run),
        lambda: f"a save that finds no room\n{user.story(run)}",
    )
    free()
    user.run("up", "--detach")
    user.wait_for_end(run)
    resumed = [order.resume_step for order in orders(user, run)[1:]]
    assert all(step >= max(c.ref.step for c in kept) for step in resumed)
    check_as_in_one_piece(user, run, 100)


def said(user: User, run: str) -> bytes:
    """The training's output so far, and what is said of its end: a full disk may have room for one only."""
    sessions = user.home / "platforms" / "here"
    logs = (*sessions.glob(f"{run}-s*/outbox/log/*.log"), *sessions.glob(f"{run}-s*/outbox/result.json"))
    return b"".join(path.read_bytes() for path in (*logs, user.home / "controller.log"))


def test_processes_that_sleep_for_a_while_are_not_fenced(user: User) -> None:
    """First the session sleeps for less than the silence limit. Then the controller sleeps for longer than
    it."""
    run = user.submit(command=gated(user, 90, pause=0.25))
    user.wait_for(run, lambda r: len(r.accepted) >= 1, "a checkpoint")
    found = user.by_role()
    asleep = [*found[Role.AGENT], *found[Role.LEADER], *found[Role.GUARDIAN]]
    assert len(asleep) == 3
    since = reading(user, run)["at"]
    for process in asleep:
        assert process.send(signal.SIGSTOP)
    wait_until(lambda: reading(user, run)["at"] > since + 12.0, "readings of a session that sleeps")
    for process in asleep:
        assert process.send(signal.SIGCONT)
    [controller] = found[Role.CONTROLLER]
    beats = heartbeat(user, run)
    assert controller.send(signal.SIGSTOP)
    wait_until(lambda: heartbeat(user, run) > beats + 35, "35 heartbeats nobody looks at")
    assert controller.send(signal.SIGCONT)
    opens(user, 90)
    user.wait_for_end(run)
    assert len(orders(user, run)) == 1
    assert endings(user, run) == [Outcome.COMPLETED]
    assert user.answer("show", run)["notes"] == []
    check_as_in_one_piece(user, run, 100)


def reading(user: User, run: str) -> dict[str, float]:
    """The controller's newest reading of the session."""
    found: dict[str, float] = json.loads((user.home / "runs" / run / "live.json").read_bytes())
    return found


def heartbeat(user: User, run: str) -> int:
    [path] = (user.home / "platforms" / "here").glob(f"{run}-s01/outbox/status.json")
    return int(json.loads(path.read_bytes())["heartbeat"])


def test_submitting_again_makes_a_second_run_unless_asked_not_to(user: User) -> None:
    job = user.write_job(command=f"python train.py {{steps}} {LONG}", work={"total": 3000, "global_batch": 8})
    first = user.answer("submit", str(job))["run"]
    second = user.answer("submit", str(job))["run"]
    assert first != second
    answer = user.answer("submit", str(job), "--unless-running")
    assert not answer["submitted"]
    assert answer["run"] in (first, second)
    assert {listed["run"] for listed in user.answer("ps")["runs"]} == {first, second}
    user.wait_for(first, lambda r: r.accepted, "a checkpoint of the first")
    for run in (second, first):
        user.run("cancel", run)
        user.wait_for_end(run, Phase.CANCELLED)
    assert user.answer("pull", first, "-o", str(user.folder / "kept"))["step"] > 0
    third = user.answer("submit", str(job), "--unless-running")
    assert third["submitted"]
    user.run("cancel", third["run"])
    user.wait_for_end(third["run"], Phase.CANCELLED)
    user.wait_for_silence()


def test_a_home_that_may_only_be_read_is_said_with_the_way_out(user: User) -> None:
    job = user.write_job()
    run = str(user.answer("submit", str(job))["run"])
    user.wait_for_end(run)
    user.wait_for_silence()
    for path in sorted(user.home.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    user.home.chmod(0o555)
    # root may do everything unless it drops that power
    powerless = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    try:
        said = user.run("submit", str(job), expect=3, through=powerless)
        fresh = user.run("submit", str(job), "--home", str(user.home / "new"), expect=3, through=powerless)
    finally:
        for path in [user.home, *user.home.rglob("*")]:
            path.chmod(0o755)
    for text in (said, fresh):
        assert re.search("set ORCHESTRATOR_HOME to (one that is|a folder you may write to)", text), text
        assert "Traceback" not in text
    assert user.answer("ps", "--all")["runs"][0]["phase"] == "done"


def test_a_home_on_another_disk(other_disk: Path, user: User) -> None:
    move_home(user, other_disk / "home")
    assert other_disk.stat().st_dev != user.folder.stat().st_dev
    run = user.submit(command=f"python train.py {{steps}} {LONG}")
    user.wait_for_end(run)
    check_as_in_one_piece(user, run, 100)
