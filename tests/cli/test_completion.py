"""Completion in real shells on a terminal: commands, options, files, and the names of this home."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.cli import completing
from orchestrator.client import glancing
from orchestrator.client.home import Home
from orchestrator.clock import SystemClock
from tests.waiting import PATIENCE
from tests.walks import submission

BINARIES = Path(sys.executable).parent
RUN, OTHER = "training-abcd2345", "other-abcd2345"
CONFIG = """
platforms:
  laptop: {type: process}
  server: {type: process, accelerator: cpu}
stores:
  attic: {type: folder, path: attic}
"""
STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u -d {script}.dump; eval "$(<{script})"'),
    "zsh, installed": (
        ["zsh", "-f", "-i"],
        "fpath=($XDG_DATA_HOME/zsh/site-functions $fpath); autoload -Uz compinit; compinit -u -d {script}.d",
    ),
}
WANTED = [
    # typed before the Tab; what is on the line after it
    ("orchestrator checkp", "orchestrator checkpoints"),
    ("orchestrator why trai", "orchestrator why training"),  # the name of its job is a name for a run, too
    ("orchestrator show training-", f"orchestrator show {RUN}"),
    ("orchestrator ps --al", "orchestrator ps --all"),
    ("orchestrator submit my_j", "orchestrator submit my_job.yaml"),
    ("orchestrator quota lap", "orchestrator quota laptop"),
    ("orchestrator doctor serv", "orchestrator doctor server"),
    ("orchestrator copy x --to att", "orchestrator copy x --to attic"),
    ("orchestrator schedule pau", "orchestrator schedule pause"),
    ("orchestrator help any-s", "orchestrator help any-script"),
    ("orchestrator show --home elsewhere other-", f"orchestrator show --home elsewhere {OTHER}"),
    ("submit my_job.yaml --platform lap", "submit my_job.yaml --platform laptop"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files to complete, and a home with a run and a config."""
    folder = tmp_path_factory.mktemp("completion")
    for home, run in (("home", RUN), ("elsewhere", OTHER)):
        (folder / home).mkdir(mode=0o700)
        with closing(Home.of(str(folder / home)).ledger()) as ledger:
            ledger.submit(submission(run, name=run.partition("-")[0]))
    (folder / "home" / "config.yaml").write_text(CONFIG)
    (folder / "my_job.yaml").touch()
    (folder / "my_journal.txt").touch()
    for shell in ("bash", "zsh", "fish"):
        script = "\n".join(completing.scripts(shell).values())
        (folder / f"script.{shell}").write_text(script)
    return folder


def environment(place: Path) -> dict[str, str]:
    return {
        "PATH": os.pathsep.join((str(BINARIES), os.environ["PATH"])),
        "HOME": str(place), "XDG_CONFIG_HOME": str(place / "xdg"), "XDG_DATA_HOME": str(place / "xdg"),
        "XDG_CACHE_HOME": str(place / "xdg"), "ORCHESTRATOR_HOME": str(place / "home"),
        "TERM": "dumb", "LANG": "C.UTF-8", "PS1": "> ", "COLUMNS": "200",
    }  # fmt: skip


