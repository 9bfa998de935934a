"""A run keeps its home store and its platforms when the config changes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.calls import Caller
from tests.waiting import wait_until

PLATFORM = (
    "type: process, session_seconds: 5, setup_seconds: 1, grace_seconds: 5, poll_seconds: 0.2, slots: 2"
)


def config(home_store: str, *stores: str, platform: str = "here") -> str:
    named = ", ".join(f"{name}: {{type: folder, path: store-{name}}}" for name in stores)
    return f"platforms: {{{platform}: {{{PLATFORM}}}}}\nstores: {{{named}}}\nhome_store: {home_store}\n"


def in_store(user: Caller, name: str) -> dict[str, set[str]]:
    """The runs in this store, with the names of their checkpoints."""
    found = (user.home / f"store-{name}").glob("runs/*/checkpoints/*")
    runs: dict[str, set[str]] = {}
    for path in found:
        runs.setdefault(path.parent.parent.name, set()).add(path.name)
    return runs


def checkpoints(user: Caller, run: str, *words: str) -> set[str]:
    """The checkpoints that the command lists; each one is intact."""
    rows = user("checkpoints", run, "--json", *words).json["checkpoints"]
    assert [row["trouble"] for row in rows if row["trouble"]] == []
    return {row["name"] for row in rows}


def named(user: Caller, name: str, total: int, gate: int | None = None) -> str:
    """A job's file for `user.submitted`, with a job name of its own."""
    path = user.folder / user.job(f"{name}.yaml", total=total, gate=gate)
    path.write_text(path.read_text().replace("name: tiny", f"name: {name}"))
    return path.name


@pytest.fixture
def controller(user: Caller) -> subprocess.Popen[str]:
    """A controller in the foreground. It picks up a changed config by itself."""
    user.config(config("a", "a", "b"))
    child = user.start("up")
    wait_until(user.owner, "a controller")
    return child


@pytest.mark.soak
@pytest.mark.usefixtures("controller")
def test_a_run_goes_on_with_its_own_home_store(user: Caller, tmp_path: Path) -> None:
    done = user.submitted(named(user, "done", 30))
    long = user.submitted(named(user, "long", 120, gate=60))
    user.wait_for_checkpoint(long)
    user("hold", long)
    user.wait_for_phase(long, "held")
    user.wait_for_phase(done, "done")
    sessions = len(user("show", long, "--json").json["sessions"])
    user.open_gate(120)
    user.config(config("b", "a", "b"))
    wait_until(lambda: checkpoints(user, done, "--verify") == in_store(user, "a")[done], "the rest to go")
    wait_until(lambda: checkpoints(user, long) == in_store(user, "a")[long], "the rest to go")
    before = in_store(user, "a")
    assert user("pull", done, "-o", str(tmp_path / "pulled"), "--json").json["step"] == 30
    new = user.submitted(named(user, "new", 5))
    user("release", long)
    for run in (new, long):
        user.wait_for_phase(run, "done")
    assert user("show", long, "--json").json["sessions"][sessions]["order"]["resume"] in before[long]
    wait_until(lambda: checkpoints(user, long) == in_store(user, "a")[long], "the rest to go")
    assert (set(in_store(user, "a")), set(in_store(user, "b"))) == ({done, long}, {new})
    user("down")
    user("prune", "--older-than", "0", "--checkpoints", "--yes")
    assert {run: len(names) for run, names in in_store(user, "a").items()} == {done: 1, long: 1}
    for run in (done, long, new):
        assert checkpoints(user, run, "--verify")


