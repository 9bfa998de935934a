"""Colab's own command line, asked by us, on a local Colab: what works."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import AccessDenied, NotFound, Rejected, Transient
from orchestrator.platforms.colab.errand import UNKNOWN
from orchestrator.platforms.colab.values import Assignment
from tests.platforms.colab_cli_box import FIRST, SECOND, Box, Boxes, box, boxes
from tests.stand_ins.colab import Fault
from tests.waiting import wait_until

__all__ = ["box", "boxes"]


def secrets_in(folder: Path, secrets: list[str]) -> list[str]:
    """The files that have one of these in them, but for those that the command line reads it from."""
    known = ("token.json", f"{FIRST}.json")
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file()
        and path.name not in known
        and any(each in path.read_text("latin-1") for each in secrets)
    ]


def test_a_whole_course_from_the_machine_to_its_end(box: Box) -> None:
    cli, colab = box.cli, box.colab
    made = cli.new(FIRST, "T4")
    machine = box.machine()
    assert made == Assignment(machine.endpoint, "T4")
    (box.folder / "sent").write_bytes(bytes(range(256)))
    cli.upload(FIRST, box.folder / "sent", "content/sent")
    assert (machine.content / "sent").read_bytes() == bytes(range(256))

    # The cell goes on without the command line, and its kernel stays busy.
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    cli.start(FIRST, box.cell(f"{waits}open('late', 'x')"), seconds_max=200)
    wait_until(lambda: box.clients() == 0, "the client's end")
    assert [each["execution_state"] for each in machine.kernels()] == ["busy"]
    colab.use(idle_seconds=0.5)
    reading = cli.read(
        units=True, names=(SECOND,), files={FIRST: ("content/", "content/sent", "content/none")}
    )
    colab.use(idle_seconds=0.0)
    assert reading.endpoints == {FIRST: machine.endpoint}
    assert reading.assignment(FIRST) == made
    assert reading.units is not None
    assert (reading.units.per_hour, reading.units.assignments) == (1.2, 1)
    assert reading.units.gpus == ("T4", "L4", "A100")
    found = reading.found[FIRST]
    assert found.files == {"content/sent": bytes(range(256))}
    assert [(each.name, each.is_folder, each.size) for each in found.folders["content/"]] == [
        ("sent", False, 256)
    ]
    assert not found.problem
    (machine.content / "go").touch()
    wait_until(lambda: (machine.content / "late").exists(), "the cell's end")

    # The same name is the same machine, also if nothing here knows it any more.
    for path in (box.environment.folder / "sessions").iterdir():
        path.unlink()
    assert cli.new(FIRST, "T4") == made
    assert len(colab.account.allocated) == 1
    assert cli.download(FIRST, "content/sent", box.folder / "got", bytes_max=256)
    assert (box.folder / "got").read_bytes() == bytes(range(256))

    tokens = [*machine.tokens, *colab.account.access, colab.settings.refresh_token]
    assert secrets_in(box.environment.folder, tokens) == []
    assert stat.S_IMODE(box.environment.home.stat().st_mode) == 0o700
    mine = [path for path in box.environment.folder.rglob("*") if path.is_file()]
    assert [path for path in mine if stat.S_IMODE(path.stat().st_mode) & 0o077] == []

    assert cli.stop(FIRST)
    assert colab.account.living() == []
    assert not machine.running()
    assert colab.strangers == []


def test_a_session_without_a_machine(box: Box) -> None:
    (box.folder / "sent").touch()
    with pytest.raises(NotFound, match="no machine"):
        box.cli.upload(FIRST, box.folder / "sent", "content/sent")
    assert box.cli.stop(FIRST)
    assert box.colab.account.allocated == []


def test_what_the_command_line_would_not_refuse(box: Box) -> None:
    """It takes an unknown GPU for an A100."""
    with pytest.raises(Rejected, match="K80"):
        box.cli.new(FIRST, "K80")
    assert box.colab.requests == []


def test_a_cell_that_ends_or_does_not_start(box: Box) -> None:
    machine = box.allocate()
    with pytest.raises(Rejected, match="it went wrong"):
        box.cli.start(FIRST, box.silent_cell("raise ValueError('it went wrong')"), seconds_max=200)
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    for seconds in (15, 60, 150):  # a busy machine may need longer until the cell runs
        with pytest.raises(Transient, match=f"within {seconds} s"):
            box.cli.start(FIRST, box.silent_cell(f"open('waits', 'x')\n{wait}"), seconds_max=seconds)
        wait_until(lambda: box.clients() == 0, "the client's end")
        if (machine.content / "waits").exists():
            break
    assert (machine.content / "waits").exists()

    # Behind a busy kernel the client waits for its own first cell, so ours is not sent if it is killed.
    cancelled = threading.Event()
    second = box.cell("open('second', 'x')")

    def start() -> None:
        with pytest.raises(Transient):
            box.cli.start(FIRST, second, seconds_max=200, cancelled=cancelled)

    queued = threading.Thread(target=start)
    asked = len(box.colab.requests)
    queued.start()
    wait_until(lambda: any("channels" in each for each in box.colab.requests[asked:]), "the second cell")
    cancelled.set()
    queued.join()
    (machine.content / "go").touch()
    wait_until(lambda: machine.kernels()[-1]["execution_state"] == "idle", "the first cell's end")
    assert not (machine.content / "second").exists()


def test_a_machine_that_hangs_spoils_only_its_own_part(box: Box) -> None:
    """However long each of its answers may take, all machines together get a third of the whole call."""
    machine, other = box.allocate(), box.allocate(SECOND)
    other.content.mkdir(parents=True)
    (other.content / "large").write_bytes(bytes(2000))
    (other.content / "small").write_bytes(bytes(1000))
    box.colab.fail("GET /api/contents/content/hangs", Fault.HANGS, times=1)
    paths = ("content/large", "content/small", "content/large/")
    files = {FIRST: ("content/hangs",), SECOND: paths}
    reading = box.patient(file=200.0, call=36.0).read(files=files, bytes_max=1000)
    assert reading.endpoints == {FIRST: machine.endpoint, SECOND: other.endpoint}
    assert reading.found[FIRST].problem == "not read within 12 s"
    found = reading.found[SECOND]
    assert (dict(found.files), dict(found.too_large)) == (
        {"content/small": bytes(1000)},
        {"content/large": 2000},
    )


def test_a_machine_that_is_not_listed_yet_or_no_longer(boxes: Boxes) -> None:
    box = boxes(listed_after_seconds=1000.0)
    made = box.cli.new(FIRST, "T4")
    assert made == Assignment(box.machine().endpoint, "T4")
    assert box.cli.new(FIRST, "T4") == replace(made, accelerator=UNKNOWN)  # only the first answer said it
    reading = box.cli.read(names=(FIRST,))
    assert reading.assignments == ()
    assert reading.endpoints == {FIRST: made.endpoint}
    assert reading.assignment(FIRST) is None

    box.colab.use(listed_after_seconds=0.0, gone_after_seconds=1000.0)
    for _ in range(2):
        assert not box.cli.stop(FIRST)  # still listed
    box.colab.use(gone_after_seconds=0.0)
    assert box.cli.stop(FIRST)


def test_a_record_finds_the_machine_if_its_notebook_does_not(boxes: Boxes) -> None:
    """And a machine of the user's own, with an accelerator that the command line does not know."""
    box = boxes(notebooks_are_forgotten=True, foreign_accelerator="B200", units_are_bare=True)
    made = box.cli.new(FIRST, "V5E1")
    reading = box.cli.read(units=True, names=(FIRST,))
    assert reading.endpoints == {FIRST: made.endpoint}
    assert [each.accelerator for each in reading.assignments] == ["V5E1", "B200"]
    assert reading.units is not None
    assert (reading.units.gpus, reading.units.free_left) == (None, None)
    assert box.cli.stop(FIRST)