class Shell:
    """An interactive shell on a terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.said = ""

    def types(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def reads_until(self, wanted: str) -> bool:
        """Whether this comes within the deadline. What came before it is forgotten."""
        deadline = SystemClock().monotonic() + PATIENCE / 8
        while wanted not in self.said:
            left = deadline - SystemClock().monotonic()
            if left <= 0 or not select.select([self._terminal], [], [], left)[0]:
                return False
            self.said += os.read(self._terminal, 1 << 16).decode(errors="replace")
            self.said = self.said.replace("\r", "").replace("\a", "")
        self.said = self.said.partition(wanted)[2]
        return True


def install(place: Path, shell: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BINARIES / "orchestrator"), "completion", shell, "--install", "--json"],
        cwd=place, env=environment(place) | more, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip


@contextmanager
def started(name: str, place: Path) -> Iterator[Shell]:
    command, load = STARTS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{name} is not installed")
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        command, cwd=place, env=environment(place), stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shell = Shell(ours)
    if "installed" in name:
        assert install(place, command[0]).returncode == 0
    try:
        shell.types(f"{load.format(script=place / f'script.{command[0]}')}; echo rea''dy\n")
        assert shell.reads_until("ready\n"), shell.said
        yield shell
    finally:
        child.kill()
        child.wait()
        os.close(ours)


@pytest.mark.parametrize("name", STARTS)
def test_a_shell_completes_what_is_typed(name: str, place: Path) -> None:
    with started(name, place) as shell:
        for typed, wanted in WANTED:
            shell.types(f"{typed}\t")
            assert shell.reads_until(wanted), f"{typed!r} gave {shell.said!r}"
            shell.types("\x15")  # Ctrl-U: an empty line again


def test_fish_completes_what_is_typed(place: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    asked = "\n".join(f"complete -C '{typed}'; echo" for typed, _ in WANTED)
    assert install(place, "fish").returncode == 0
    done = subprocess.run(
        ["fish", "-c", asked],  # it finds the files by itself
        cwd=place, env=environment(place), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    answers = [[line.split("\t")[0] for line in block.splitlines()] for block in done.stdout.split("\n\n")]
    assert [answer[-1] if answer else "" for answer in answers[: len(WANTED)]] == [
        re.split("[ =]", wanted)[-1] for _, wanted in WANTED
    ], done.stderr
    assert [len(answer) for answer in answers[: len(WANTED)]] == [1, 2, *[1] * (len(WANTED) - 2)]


@pytest.mark.parametrize("name", ["bash", "fish"])
def test_the_program_on_the_line_is_the_one_that_is_asked(name: str, place: Path) -> None:
    """One that is not in the PATH, and `submit` beside it."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    (place / "bin").mkdir(exist_ok=True)
    for program in ("orchestrator", "submit"):
        path = place / "bin" / program
        path.write_text(f"#!/bin/sh\necho {program}-$2-$4\n")
        path.chmod(0o755)
    line = "bin/submit --home x job.yaml --from "
    words = line.split()
    typed = {
        "bash": f"COMP_WORDS=({line} ''); COMP_CWORD={len(words)}; _orchestrator_runs ''",
        "fish": f"complete -C '{line}'",
    }[name]
    done = subprocess.run(
        [name, *(["--no-config"] if name == "fish" else ["--norc"]), "-c", f"source script.{name}; {typed}"],
        cwd=place, env=environment(place), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert re.findall(r"\S+-runs-\S+", done.stdout) == ["orchestrator-runs-x"], done.stderr


def asked(place: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BINARIES / "orchestrator"), "complete", *words],
        cwd=place, env=environment(place) | more, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip


def test_names_come_without_a_word_of_trouble(place: Path, tmp_path: Path) -> None:
    assert asked(place, "runs").stdout.split() == [RUN, "training"]
    assert asked(place, "places").stdout.split() == ["laptop", "server", "attic"]
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "ledger.sqlite").write_text("no database")
    (broken / "config.yaml").write_text("{platforms: [1, }")
    for words in (
        ("runs",),
        ("platforms",),
        ("schedules",),
        ("nothing",),
        (),
        ("runs", "--home", "script.zsh"),
    ):
        done = asked(place, *words, ORCHESTRATOR_HOME=str(broken))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), words
    unknown = asked(place, "runs", ORCHESTRATOR_HOME=str(tmp_path / "none"))
    assert (unknown.returncode, unknown.stdout, unknown.stderr) == (0, "", "")
    assert not (tmp_path / "none").exists()


def test_a_server_that_does_not_answer_holds_nobody_up(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/x"
        done = asked(place, "runs", ORCHESTRATOR_DATABASE=url, ORCHESTRATOR_HOME=str(place / "bin"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_name_that_a_shell_would_read_otherwise_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("platforms: {'$(touch x)': {}, 'a b': {}, fine: {}}")
    assert asked(tmp_path, "platforms", ORCHESTRATOR_HOME=str(tmp_path)).stdout == "fine\n"


def test_without_a_config_the_names_are_those_of_the_default(tmp_path: Path) -> None:
    home = Home.of(str(tmp_path))
    assert glancing.names(home, "platforms") == [each.name for each in config.DEFAULT_PLATFORMS]
    assert glancing.names(home, "stores") == [each.name for each in config.DEFAULT_STORES]


def test_install_replaces_its_own_files_and_nobody_elses(place: Path, tmp_path: Path) -> None:
    mine = tmp_path / "bash-completion" / "completions" / "submit"
    mine.parent.mkdir(parents=True)
    mine.write_text("complete -W x submit\n")
    done = install(place, "bash", XDG_DATA_HOME=str(tmp_path))
    assert done.returncode == 2
    assert f"{mine} exists and is not ours" in done.stdout
    assert [path.name for path in mine.parent.iterdir()] == ["submit"]
    mine.unlink()
    for _ in range(2):
        done = install(place, "bash", XDG_DATA_HOME=str(tmp_path))
        assert json.loads(done.stdout)["written"] == [str(mine.with_name("orchestrator")), str(mine)]
    assert install(place, "tcsh").returncode == 2
