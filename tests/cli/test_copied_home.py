"""A home that was copied, moved or put back from an older copy: nothing is lost, and both are told."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.lifecycle import Phase
from tests.cli.calls import Caller, caller
from tests.waiting import wait_until

PLATFORM = "type: process, session_seconds: 3600, setup_seconds: 1, grace_seconds: 5, poll_seconds: 0.2"
TAKE_OVER = ("adopt", "--take-over")
TOTAL = 60


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Caller]:
    """Their job keeps only its newest checkpoint."""
    (tmp_path / "user").mkdir()
    with caller(tmp_path / "user") as found:
        stores = f"stores: {{disk: {{type: folder, path: {tmp_path / 'store'}}}}}\nhome_store: disk\n"
        found.config(f"platforms: {{here: {{{PLATFORM}}}}}\n{stores}")
        path = found.folder / found.job(total=TOTAL, gate=10)
        path.write_text(path.read_text().replace("last: 3, best: {metric: accuracy, mode: max}", "last: 1"))
        yield found


@pytest.fixture
def copy(user: Caller) -> Iterator[Caller]:
    """Who uses a copy of the home, which is still to be made."""
    found = Caller(user.folder, user.folder / "copy")
    yield found
    found.close()


def at_least(user: Caller, run: str, step: int) -> None:
    wait_until(
        lambda: max((c.ref.step for c in user.record(run).accepted), default=-1) >= step, f"{run} at {step}"
    )


def held(user: Caller, run: str) -> None:
    """Holds the run and stops the controller."""
    user("hold", run)
    wait_until(lambda: user.record(run).phase is Phase.HELD, "the hold")
    user("down")


def reason(user: Caller, run: str) -> str:
    """Why nothing is done for the run, once that is so."""
    return wait_until(lambda: user.record(run).fault, f"{run} to wait")


def log(user: Caller) -> str:
    return user("logs", "--controller").out


def started_from(user: Caller, run: str) -> list[str]:
    return [line.split()[-1] for line in user("logs", run).out.splitlines() if "counting from" in line]


def test_a_copy_waits_until_it_is_told_to_take_over(user: Caller, copy: Caller) -> None:
    run = user.submitted("job.yaml")
    at_least(user, run, 10)
    held(user, run)
    shutil.copytree(user.home, copy.home)
    user.open_gate(30)
    user("release", run)
    at_least(user, run, 30)
    copy("release", run)
    told = reason(copy, run)
    assert f"another copy of this home, {socket.gethostname()}:{user.home}, uses the store disk since" in told
    assert "`orchestrator adopt --take-over`" in told
    assert told in copy("show", run).out.replace("\n", " ") or "--take-over" in copy("show", run).out
    other = copy.submitted("job.yaml")
    assert reason(copy, other) == told, "a new run waits, too"
    copy("down")
    user("down")
    user("up", "--detach")  # it is told what asked meanwhile
    wait_until(lambda: f"{copy.home}, waits for the store disk" in log(user), "the first one to be told")
    user.open_gate(TOTAL)
    user.wait_for_phase(run, "done")
    before = set((user.folder.parent / "store").rglob("manifest.json"))
    assert before
    [row] = copy("checkpoints", run, "--json").json["checkpoints"]
    assert copy("prune", "--yes", "--older-than", "0", "--checkpoints", "--json").code == 0
    assert set((user.folder.parent / "store").rglob("manifest.json")) == before
    assert user("checkpoints", run, "--verify", "--json").json["checkpoints"][0]["step"] == TOTAL

    would = copy(*TAKE_OVER, "--dry-run", "--json").json["runs"]
    assert {each["run"] for each in would} == {run, other}
    assert copy.record(run).phase is Phase.HELD, "a dry run changes nothing"
    taken = {each["run"]: each for each in copy(*TAKE_OVER, "--json").json["runs"]}
    assert (taken[run]["phase"], taken[run]["step"], row["step"]) == ("done", TOTAL, 10)
    copy.wait_for_phase(other, "done")
    assert copy(*TAKE_OVER, "--json").json["runs"] == [], "once is enough"
    assert copy("checkpoints", run, "--verify", "--json").json["checkpoints"][0]["step"] == TOTAL


def test_the_first_stops_when_the_copy_of_a_running_home_takes_over(user: Caller, copy: Caller) -> None:
    run = user.submitted("job.yaml")
    at_least(user, run, 10)
    shutil.copytree(user.home, copy.home)  # while its controller runs, which starts no other
    copy("up", "--detach")
    assert f":{user.home}, uses the store disk" in reason(copy, run)
    user.open_gate(20)
    at_least(user, run, 20)
    copy(*TAKE_OVER)
    user.open_gate(40)
    assert f"another copy of this home, {socket.gethostname()}:{copy.home}" in reason(user, run)
    at_least(copy, run, 40)
    assert copy.record(run).generation > 2, "above every session of the other"
    assert int(started_from(copy, run)[-1]) >= 20
    user.open_gate(TOTAL)
    copy.wait_for_phase(run, "done")
    assert copy("checkpoints", run, "--verify", "--json").json["checkpoints"][0]["step"] == TOTAL
    newest = user.record(run).accepted[-1]
    assert user.record(run).standing is Phase.HELD
    assert newest.ref.step < TOTAL, "it accepted nothing more"


def test_a_home_put_back_from_an_older_copy_goes_on_from_the_newest_checkpoint(user: Caller) -> None:
    run = user.submitted("job.yaml")
    at_least(user, run, 10)
    held(user, run)
    old = (user.home / "ledger.sqlite").read_bytes()
    user.open_gate(30)
    user("release", run)
    at_least(user, run, 30)
    held(user, run)
    for path in user.home.glob("ledger.sqlite-*"):
        path.unlink()
    (user.home / "ledger.sqlite").write_bytes(old)
    assert user.record(run).accepted[-1].ref.step == 10
    user.open_gate(TOTAL)
    user("release", run)
    user.wait_for_phase(run, "done")
    assert started_from(user, run) == ["0", "10", "30"]
    assert "an older copy of this home was put back" in log(user)
    assert "caught up with the store disk" in user("why", run).out
    assert user("checkpoints", run, "--verify", "--json").json["checkpoints"][0]["step"] == TOTAL


def test_a_home_that_was_moved_goes_on_without_a_word(user: Caller, copy: Caller) -> None:
    run = user.submitted("job.yaml")
    at_least(user, run, 10)
    held(user, run)
    user.home.rename(copy.home)
    copy.open_gate(TOTAL)
    copy("release", run)
    copy.wait_for_phase(run, "done")
    assert started_from(copy, run) == ["0", "10"]
    assert "another copy" not in log(copy)