def test_a_machine_of_the_users_own_is_never_taken_for_a_sessions(boxes: Boxes) -> None:
    """If Colab showed the same machine to every notebook, stopping a session would end the user's own."""
    box = boxes(notebooks_are_ignored=True)
    own = box.colab.account.allocate("own", "T4")
    (box.folder / "sent").touch()
    for verb in (
        lambda: box.cli.new(FIRST, "T4"),
        lambda: box.cli.read(names=(FIRST,)),
        lambda: box.cli.upload(FIRST, box.folder / "sent", "content/sent"),
        lambda: box.cli.stop(FIRST),
    ):
        with pytest.raises(Rejected, match=f"shows the machine {own.endpoint} for a notebook that does not"):
            verb()
    assert box.colab.account.living() == [own]
    assert len(box.colab.account.allocated) == 1
    assert not (own.content / "sent").exists()


_LOGIN = """
import sys
from pathlib import Path
from orchestrator.platforms.colab.environment import Environment
from orchestrator.platforms.colab.runner import Cli
Cli(Environment(Path(sys.argv[1]), proxy=sys.argv[2], ca_file=Path(sys.argv[3]))).login()
"""


def log_in(box: Box, code: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", _LOGIN, str(box.environment.folder), box.colab.url, str(box.colab.ca)]
    return subprocess.run(
        words, input=f"{code}\n", text=True, capture_output=True, env=dict(os.environ), check=False
    )


def test_logging_in_on_the_terminal(box: Box) -> None:
    """A login that fails leaves the old one."""
    before = box.environment.token.read_text()
    refused = log_in(box, "wrong")
    assert refused.returncode
    assert "AccessDenied" in refused.stderr
    assert box.environment.token.read_text() == before

    accepted = log_in(box, box.colab.settings.code)
    assert accepted.returncode == 0, accepted.stderr
    assert "https://accounts.google.com/" in accepted.stderr
    assert box.environment.token.read_text() != before
    assert box.cli.read().assignments == ()
    box.environment.token.unlink()
    with pytest.raises(AccessDenied, match="orchestrator colab login colab"):
        box.cli.read()


def test_a_login_that_is_renewed_replaces_the_old_one_whole_and_never_a_newer_one(box: Box) -> None:
    """The command line itself would write it in place, where others read it."""
    token = box.environment.token
    before, inode = token.read_text(), token.stat().st_ino
    box.cli.read()
    renewed = token.read_text()
    assert json.loads(renewed)["token"] != json.loads(before)["token"]
    assert token.stat().st_ino != inode
    box.log_in()  # a person logs in, while a process has what was there before
    box.cli._keep(Path(box.folder, "none"), renewed.encode())
    (mine := box.folder / "mine").write_text(renewed)
    box.cli._keep(mine, b"an older one")
    assert token.read_text() == before


def test_what_was_cut_off_is_no_login(box: Box) -> None:
    before = box.environment.token.read_bytes()
    (mine := box.folder / "mine").write_bytes(before[:40])
    box.cli._keep(mine, before)
    assert box.environment.token.read_bytes() == before
