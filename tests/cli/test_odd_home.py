"""A file of the home is a FIFO, a device, a link in a circle or endless: every view answers at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.cli.calls import SOURCE, UNLIMITED, Answer, Caller
from tests.cli.conftest import Finished
from tests.odd_files import Shape, a_folder, a_link_to_a_device, a_link_to_itself, a_pipe, a_socket

SECONDS = 60.0  # a command that waits for the other end would wait for ever; a busy machine is slow
VIEWS = (
    "ps --all", "show RUN", "why RUN", "logs RUN", "logs --controller", "checkpoints RUN", "doctor", "quota",
    "plan", "health", "schedule list", "prune", "backup out.tar.gz", "service status",
)  # fmt: skip
QUICK = ("ps --all", "health")
WITHOUT_CONFIG = ("logs --controller", "service status")  # they read none


def a_link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def a_link_to_the_kernel(path: Path) -> None:
    path.symlink_to("/proc/self/environ")


def three_gigabytes_of_nothing(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


@pytest.fixture
def user(finished: Finished, tmp_path: Path) -> Iterator[Caller]:
    """Somebody with a run that is done, in a home of their own."""
    home = tmp_path / "home"
    shutil.copytree(finished.user.home, home, ignore=shutil.ignore_patterns("*.sock"))
    with_run = Caller(tmp_path, home)
    yield with_run
    with_run.close()


def asked(user: Caller, run: str, words: str) -> Answer:
    given = ("orchestrator", *words.replace("RUN", run).split())
    return Answer(*warm.run(given, user.folder, user.environment(), None, SECONDS))


def put(user: Caller, name: str, shape: Shape) -> Path:
    path = user.home / name
    path.unlink(missing_ok=True)
    shape(path)
    return path


@pytest.mark.parametrize(
    ("shape", "told", "views"),
    [
        (a_pipe, "is a FIFO, not a file: move it away", VIEWS),
        (a_link_to_itself, "is a link that leads back to itself, not a file: move it away", ("plan", *QUICK)),
        (a_link_to_a_pipe, "is a link to a FIFO, not a file", QUICK),
        (a_link_to_a_device, "is a link to a device, not a file", QUICK),
        (a_link_to_nothing, "is a link to nowhere, which does not exist", QUICK),
        (a_link_to_the_kernel, "is a link to a file that the kernel makes up (proc)", QUICK),
        (a_socket, "is a socket, not a file", QUICK),
        (a_folder, "is a folder, not a file", QUICK),
        (three_gigabytes_of_nothing, ": larger than 256 KiB", QUICK),
    ],
)
def test_no_view_hangs_on_the_config_or_goes_on_without_it(
    user: Caller, finished: Finished, shape: Shape, told: str, views: tuple[str, ...]
) -> None:
    path = put(user, "config.yaml", shape)
    for words in views:
        answer = asked(user, finished.run, words)
        if words in WITHOUT_CONFIG:
            assert answer.code in (0, 4), (words, answer)
            continue
        assert answer.code == 2, (words, answer)
        assert f"{path}{told if told.startswith(':') else f' {told}'}" in answer.out + answer.err, words


@pytest.mark.parametrize("shape", [a_pipe, a_link_to_itself, a_link_to_nothing])
def test_init_takes_an_odd_config_for_none_that_is_missing(user: Caller, shape: Shape) -> None:
    path = put(user, "config.yaml", shape)
    assert f"{path} is a " in user("init", code=2).err
    made = user("init", "--force", "--json").json
    assert path.is_file()
    assert os.path.lexists(made["kept"]), "what was there is kept under another name"


@pytest.mark.parametrize("shape", [a_pipe, a_link_to_a_device, a_link_to_itself, three_gigabytes_of_nothing])
def test_the_note_of_a_tick_is_not_needed(user: Caller, finished: Finished, shape: Shape) -> None:
    put(user, "tick.json", shape)
    assert finished.run.rpartition("-")[0] in asked(user, finished.run, "ps --all").out
    for words, code in (("show RUN", 0), ("health", 4)):
        assert asked(user, finished.run, words).code == code, words


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("ledger.sqlite", a_pipe), ("ledger.sqlite", a_link_to_a_device), ("ledger.sqlite", a_link_to_itself),
        ("ledger.sqlite", a_link_to_nothing), ("ledger.sqlite-wal", a_pipe), ("ledger.sqlite-shm", a_folder),
        ("ledger.sqlite-wal", a_link_to_a_device),
    ],
)  # fmt: skip
def test_something_else_than_a_file_of_the_ledger_is_named(
    user: Caller, finished: Finished, shape: Shape, name: str
) -> None:
    path = put(user, name, shape)
    answer = asked(user, finished.run, "ps --all")
    assert answer.code == 2
    assert f"{path} is a " in answer.err


@pytest.mark.parametrize("shape", [a_pipe, a_link_to_a_device, a_socket, a_folder])
def test_the_ledgers_lock_is_a_file_of_its_own_or_named(
    user: Caller, finished: Finished, shape: Shape
) -> None:
    path = put(user, "ledger.sqlite.lock", shape)
    for words in ("show RUN", "health", "down") if shape is a_pipe else ("ps --all",):
        answer = asked(user, finished.run, words)
        assert answer.code == 2, (words, answer)
        assert f"{path} is a " in answer.err
        assert "remove it" in answer.err
    path.rename(path.with_name("moved-away"))
    shape(user.home / f"ledger.sqlite.standby-{os.getpid()}")
    assert asked(user, finished.run, "ps --all").code == 0


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("controller.log", a_pipe),
        ("controller.log", a_link_to_itself),
        ("controller.log.1", a_link_to_a_pipe),
    ],
)
def test_the_controllers_log_is_a_file_or_named(
    user: Caller, finished: Finished, shape: Shape, name: str
) -> None:
    path = put(user, name, shape)
    answer = asked(user, finished.run, "logs --controller")
    assert answer.code == 2
    assert f"{path} is a " in answer.err
    assert "the controller begins a new one" in answer.err
    if name == "controller.log":
        shutil.copytree(SOURCE, user.folder / "source")
        submitted = user("submit", user.job(), code=2).err
        assert f"{path} is a " in submitted
        assert "move it away" in submitted
    assert asked(user, finished.run, "ps --all").code == 0


def test_an_endless_log_costs_little(user: Caller, finished: Finished) -> None:
    path = put(user, "controller.log", three_gigabytes_of_nothing)
    with path.open("ab") as file:
        file.write(b"the newest line\n")
    answer = asked(user, finished.run, "logs --controller --tail 5")
    assert answer.code == 0
    assert answer.out.splitlines()[-1].endswith("the newest line")
    assert len(answer.out) < 10_000


def test_what_else_lies_in_the_home_hangs_no_view(user: Caller, finished: Finished) -> None:
    runs = user.home / "runs" / finished.run
    logs = [*runs.glob("*/log/[0-9]*.log")]
    assert logs
    others = (runs / "live.json", runs / "preparing", runs / "deposited")
    for path in (*logs, *others, user.home / "forecasts.json", user.home / "pulled.json"):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    for words in ("ps --all", "show RUN", "why RUN", "logs RUN", "plan"):
        assert asked(user, finished.run, words).code == 0, words


def test_a_config_that_is_a_link_to_a_file_elsewhere_counts(user: Caller, tmp_path: Path) -> None:
    """As in a folder of dotfiles."""
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles" / "mine.yaml").write_text(UNLIMITED.replace("here:", "elsewhere:"))
    (user.home / "config.yaml").unlink()
    (user.home / "config.yaml").symlink_to(tmp_path / "dotfiles" / "mine.yaml")
    assert "elsewhere" in user("quota").out


def test_a_secret_that_the_config_refers_to_is_a_file(user: Caller) -> None:
    """Reading a FIFO would wait; a socket stands for whatever else is no file."""
    for shape in (a_pipe, a_link_to_a_device):
        put(user, "secret", shape)
        user.config(UNLIMITED + "database: file:secret\n")
        told = user("ps", code=2).err
        assert f"{user.home / 'secret'} is a " in told
        assert "not a file" in told


def test_a_home_that_is_a_link_in_a_circle_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    a_link_to_itself(home)
    assert "is not a folder" in Caller(tmp_path, home)("ps", code=2).err
