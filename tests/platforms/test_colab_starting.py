"""How processes of Colab's command line start and end, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.errors import Transient
from orchestrator.platforms.colab import starting
from orchestrator.platforms.colab.starting import Forks, Plain, Start
from tests.platforms.colab_cli_box import Box, box, boxes
from tests.stand_ins.colab import Fault
from tests.waiting import PATIENCE, wait_until

__all__ = ["box", "boxes"]
LIST = "GET /tun/m/assignments"


def running(box: Box) -> starting._Forker:
    """The one that this process's errands come from."""
    forker = starting._forks[box.environment.ready()]._forker
    assert forker is not None
    return forker


def forker(box: Box) -> int:
    return running(box).process.pid


def hangs(box: Box) -> None:
    """From now on, the next reading gets no answer."""
    box.colab.fail(LIST, Fault.HANGS)


def waits(box: Box) -> bool:
    """Whether an errand has asked, and waits."""
    return box.clients() == 1 and f"{LIST}" in box.colab.requests


def memory(pid: int) -> bytes:
    """All that a process can write to."""
    found = b""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, access, *_ = line.split()
            first, last = (int(each, 16) for each in place.split("-"))
            if access.startswith("rw"):
                file.seek(first)
                found += file.read(last - first)
    return found


def test_errands_share_an_import_and_no_secret(box: Box) -> None:
    box.cli.read()
    first = forker(box)
    box.cli.read(units=True)
    assert forker(box) == first
    held = memory(first)
    assert b"/tun/m/assign" in held  # this does read it
    tokens = [*box.colab.account.access, box.colab.settings.refresh_token]
    assert [each for each in tokens if each.encode() in held] == []
    assert str(box.environment.folder).encode() not in Path(f"/proc/{first}/environ").read_bytes()


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_forker_that_dies_takes_its_errands_along_and_is_replaced(box: Box, is_busy: bool) -> None:
    box.cli.read()
    first = forker(box)
    if is_busy:
        hangs(box)
        box.colab.requests.clear()
        errors: list[BaseException] = []

        def read() -> None:
            try:
                box.cli.read()
            except Transient as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        wait_until(lambda: waits(box), "an errand that waits")
    os.kill(first, signal.SIGKILL)
    if is_busy:
        thread.join()
        assert "ended early" in str(errors)
        wait_until(lambda: box.clients() == 0, "the errand's end")
    wait_until(lambda: not running(box).is_alive(), "its end")
    starting._forks[box.environment.ready()]._deaths = 0  # other tests of this process
    assert box.cli.read().assignments == ()
    assert forker(box) != first


def test_a_forker_that_hangs_delays_nobody_beyond_the_limit(box: Box) -> None:
    box.cli.read()
    first = forker(box)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(Transient, match="no answer within 1 s"):
        box.patient(call=1.0).read()
    starting._forks[box.environment.ready()]._deaths = 0
    assert box.cli.read().assignments == ()
    assert forker(box) != first


def test_where_nothing_can_be_forked_each_errand_imports_for_itself(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forker that dies at once costs some errands, and then there is none any more."""
    python = box.environment.ready()
    forks = Forks(Path("/bin/false"))
    with (box.folder / "output").open("wb") as output:
        wanted = Start(["none", "none"], {}, box.folder, output.fileno())

        def gives_up() -> bool:
            try:
                assert forks.start(wanted).ended(PATIENCE)
            except ChildProcessError:
                return True
            except OSError:  # it was dead before it could be told
                return False
            return False

        wait_until(gives_up, "no more tries")
        monkeypatch.setitem(starting._forks, python, forks)
        process = starting.start(python, wanted)
        assert isinstance(process, Plain)
        process.kill()
    hangs(box)
    with pytest.raises(Transient, match="no answer within 4 s"):
        box.patient(call=4.0).read()
    wait_until(lambda: box.clients() == 0, "the client's end")
    box.colab.troubles.clear()  # on a busy machine it was killed while it imported, before it asked
    assert box.cli.read().assignments == ()


_READ = """
import sys
from pathlib import Path
from orchestrator.platforms.colab.environment import Environment
from orchestrator.platforms.colab.runner import Cli
Cli(Environment(Path(sys.argv[1]), proxy=sys.argv[2], ca_file=Path(sys.argv[3]))).read()
"""


def test_a_caller_that_is_killed_leaves_no_process_and_no_login(box: Box) -> None:
    hangs(box)
    words = [sys.executable, "-c", _READ, str(box.environment.folder), box.colab.url, str(box.colab.ca)]
    work = box.environment.folder / "work"
    with subprocess.Popen(words) as caller:
        wait_until(lambda: waits(box), "an errand that waits")
        box.cli.tidy()
        [left] = work.iterdir()  # in use
        assert len(list(left.rglob("token.json"))) == 1
        caller.kill()
    wait_until(lambda: box.clients() == 0, "the errand's end")
    box.cli.tidy()
    assert list(work.iterdir()) == []
