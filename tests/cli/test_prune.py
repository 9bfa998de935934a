"""`prune` in a home of real runs: what it removes, what it keeps, and that the kept runs still work."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.client import growth
from orchestrator.client.home import Home
from orchestrator.clock import SystemClock
from orchestrator.core.event import Cancelled, Submitted
from orchestrator.ledger import Ledger
from orchestrator.platforms import catalog
from orchestrator.session.staging import Materials
from tests.cli.calls import CONFIG, PATIENCE, Answer, Caller, caller
from tests.conformance.test_platforms import any_order
from tests.core import runs
from tests.waiting import wait_until

AT_ONCE = ("--older-than", "0")
LONG_AGO = 1_600_000_000.0
INPUTS = "inputs: [{name: corpus, from: corpus}]\n"


@dataclass(frozen=True)
class Grown:
    """A home with three runs and no controller: two of one job are done, one of another is held."""

    user: Caller
    first: str
    second: str
    held: str

    @property
    def home(self) -> Path:
        return self.user.home

    def bundles(self) -> set[str]:
        return {path.name for path in (self.home / "bundles").iterdir()}

    def logs(self) -> set[str]:
        return {path.name for path in (self.home / "runs").iterdir()}


def aged(home: Path) -> None:
    """Makes everything in the home look a year old, except the runs' own times."""
    for path in home.rglob("*"):
        moment = path.lstat().st_mtime - 365 * 86400
        os.utime(path, (moment, moment), follow_symlinks=False)


@pytest.fixture(scope="module")
def grown_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grown]:
    with caller(tmp_path_factory.mktemp("grown")) as user:
        user.config(CONFIG.replace("poll_seconds: 0.2", "poll_seconds: 0.2, slots: 3"))
        (user.folder / "corpus").write_text("words")
        long = user.job("long.yaml", total=100_000)
        (user.folder / long).write_text((user.folder / long).read_text().replace("tiny", "long"))
        held = user.submitted(long)
        user.wait_for_checkpoint(held)
        user("hold", held)
        short = user.job(total=5)
        (user.folder / short).write_text((user.folder / short).read_text() + INPUTS)
        (user.folder / "source" / "notes.txt").write_text("another source")
        first = user.submitted(short)
        user.wait_for_phase(first, "done")
        (user.folder / "source" / "notes.txt").write_text("and another")
        second = user.submitted(short)
        user.wait_for_phase(second, "done")
        user.wait_for_phase(held, "held")
        user("down")
        aged(user.home)
        yield Grown(user, first, second, held)


@pytest.fixture
def grown(grown_once: Grown, tmp_path: Path) -> Iterator[Grown]:
    """A copy of that home and its user."""
    shutil.copytree(grown_once.user.folder, tmp_path / "user", symlinks=True)
    user = Caller(tmp_path / "user", tmp_path / "user" / "home")
    yield Grown(user, grown_once.first, grown_once.second, grown_once.held)
    user.close()


def going(answer: Answer) -> dict[str, int]:
    return {row["what"]: row["count"] for row in answer.json["removes"]}


def test_without_a_terminal_and_without_yes_it_only_shows(grown: Grown) -> None:
    before = sorted(grown.home.rglob("*"))
    text = grown.user("prune", *AT_ONCE).out
    assert "Nothing was removed" in text
    assert "no run that is under way needs it" in text
    assert "they are the results" in text
    assert grown.user("prune", *AT_ONCE, "--yes", "--dry-run", "--json").json["removed"] is None
    kept = [path for path in before if ".sqlite-" not in path.name]
    assert [path for path in sorted(grown.home.rglob("*")) if ".sqlite-" not in path.name] == kept
    for age in ("soon", "-1d", "-1"):
        assert f"{age!r} is not an age" in grown.user("prune", "--older-than", age, code=2).err
    assert "--keep" in grown.user("prune", "--keep", "-1", code=2).err


