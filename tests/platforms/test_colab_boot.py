"""The program that a machine of Colab runs, as a real process: each one has the text of a cell."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clock import SystemClock
from orchestrator.platforms.colab import boot
from tests.waiting import PATIENCE, wait_until

NAME = "demo-7f3kq2vd-s01"
SECRET = "planted-5f2b"
# What its agents are: each gets the session's folder, like ours.
_BEGINS = """
import json, os, pathlib, sys, threading
root = pathlib.Path(sys.argv[1])
with (root / "starts").open("a") as file:
    file.write(f"{os.getpid()}\\n")
"""
ENDS = f"{_BEGINS}\nprint('some words')\nsys.exit(3)\n"
WAITS = f"""{_BEGINS}
while not (root / "go").exists():
    threading.Event().wait(0.02)
"""
TELLS = f"""{_BEGINS}
elapsed = os.environ["ORCHESTRATOR_STARTED_ELAPSED"]
told = {{"settings": sys.argv[3], "elapsed": elapsed, "group": os.getsid(0)}}
(root / "told").write_text(json.dumps(told))
(root / "private").write_text("")
"""


class Machine:
    """A machine's /content, with the cells that run on it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.content = folder / "content"
        self.content.mkdir()
        self.root = self.content / boot.FOLDER / NAME
        self._stack = stack
        self.modules = folder / "modules"
        self.modules.mkdir()

    def upload(self, agent: str) -> str:
        """Puts the session's files on the machine; returns their sha256."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for name, text in (("agent.pyz", agent), ("store.json", SECRET), ("order.json", "{}")):
                member = tarfile.TarInfo(name)
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        (self.content / "files.tar").write_bytes(data.getvalue())
        return hashlib.sha256(data.getvalue()).hexdigest()

    def cell(self, sha256: str, **changes: Any) -> subprocess.Popen[str]:
        """Sends the cell."""
        session = {
            "name": NAME, "archive": "files.tar", "sha256": sha256, "order": "the order",
            "settings": {"tick": 1}, "age_seconds": 0.0, "linger_seconds": 0.0,
        }  # fmt: skip
        text = f"{Path(boot.__file__).read_text()}\nmain(json.loads({json.dumps(session | changes)!r}))\n"
        path = self.content.parent / f"cell-{uuid.uuid4()}.py"  # another cell may be reading its own still
        path.write_text(text)
        kernel = subprocess.Popen(
            [sys.executable, str(path)], cwd=self.content, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=os.environ | {"PYTHONPATH": str(self.modules)},
        )  # fmt: skip
        self._stack.enter_context(kernel)  # waits for it
        self._stack.callback(kernel.kill)
        return kernel

    def printed(self, kernel: subprocess.Popen[str]) -> str:
        """What a cell has printed until its end."""
        out, _ = kernel.communicate(timeout=PATIENCE)
        return out

    def until(self, name: str) -> Path:
        """A file that is there, with something in it."""
        path = self.root / name
        wait_until(lambda: path.exists() and path.stat().st_size, name)
        return path

    def starts(self) -> list[int]:
        return [int(line) for line in (self.root / "starts").read_text().split()]

    def left(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads((self.root / boot.LEFT).read_text())
        return found

    def google(self) -> Path:
        """Installs a `google.colab` that gives the machine back by making the returned file."""
        given_back = self.content.parent / "given-back"
        package = self.modules / "google" / "colab"
        package.mkdir(parents=True)
        (package / "runtime.py").write_text(
            f"import pathlib\ndef unassign(): pathlib.Path({str(given_back)!r}).touch()\n"
        )
        return given_back


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(tmp_path, stack)


def test_it_starts_the_agent_says_so_and_stays_until_its_end(machine: Machine) -> None:
    kernel = machine.cell(machine.upload(WAITS))
    assert kernel.stdout is not None
    assert kernel.stdout.readline() == f"orchestrator: started {NAME}\n"
    machine.until("starts")
    assert kernel.poll() is None
    assert not (machine.root / boot.LEFT).exists()
    (machine.root / "go").touch()
    machine.printed(kernel)
    assert machine.left() == {"code": 0, "why": ""}


def test_an_agent_that_dies_is_told_of(machine: Machine) -> None:
    assert f"started {NAME}" in machine.printed(machine.cell(machine.upload(ENDS)))
    assert machine.left() == {"code": 3, "why": ""}
    assert (machine.root / "agent.out").read_text() == "some words\n"


def test_only_the_owner_may_read_what_was_sent_and_the_archive_is_gone(machine: Machine) -> None:
    printed = machine.printed(machine.cell(machine.upload(TELLS)))
    assert SECRET not in printed
    assert not (machine.content / "files.tar").exists()
    assert machine.root.stat().st_mode & 0o777 == 0o700
    for path in (machine.root / name for name in ("store.json", "agent.pyz", "private")):
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert [each.name for each in machine.root.parent.iterdir()] == [NAME]


def test_the_folder_of_checkpoints_has_a_name_that_jupyter_does_not_use_itself(machine: Machine) -> None:
    machine.printed(machine.cell(machine.upload(ENDS)))
    (machine.root / "outbox" / "checkpoints" / "one").mkdir(parents=True)
    assert [each.name for each in (machine.root / boot.SAVES).iterdir()] == ["one"]


def test_the_agent_gets_its_settings_a_session_of_its_own_and_the_age_of_the_machine(
    machine: Machine,
) -> None:
    before = SystemClock().elapsed()
    machine.printed(machine.cell(machine.upload(TELLS), age_seconds=5.0))
    told = json.loads((machine.root / "told").read_text())
    assert json.loads(told["settings"]) == {"tick": 1}
    assert told["group"] == machine.starts()[0]
    assert before - 5.0 <= float(told["elapsed"]) <= SystemClock().elapsed() - 5.0


def test_of_cells_sent_at_once_one_starts_the_agent(machine: Machine) -> None:
    sha256 = machine.upload(WAITS)
    kernels = [machine.cell(sha256) for _ in range(4)]
    machine.until("starts")
    wait_until(lambda: [each.poll() for each in kernels].count(0) == 3, "the others")
    (machine.root / "go").touch()
    for printed in map(machine.printed, kernels):
        assert printed.startswith(f"orchestrator: started {NAME}\n")
    assert len(machine.starts()) == 1
    assert [each.name for each in machine.root.parent.iterdir()] == [NAME]


def test_a_cell_sent_again_starts_nothing_even_with_another_upload(machine: Machine) -> None:
    machine.printed(machine.cell(machine.upload(ENDS)))
    assert f"started {NAME}" in machine.printed(machine.cell(machine.upload(ENDS)))
    assert len(machine.starts()) == 1


@pytest.mark.parametrize("damage", ["gone", "cut", "another"])
def test_files_that_did_not_arrive_start_nothing_and_the_next_upload_does(
    machine: Machine, damage: str
) -> None:
    sha256 = machine.upload(ENDS)
    archive = machine.content / "files.tar"
    if damage == "gone":
        archive.unlink()
    else:
        archive.write_bytes(archive.read_bytes()[:700] if damage == "cut" else b"another")
    printed = machine.printed(machine.cell(sha256))
    assert f"{NAME} cannot start: Unfit: its files are not" in printed
    assert f"started {NAME}" not in printed
    assert not machine.root.exists()
    assert f"started {NAME}" in machine.printed(machine.cell(machine.upload(ENDS)))


def test_an_interrupt_ends_neither_the_cell_nor_the_agent(machine: Machine) -> None:
    kernel = machine.cell(machine.upload(WAITS))
    machine.until("starts")
    wait_until(lambda: _catches(kernel.pid, signal.SIGINT), "Python's handler")
    kernel.send_signal(signal.SIGINT)
    wait_until(lambda: not _pending(kernel.pid), "the interrupt")
    (machine.root / "go").touch()
    machine.printed(kernel)
    assert kernel.returncode == 0
    assert machine.left() == {"code": 0, "why": ""}


def test_the_agent_outlives_its_cell(machine: Machine) -> None:
    kernel = machine.cell(machine.upload(WAITS))
    machine.until("starts")
    kernel.kill()
    kernel.wait()
    [pid] = machine.starts()
    os.kill(pid, 0)  # it lives
    (machine.root / "go").touch()


def test_the_machine_is_given_back_a_while_after_the_end(machine: Machine) -> None:
    given_back = machine.google()
    kernel = machine.cell(machine.upload(ENDS), linger_seconds=600.0)
    machine.until(boot.LEFT)
    assert kernel.poll() is None
    assert not given_back.exists()
    kernel.kill()
    (machine.root / boot.LEFT).unlink()
    (machine.root / "order.json").unlink()
    machine.root.rename(machine.content / "earlier")
    machine.printed(machine.cell(machine.upload(ENDS)))
    assert given_back.exists()


def test_where_it_cannot_be_given_back_the_session_is_no_worse(machine: Machine) -> None:
    assert "the machine was not given back: ModuleNotFoundError" in machine.printed(
        machine.cell(machine.upload(ENDS))
    )
    assert machine.left() == {"code": 3, "why": ""}


def _catches(pid: int, number: signal.Signals) -> bool:
    return bool(_mask(pid, "SigCgt") & 1 << (number - 1))


def _pending(pid: int) -> int:
    return _mask(pid, "ShdPnd") | _mask(pid, "SigPnd")


def _mask(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith(name))
