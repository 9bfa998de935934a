"""`uninstall`: it lists what stays behind, removes what only it needs, and the home only if it is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client import uninstalling
from orchestrator.client.home import Home
from orchestrator.clock import SystemClock
from orchestrator.installation import found
from orchestrator.platforms.gpu_locks import GpuLocks
from tests.cli.calls import Caller, caller
from tests.cli.dialogue import dialogue
from tests.walks import submission

PAGE = Path(__file__).resolve().parents[2] / "docs" / "home.md"
CONFIG = """
platforms:
  here: {type: process}
  engine: {type: docker}
stores:
  home: {type: folder, path: store}
  attic: {type: folder, path: %s}
home_store: home
"""
SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$HOME/systemctl.log"
"""


class Somebody:
    """A user with all that this program may leave in their own folders. `places`: what → where."""

    def __init__(self, user: Caller, folder: Path) -> None:
        self.user, self.folder = user, folder
        (folder / "bin").mkdir()
        (folder / "bin" / "systemctl").write_text(SYSTEMCTL)
        (folder / "bin" / "systemctl").chmod(0o755)
        (folder / "tmp").mkdir()
        user.config(CONFIG % (folder / "attic"))
        self.places = {
            "service": folder / ".config" / "systemd" / "user" / "orchestrator-12345678.service",
            "cache": folder / ".cache" / "accelerator-orchestrator" / "colab-cli-1" / "big",
            "fetched inputs": folder / ".cache" / "orchestrator" / "inputs" / "blobs" / "big",
            "another home": folder / ".local" / "share" / "orchestrator" / "config.yaml",
        }
        self.more: dict[str, Any] = {"TMPDIR": str(folder / "tmp"), "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}

    def fill(self) -> None:
        for path in self.places.values():
            path.parent.mkdir(parents=True)
            path.write_text("x")
        self.user("service", "install", **self.more)
        self.user("completion", "fish", "--install", **self.more)


@pytest.fixture
def somebody(tmp_path: Path) -> Iterator[Somebody]:
    with caller(tmp_path) as user:
        yield Somebody(user, tmp_path)


def test_it_lists_everything_and_removes_nothing_unasked(somebody: Somebody) -> None:
    somebody.fill()
    answer = somebody.user("uninstall", "--json", **somebody.more).json
    assert [(each["what"], each["goes"]) for each in answer["left"]] == [
        ("service", "asked"), ("completion", "asked"), ("completion", "asked"), ("cache", "asked"),
        ("inputs", "never"), ("home", "purge"), ("another home", "never"), ("another service", "never"),
        ("store", "never"), ("platform", "never"), ("platform", "never"),
    ]  # fmt: skip
    assert all(Path(each["where"]).exists() for each in answer["left"][:7])
    assert answer["removed"] == []
    told = somebody.user("uninstall", "--dry-run", "--yes", **somebody.more).out
    assert all(each["where"] in told for each in answer["left"])
    assert "attic: " in told
    assert "doctor --clean engine" in told
    assert "-m pip uninstall accelerator-orchestrator" in told
    assert all(Path(each["where"]).exists() for each in answer["left"][:7])


def test_with_consent_goes_what_only_this_program_needs(somebody: Somebody) -> None:
    somebody.fill()
    before = somebody.user("uninstall", "--json", **somebody.more).json["left"]
    answer = somebody.user("uninstall", "--yes", "--json", **somebody.more).json
    assert answer["removed"] == [each["where"] for each in before if each["goes"] == "asked"]
    assert len(answer["removed"]) == 4
    gone = [each["where"] for each in before[:7] if not Path(each["where"]).exists()]
    assert gone == answer["removed"]
    assert somebody.places["fetched inputs"].exists(), "other homes may need them"
    assert "--user disable --now orchestrator-" in (somebody.folder / "systemctl.log").read_text()
    assert (somebody.user.home / "config.yaml").exists()
    again = somebody.user("uninstall", "--yes", "--json", **somebody.more).json
    assert again["removed"] == []


def test_the_home_goes_only_if_its_name_is_typed(somebody: Somebody) -> None:
    user = somebody.user
    Home.of(str(user.home)).ledger().close()
    (user.home / "store").symlink_to(somebody.folder / "source")
    (user.home / "my notes.txt").write_text("mine")
    with dialogue(user, "uninstall", "--purge", **somebody.more) as talk:
        talk.expect("Remove home? [y/N]")
        talk.answer("y")
        talk.expect("Type its name (home)")
        talk.answer("yes")
        assert talk.ends() == 0
    assert (user.home / "ledger.sqlite").exists()
    with dialogue(user, "uninstall", "--purge", "--yes", **somebody.more) as talk:
        talk.expect("Remove home? [y/N]")
        talk.answer("y")
        talk.expect("Type its name (home)")
        talk.answer("home")
        talk.expect("1 file not ours (my notes.txt)")
        assert talk.ends() == 3
    assert [path.name for path in user.home.iterdir()] == ["my notes.txt"]
    assert (somebody.folder / "source" / "train.py").exists(), "a link goes, not what it leads to"


def purge(somebody: Somebody, words: str) -> int:
    with dialogue(somebody.user, "uninstall", "--purge", "--yes", **somebody.more) as talk:
        talk.expect("Remove home? [y/N]")
        talk.answer("y")
        talk.expect("Type its name (home)")
        talk.answer("home")
        talk.expect(words)
        return talk.ends()


def test_a_folder_of_our_name_with_somebody_elses_files_stays(somebody: Somebody) -> None:
    home = somebody.user.home
    Home.of(str(home)).ledger().close()
    (home / "staged" / "tiny-1-s01").mkdir(parents=True)
    (home / "trials").mkdir()
    theirs = [
        home / name
        for name in (
            "bundles", "credentials", "images/cat.png", "inputs/corpus/a.txt", "platforms/notes",
            "results/a-1/fig.png", "runs/exp1/events.out.tfevents.1", "store/index.js",
        )
    ]  # fmt: skip
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    assert purge(somebody, "index.js in it is not ours") == 3
    assert [path.read_text() for path in theirs] == ["mine"] * len(theirs)
    there = {path.relative_to(home).parts[0] for path in theirs}
    assert {path.name for path in home.iterdir()} == there


def test_without_a_terminal_nobody_can_purge(somebody: Somebody) -> None:
    somebody.fill()
    answer = somebody.user("uninstall", "--purge", "--yes", code=2, **somebody.more)
    assert "run it on a terminal; nothing was removed" in answer.err
    assert all(path.exists() for path in somebody.places.values())


def test_a_home_with_a_run_that_is_not_over_stays(somebody: Somebody) -> None:
    user = somebody.user
    with closing(Home.of(str(user.home)).ledger()) as ledger:
        ledger.submit(submission("tiny-1"))
    somebody.fill()
    assert "1 run not over (tiny-1)" in user("uninstall", "--json", **somebody.more).json["running"][0]
    with dialogue(user, "uninstall", "--purge", **somebody.more) as talk:
        talk.expect("Remove service, completion, cache, home? [y/N]")
        talk.answer("y")
        talk.expect("Type its name (home)")
        talk.answer("home")
        talk.expect("the home was not removed, and neither was anything else")
        assert talk.ends() == 2
    assert all(path.exists() for path in somebody.places.values())


def test_what_cannot_be_read_is_said_and_the_rest_is_listed(somebody: Somebody) -> None:
    user = somebody.user
    (user.home / "ledger.sqlite").write_text("no database at all, but long enough to be read as one\n" * 4)
    user.config("platforms: [")
    answer = user("uninstall", "--json", **somebody.more).json
    assert "unknown, because the ledger cannot be read" in answer["running"][0]
    assert [each["what"] for each in answer["left"]] == ["home", "unknown"]


def test_where_nothing_is_nothing_is_made(tmp_path: Path) -> None:
    with caller(tmp_path / "x", tmp_path / "none") as user:
        (tmp_path / "tmp").mkdir()
        answer = user("uninstall", TMPDIR=str(tmp_path / "tmp"))
    assert "Nothing of this program is left" in answer.out
    assert not (tmp_path / "none").exists()


def test_the_command_fits_the_installation(tmp_path: Path) -> None:
    assert found(tmp_path).command.endswith("-m pip uninstall accelerator-orchestrator")
    (tmp_path / "pipx_metadata.json").touch()
    assert found(tmp_path).command == "pipx uninstall accelerator-orchestrator"
    (tmp_path / "uv-receipt.toml").touch()
    assert found(tmp_path).command == "uv tool uninstall accelerator-orchestrator"


def test_everything_that_the_documents_know_of_a_home_goes_with_it() -> None:
    rows = re.findall(r"^\| (`.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = [
        name for row in rows for name in re.findall(r"`([^`]+)`", row) if not name.startswith(("-", "."))
    ]
    tops = {re.sub(r"-N$", "-1", name.split("/")[0]) for name in names}
    assert {"ledger.sqlite", "controller.log", "store"} <= tops
    known = (*uninstalling._OF_A_HOME, *uninstalling._SHARED)
    assert [name for name in sorted(tops) if not any(fnmatch(name, pattern) for pattern in known)] == []


def test_gpu_locks_go_unless_a_gpu_is_in_use_and_fetched_inputs_stay(somebody: Somebody) -> None:
    cache = somebody.folder / ".cache" / "orchestrator"
    blob = cache / "inputs" / "blobs" / ("a" * 64)
    blob.parent.mkdir(parents=True)
    blob.write_text("large")
    locks = GpuLocks(cache / "gpus", SystemClock())
    with locks.taken(["GPU-1"], 1, "here/tiny-s01"):
        answer = somebody.user("uninstall", "--yes", "--json", **somebody.more).json
    assert answer["removed"] == []
    assert (cache / "gpus" / "GPU-1.lock").exists(), "a session trains on it"
    answer = somebody.user("uninstall", "--yes", "--json", **somebody.more).json
    assert answer["removed"] == [str(cache / "gpus")]
    assert [(each["what"], each["where"]) for each in answer["left"] if each["goes"] == "never"][:1] == [
        ("inputs", str(cache / "inputs"))
    ]
    told = " ".join(somebody.user("uninstall", **somebody.more).out.split())
    assert "if no home of yours needs them: it is for all homes" in told
    assert blob.exists()


def test_a_folder_that_is_no_home_is_not_purged(somebody: Somebody) -> None:
    user = somebody.user
    user.config("learning_rate: 0.1\n")  # of somebody's own project
    for name in ("runs", "results", "images", "store"):
        (user.home / name).mkdir()
        (user.home / name / "mine.txt").write_text("mine")
    answer = user("uninstall", "--json", **somebody.more).json
    assert "home" not in [each["what"] for each in answer["left"]]
    with dialogue(user, "uninstall", "--purge", **somebody.more) as talk:
        assert talk.ends() == 0
    assert (user.home / "config.yaml").exists()


def test_files_of_others_in_a_home_stay(somebody: Somebody) -> None:
    user = somebody.user
    Home.of(str(user.home)).ledger().close()
    kept = []
    for name in ("runs", "runs/tiny-abcdefgh", "results", "images", "store"):
        (user.home / name).mkdir()
        kept.append(user.home / name / "mine.txt")
        kept[-1].write_text("mine")
    ours = user.home / "runs" / "tiny-abcdefgh" / "tiny-abcdefgh-s01"
    ours.mkdir()
    bundle = user.home / "bundles" / f"{'b' * 64}.tar.gz"
    bundle.parent.mkdir()
    bundle.write_text("frozen")
    with dialogue(user, "uninstall", "--purge", **somebody.more) as talk:
        talk.expect("Remove home? [y/N]")
        talk.answer("y")
        talk.expect("Type its name (home)")
        talk.answer("home")
        talk.expect("mine.txt in it is not ours")
        assert talk.ends() == 3
    assert all(path.exists() for path in kept)
    assert ours.exists(), "a folder with somebody's file in it stays whole"
    assert not bundle.parent.exists()
