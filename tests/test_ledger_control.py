"""One controller per database, and what is left when it is killed with -9 at any moment."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import update

from orchestrator.errors import ControllerRunning
from orchestrator.ledger import Ledger
from orchestrator.ledger.tables import controller
from tests.core.runs import fold
from tests.ledger_writer import EVENTS, RUNS
from tests.waiting import wait_until
from tests.walks import NOW

ROOT = Path(__file__).resolve().parent.parent
KILLS = 5


@contextmanager
def writer(url: str) -> Iterator[subprocess.Popen[str]]:
    """The process of tests/ledger_writer.py; it has ended when the block is left."""
    command = [sys.executable, "-m", "tests.ledger_writer", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def acknowledged(process: subprocess.Popen[str]) -> dict[str, int]:
    """The versions that it reports as committed; waits for them."""
    assert process.stdout
    line = process.stdout.readline()
    assert line, "the writer died by itself"
    versions: dict[str, int] = json.loads(line)
    return versions


def test_a_second_controller_is_told_who_runs(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger, Ledger.open(ledger_url) as other:
        assert other.owner() is None
        takeover = ledger.take_over("orchestrator up", now=NOW)
        owner = other.owner()
        assert owner is not None
        assert (owner.name, owner.pid, owner.since) == ("orchestrator up", os.getpid(), NOW)
        who = rf"orchestrator up \(process {os.getpid()} on {socket.gethostname()}\)"
        with pytest.raises(ControllerRunning, match=who):
            other.take_over("another", now=NOW)
        takeover.release()
        takeover.release()
        assert other.owner() is None
        assert other.take_over("another", now=NOW).fence == takeover.fence + 1


def test_closing_the_ledger_lets_go(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as other:
        with Ledger.open(ledger_url) as ledger:
            ledger.take_over("first", now=NOW)
        other.take_over("second", now=NOW)
        assert other.owner() is not None


def test_a_full_disk_leaves_no_lock(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk. Both make the write of the lock's mark fail."""
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    with Ledger.open(url) as ledger:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                ledger.take_over("first", now=NOW)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with ledger.take_over("second", now=NOW) as takeover:
            assert takeover.fence == 1


def test_asking_for_the_owner_hinders_nobody(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger, Ledger.open(ledger_url) as other:
        for number in range(20):
            takeover = ledger.take_over(f"number {number}", now=NOW)
            owner = other.owner()
            assert owner is not None
            assert owner.name == f"number {number}"
            takeover.release()
        assert takeover.fence == 20


@pytest.mark.parametrize("earlier", ["none", "released", "killed"])
def test_a_starting_controller_is_not_taken_for_an_earlier_one(ledger_url: str, earlier: str) -> None:
    """It has the lock, and waits for its turn to write who it is."""
    name_it(ledger_url, earlier)
    with Ledger.open(ledger_url) as new, Ledger.open(ledger_url) as other, Ledger.open(ledger_url) as busy:
        starting = threading.Thread(target=lambda: new.take_over("new", now=NOW))
        with busy._database.write() as connection:
            connection.execute(update(controller).values(fence=controller.c.fence))
            starting.start()
            owner = wait_until(other.owner, "the lock to be taken")
            assert (owner.pid, str(owner)) == (0, "one that is just starting")
        starting.join()
        named = other.owner()
        assert named is not None
        assert (named.name, named.pid) == ("new", os.getpid())


def name_it(url: str, earlier: str) -> None:
    """Leaves the ledger as an earlier controller would."""
    if earlier == "killed":
        with writer(url) as process:
            acknowledged(process)
    elif earlier == "released":
        with Ledger.open(url) as ledger, ledger.take_over("released", now=NOW):
            pass


def test_ledgers_of_one_server_have_a_controller_each(ledger_url: str, tmp_path: Path) -> None:
    with Ledger.open(ledger_url) as ledger, Ledger.open(f"sqlite:///{tmp_path / 'other.sqlite'}") as other:
        assert ledger.take_over("one", now=NOW).fence == other.take_over("two", now=NOW).fence == 1


def test_a_link_to_a_database_is_that_database(tmp_path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "ledger.sqlite")
    with (
        Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger,
        Ledger.open(f"sqlite:///{tmp_path / 'link.sqlite'}") as link,
        ledger.take_over("one", now=NOW),
        pytest.raises(ControllerRunning),
    ):
        link.take_over("two", now=NOW)


def test_a_killed_controller_leaves_whole_decisions_and_its_place(ledger_url: str) -> None:
    """kill -9 between and within commits: each decision has all of its events or none, and their fold is
    kept."""
    seed = Random().randrange(1 << 32)
    random = Random(seed)
    for kill in range(1, KILLS + 1):
        with writer(ledger_url) as process:
            for _ in range(random.randint(1, 40)):
                seen = acknowledged(process)
            process.send_signal(signal.SIGKILL)
            process.wait()
        with Ledger.open(ledger_url) as ledger:
            check_whole(ledger, seen, f"seed {seed}, kill {kill}")
            with ledger.take_over("next", now=NOW) as takeover:
                assert takeover.fence == 2 * kill


def check_whole(ledger: Ledger, acknowledged: dict[str, int], which: str) -> None:
    versions = set()
    for run in RUNS:
        history = ledger.history(run)
        record = ledger.record(run)
        assert [stored.seq for stored in history] == list(range(1, record.version + 1)), which
        assert fold(stored.event for stored in history) == record, which
        assert record.version % EVENTS == 1, f"{which}: half a decision"
        assert record.version >= acknowledged[run], f"{which}: a committed event is gone"
        versions.add(record.version)
    assert len(versions) == 1, f"{which}: half a tick"