def test_by_default_old_logs_go_and_what_is_young_stays(grown: Grown) -> None:
    fresh, old = grown.logs(), "old-12345678"
    with Ledger.open(f"sqlite:///{grown.home / 'ledger.sqlite'}") as ledger:
        submitted = ledger.submit(Submitted(old, runs.job(), LONG_AGO))
        ledger.append(submitted, [Cancelled(LONG_AGO)], due_at=None)
    log = grown.home / "runs" / old / f"{old}-s01" / "log" / "000001.log"
    log.parent.mkdir(parents=True)
    log.write_text("long ago")
    found = going(grown.user("prune", "--json"))
    assert found == {"logs": 1, "source": 2, "inputs": 1}, "the other runs ended a moment ago"
    before = grown.bundles()
    for path in (grown.home / "bundles").iterdir():
        os.utime(path)
    answer = grown.user("prune", "--yes", "--json")
    assert going(answer) == {"logs": 1, "inputs": 1}, "a submit may be under way"
    assert grown.logs() == fresh
    assert grown.user("logs", grown.first).out
    assert grown.bundles() == before


def test_what_finished_runs_left_goes_and_the_others_go_on(grown: Grown, tmp_path: Path) -> None:
    user = grown.user
    before = grown.bundles()
    text = user("prune", *AT_ONCE, "--yes").out
    assert "Freed " in text
    assert len(before - grown.bundles()) == 2
    assert grown.logs() == {grown.held}
    assert not list((grown.home / "inputs").iterdir())
    assert user("prune", *AT_ONCE, "--json").json["removes"] == []
    assert user("show", grown.first).out
    assert "has no log (`prune` removes old logs)" in user("logs", grown.first).err
    user("pull", grown.first, "-o", str(tmp_path / "first"))
    assert user("logs", grown.held).out.startswith("── s01"), "its log is complete"
    step = user.wait_for_checkpoint(grown.held)
    user("release", grown.held)
    wait_until(lambda: user.wait_for_checkpoint(grown.held) > step, "the held run to go on")


def test_the_newest_runs_of_each_job_keep_everything(grown: Grown) -> None:
    found = grown.user("prune", *AT_ONCE, "--keep", "1", "--yes", "--json").json
    assert grown.logs() == {grown.held, grown.second}
    assert [row["what"] for row in found["removes"]] == ["logs", "source"], "the second has the same input"
    assert grown.user("logs", grown.second).out


def test_what_is_not_of_our_layout_or_of_unknown_runs_stays(grown: Grown, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "away-12345678-s01" / "log").mkdir(parents=True)
    (grown.home / "runs" / "away-12345678").symlink_to(victim)
    stranger = grown.home / "runs" / "stranger-12345678" / "stranger-12345678-s01" / "log" / "000001.log"
    stranger.parent.mkdir(parents=True)
    stranger.write_text("another ledger's")
    mine = grown.home / "runs" / grown.first / "notes.txt"
    mine.write_text("mine")
    aged(grown.home)
    answer = grown.user("prune", *AT_ONCE, "--yes", "--json").json
    assert answer["not_ours"] == {"runs/away-12345678": "a link", f"runs/{grown.first}/notes.txt": "a file"}
    assert len(grown.bundles()) == 3, "another ledger's run may need them"
    assert mine.exists()
    assert stranger.exists()
    assert "stranger-12345678" in grown.user("prune").out
    grown.user("prune", *AT_ONCE, "--unknown", "--yes")
    assert not stranger.exists()
    assert len(grown.bundles()) == 1
    assert mine.exists()
    assert (victim / "away-12345678-s01" / "log").exists()


def test_a_home_that_another_ledger_uses_too(grown: Grown) -> None:
    user = grown.user
    user.config(f"{CONFIG}database: sqlite:///other.sqlite\n")
    answer = user("prune", *AT_ONCE, "--yes", "--json").json
    assert answer["removed"] is None, "none of these runs is in a ledger that was asked"
    assert len(grown.bundles()) == 3
    assert len(grown.logs()) == 3


