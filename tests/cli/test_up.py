"""`up` as a service runs it: its log, and what signals do to it and to its sessions."""

from __future__ import annotations

import signal
import socket
import sqlite3
from pathlib import Path

from benchmarks.tick import job
from orchestrator.core.event import Submitted
from orchestrator.ledger import Ledger
from tests.cli.calls import CONFIG, PATIENCE, UNLIMITED, Caller
from tests.waiting import wait_until

LONG = 50_000


def test_sigterm_ends_after_the_tick_and_leaves_the_sessions_running(user: Caller) -> None:
    """It comes in the middle of a tick, which waits for the ledger while another process writes there."""
    user.config(UNLIMITED)
    controller = user.start("up")
    wait_until(user.owner, "a controller")
    run = user.submitted(user.job(total=LONG))
    user.wait_for_phase(run, "running")
    step = user.wait_for_checkpoint(run)
    writer = sqlite3.connect(user.home / "ledger.sqlite", timeout=PATIENCE, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    user.start("cancel", "nothing-of-this-name").communicate(timeout=PATIENCE)  # load: others ask meanwhile
    controller.send_signal(signal.SIGTERM)
    writer.close()
    out, err = controller.communicate(timeout=PATIENCE)
    assert controller.returncode == 0, err
    assert "leaves" in out.splitlines()[-1]
    assert user.owner() is None
    assert user.phase(run) == "running", "nothing was decided about its session"
    assert user("logs", "--controller", "--tail", "1").out.endswith("leaves\n")
    [first, *_] = user("logs", "--controller", "--json").lines
    assert (first["level"], first["event"], first["run"]) == ("info", "controller", None)
    started = [each for each in user("logs", "--controller", "--json").lines if each["event"] == "started"]
    assert (started[0]["run"], started[0]["session"], started[0]["platform"]) == (run, f"{run}-s01", "here")
    again = user.start("up")
    wait_until(user.owner, "a controller")  # else `cancel` starts one
    wait_until(lambda: user.wait_for_checkpoint(run) > step, "its session to have gone on")
    user("cancel", run)
    user.wait_for_phase(run, "cancelled")
    user("down")
    assert again.wait(PATIENCE) == 0


def test_a_second_signal_ends_a_controller_that_hangs(user: Caller) -> None:
    """Its new config names a database server that accepts and never answers."""
    controller = user.start("up")
    wait_until(user.owner, "a controller")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=600"
        user.config(CONFIG + f"database: {url}\n")
        with silent.accept()[0]:
            controller.send_signal(signal.SIGINT)
            wait_until(lambda: _pending(controller.pid) == 0, "the first signal to be handled")
            controller.send_signal(signal.SIGTERM)
            assert controller.wait(PATIENCE) == -signal.SIGTERM
    assert user.owner() is None


def _pending(pid: int) -> int:
    """The signals that the process has not taken yet; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(text.partition("ShdPnd:")[2].split()[0], 16)


def test_logs_says_what_belongs_together(user: Caller) -> None:
    assert "has not logged anything" in user("logs", "--controller").err
    assert "--controller" in user("logs", code=2).err
    assert "no RUN" in user("logs", "--controller", "a-run", code=2).err


def test_ps_shows_a_page_on_a_terminal_and_all_elsewhere(user: Caller) -> None:
    with Ledger.open(f"sqlite:///{user.home / 'ledger.sqlite'}") as ledger:
        for number in range(60):
            ledger.submit(Submitted(f"run-{number:08d}", job(1), float(number)), due_at=4e9)
    assert len(user("ps", "--json").json["runs"]) == 60
    page = user("ps", "--json", "--limit", "7", "--after", "run-00000050").json
    assert [each["run"] for each in page["runs"]] == [f"run-{number:08d}" for number in range(49, 42, -1)]
    assert page["more"] is True
    shown = user.on_a_terminal("ps")
    assert shown.count("run-000000") == 50 + 1, "a page, and the command for the next"
    assert "ps --after run-00000010" in shown
    assert "no more runs" in user("ps", "--after", "run-00000000").out
    assert "0 or more" in user("ps", "--limit", "-1", code=2).err