def test_a_store_that_was_taken_out_is_waited_for(
    user: Caller, controller: subprocess.Popen[str], tmp_path: Path
) -> None:
    done = user.submitted(named(user, "done", 5))
    long = user.submitted(named(user, "long", 120, gate=60))
    user.wait_for_phase(done, "done")
    user.wait_for_checkpoint(long)
    user.config(config("b", "b"))
    assert controller.stdout is not None
    said = iter(controller.stdout.readline, "")
    told = f"the config no longer has the store 'a'; these runs are held until it is back: {long}"
    assert any(told in line for line in said), "a starting controller names the waiting runs"
    user.wait_for_phase(long, "held")
    user.open_gate(120)
    shown = user("show", long)
    assert "it needs the store 'a', which the config no longer has: put it back" in shown.out
    doctor = user("doctor", code=2).out
    assert re.search(rf"store a +missing .*{long}", doctor)
    assert done not in doctor, "a finished run needs nothing"
    for run in (done, long):
        for command in ("checkpoints", "pull"):
            refused = user(command, run, code=2).err
            assert "the store 'a', which the config no longer has: put it back into" in refused
            assert str(user.home / "config.yaml") in refused
    submitted = user("submit", named(user, "new", 5))
    assert told in submitted.out + submitted.err
    new = submitted.out.split()[0]
    user.wait_for_phase(new, "done")
    assert user.phase(long) == "held"
    user("prune", "--older-than", "0", "--checkpoints", "--yes")
    user.config(config("b", "a", "b"))
    user.wait_for_phase(long, "done")
    assert "continues: it has the store 'a' again" in user("why", long).out
    wait_until(lambda: checkpoints(user, long, "--verify") == in_store(user, "a")[long], "the rest to go")
    assert set(in_store(user, "b")) == {new}
    assert user("pull", long, "-o", str(tmp_path / "pulled"), "--json").json["step"] == 120
    user("doctor")


def without_its_platform(user: Caller, total: int) -> str:
    """A run that has a session on a platform which was taken out of the config."""
    user.config(config("a", "a"))
    run = user.submitted(named(user, "long", total, gate=total // 2))
    user.wait_for_checkpoint(run)
    user.config(config("a", "a", platform="there"))
    user.wait_for_phase(run, "held")
    user.open_gate(total)
    wait_until(lambda: user.owner() is None, "the controller to leave: it can do nothing for the run")
    return run


@pytest.mark.soak
def test_a_platform_that_was_taken_out_is_waited_for(user: Caller) -> None:
    run = without_its_platform(user, 100)
    assert re.search(rf"platform here +missing .*{run}", user("doctor", code=2).out)
    shown = user("show", run).out
    assert "it needs the platform 'here', which the config no longer has: put it back" in shown
    assert checkpoints(user, run), "its store is there"
    assert f"cancel {run} --discard" in user("why", run).out
    assert "continues once it has the platform 'here' again" in user("release", run).out
    user.wait_for_phase(run, "held")
    wait_until(lambda: user.owner() is None, "the controller to leave again")
    user.config(config("a", "a"))
    assert "orchestrator up --detach" in user("show", run).out
    assert "not known to have ended" in shown
    assert "/s" not in re.search(r"progress .*", shown)[0], "nobody reads its rate"  # type: ignore[index]
    user("up", "--detach")
    user.wait_for_phase(run, "done")


def test_a_run_whose_platform_was_taken_out_can_be_given_up(user: Caller, tmp_path: Path) -> None:
    run = without_its_platform(user, 20_000)
    again = "once it has the platform 'here' again"
    assert f"continues {again}" in user("release", run).out
    assert f"continues {again}" in user("release", run).out, "whether or not a controller has looked"
    assert f"ends {again}" in user("cancel", run).out
    for command in ("hold", "release"):
        refused = user(command, run, code=2).err
        assert f"{run} is being cancelled: there is nothing to {command}" in refused
    said = user("cancel", run, "--discard").out
    assert "ends now; its checkpoints stay; what is left on 'here' stays there" in said
    user.wait_for_phase(run, "cancelled")
    wait_until(lambda: user.owner() is None, "the controller to leave: nothing is left to do")
    assert "platform here" not in user("doctor").out
    assert "put here back into the config" in user("show", run).out
    assert user("pull", run, "-o", str(tmp_path / "pulled"), "--json").json["step"]
    user.config(config("a", "a"))
    removed = user("doctor", "--clean", "--yes", "--discard", "--json").json["removed"]
    assert any(f"{run}-s" in each for each in removed)  # its session then; on a busy machine not the first


def test_init_keeps_the_platform_of_a_run_that_was_submitted_before(user: Caller) -> None:
    (user.home / "config.yaml").unlink(missing_ok=True)
    engine = "unix:///nonexistent/docker.sock"
    run = user.submitted(named(user, "early", 20_000))
    user.wait_for_phase(run, "running")
    made = user("init", DOCKER_HOST=engine).out
    assert re.search(r"platform +process: cpu, process", made)
    assert "process keeps the name it had without a config: runs use it" in made
    user("doctor")
    user("cancel", run)
    user.wait_for_phase(run, "cancelled")
    wait_until(lambda: user.owner() is None, "the controller to leave")
    assert re.search(r"platform +here: cpu, process", user("init", "--force", DOCKER_HOST=engine).out)