def test_a_prune_beside_a_submit_and_another_prune(grown: Grown) -> None:
    """A controller and several prunes run at once, and each does its work."""
    user = grown.user
    descriptor = os.open(grown.home, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert "another prune" in user("prune", *AT_ONCE, "--yes", code=4).err
    os.close(descriptor)
    runs = [user.submitted("job.yaml")]
    prunes = [user.start("prune", "--yes") for _ in range(2)]
    runs.append(user.submitted("job.yaml"))
    for child in prunes:
        _, err = child.communicate(timeout=PATIENCE)
        assert child.returncode in (0, 4), err
    for run in runs:
        user.wait_for_phase(run, "done")
    assert set(runs) <= grown.logs()


def test_results_go_only_when_asked_for(grown: Grown, tmp_path: Path) -> None:
    user = grown.user
    grown.user("prune", *AT_ONCE, "--checkpoints", "--yes")
    [left] = user("checkpoints", grown.second, "--json").json["checkpoints"]
    assert (left["step"], left["trouble"]) == (5, None)
    user("pull", grown.second, "-o", str(tmp_path / "second"))
    lineage = next((grown.home / "store" / "runs" / grown.first / "blobs").iterdir())
    (lineage / ("0" * 64)).write_text("of a retirement that was killed")
    assert going(user("prune", *AT_ONCE, "--json")) == {"blobs": 1}
    user("prune", *AT_ONCE, "--yes")
    assert not (lineage / ("0" * 64)).exists()
    user("pull", grown.first, "-o", str(tmp_path / "again"))


def test_session_folders_of_finished_runs_go(grown: Grown) -> None:
    options = {"accelerator": "cpu"}
    folder = grown.home / "platforms" / "here"
    platform = catalog.build("here", "process", options, folder=folder, clock=SystemClock())
    agent, bundle = grown.home / "agent.pyz", next((grown.home / "bundles").iterdir())
    for run in (grown.first, grown.held, "strange-12345678"):
        order = any_order(f"{run}-s09", 10, 1, run=run, platform="here")
        platform.prepare(order, Materials(bundle, agent))
    answer = grown.user("prune", *AT_ONCE, "--yes", "--json").json
    assert answer["leftovers"] == [f"here: session folder {grown.first}-s09"]
    left = {path.name for path in folder.iterdir()}
    assert f"{grown.first}-s09" not in left
    assert {f"{grown.held}-s09", "strange-12345678-s09"} <= left
    assert "strange-12345678-s09" in grown.user("doctor", "--clean").out


# --- How much there is ------------------------------------------------------------------------------------


def test_doctor_says_how_much_there_is(grown: Grown) -> None:
    found = {each["what"]: each for each in grown.user("doctor", "--json").json["findings"]}
    contents = found["home: contents"]
    for word in ("source", "inputs", "logs", "ledger", "controller's logs", "`prune` would free"):
        assert word in contents["text"]
    assert contents["advice"] == "orchestrator prune"
    assert "checkpoints" in found["store home"]["text"]
    assert "to free space" in grown.user("doctor").out


def test_counting_ends_when_its_time_is_over(grown: Grown) -> None:
    home, clock = Home(grown.home), SystemClock()
    assert growth.of_home(home, clock).complete
    short = growth.of_home(home, clock, seconds=-1.0)
    assert not short.complete
    assert short.text.startswith("at least")


@pytest.fixture
def small_home(grown: Grown) -> Iterator[Grown]:
    """That home on a full disk of its own; skipped if this user cannot mount one."""
    disk = Path(tempfile.mkdtemp(dir=grown.user.folder))
    size = sum(path.lstat().st_blocks * 512 + 4096 for path in grown.home.rglob("*")) + (1 << 20)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a small disk")
    shutil.copytree(grown.home, disk / "home")
    aged(disk / "home")
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096) == 4096:
                pass
        except OSError:
            pass
    user = Caller(grown.user.folder, disk / "home")
    yield Grown(user, grown.first, grown.second, grown.held)
    user.close()
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_home_says_what_to_do_and_prune_frees_it(small_home: Grown) -> None:
    user = small_home.user
    (user.folder / "source" / "more.txt").write_text("x" * 100_000)
    assert shutil.disk_usage(user.home).free < 100_000
    text = user("submit", "job.yaml", code=4).err
    assert f"the disk {user.home.parent} (" in text
    assert "is full" in text
    assert "`orchestrator prune` shows what is no longer needed); that would free" in text
    assert "Freed " in user("prune", *AT_ONCE, "--yes").out
    assert len(small_home.bundles()) == 1
    assert shutil.disk_usage(user.home).free > 0
