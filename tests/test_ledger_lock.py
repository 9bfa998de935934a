"""The lock of a ledger in PostgreSQL is lost and taken again, and a standby gets it from a controller that is
dead or frozen."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from orchestrator.clock import SystemClock
from orchestrator.errors import Fenced, InputError, OrchestratorError, Transient
from orchestrator.ledger import Ledger, Takeover, Waiting, serverlock
from orchestrator.ledger.lock import HOST_CHARS, Standby
from tests import postgresql as servers
from tests.postgresql import Server
from tests.waiting import PATIENCE, wait_until
from tests.walks import NOW

ROOT = Path(__file__).resolve().parent.parent
HOLDER = """
import sys
from orchestrator.clock import SystemClock
from orchestrator.ledger import Ledger
import threading
with Ledger.open(sys.argv[1]) as ledger, ledger.take_over("up", now=1.0) as takeover:
    print(takeover.fence, flush=True)
    if len(sys.argv) > 2:  # it freezes within a transaction
        from sqlalchemy import update
        from orchestrator.ledger.tables import controller
        with ledger._database.write() as connection:
            connection.execute(update(controller).values(owner="up"))
            print("locked", flush=True)
            input()
    while True:
        takeover.keep()
        SystemClock().wait(threading.Event(), 0.1)
"""


@pytest.fixture
def url(postgresql: Server) -> str:
    return postgresql.new_schema(f"test_{uuid.uuid4().hex[:12]}")


@contextmanager
def holder(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that controls the ledger and beats."""
    command = [sys.executable, "-c", HOLDER, url, *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()


def cut(postgresql: Server) -> None:
    """Ends the connection of every controller."""
    with psycopg.connect(postgresql.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid) "
            "WHERE locktype = 'advisory'"
        )


def turn(waiting: Waiting) -> Takeover | None:
    try:
        return waiting.attempt(NOW, SystemClock().monotonic())
    except Transient:
        return None


def test_a_lock_whose_connection_was_cut_is_taken_again(url: str, postgresql: Server) -> None:
    with Ledger.open(url) as ledger, Ledger.open(url) as other, ledger.take_over("up", now=NOW) as takeover:
        assert takeover.keep()
        owner = other.owner()
        cut(postgresql)
        wait_until(lambda: other.owner() is None, "the server to notice")
        assert not takeover.keep()
        assert takeover.keep()
        assert other.owner() == owner, "health and down find it again"
        takeover.confirm()


def test_a_controller_learns_that_another_has_its_lock(url: str, postgresql: Server) -> None:
    with Ledger.open(url) as ledger, Ledger.open(url) as other, ledger.take_over("first", now=NOW) as first:
        cut(postgresql)
        wait_until(lambda: other.owner() is None, "the server to notice")
        with other.take_over("second", now=NOW) as second:
            with pytest.raises(Fenced, match=rf"second \(process {os.getpid()} on"):
                first.keep()
            assert second.keep()
        with pytest.raises(Fenced):  # the lock is free, but somebody had it
            first.keep()
        assert other.owner() is None


def test_a_restart_of_the_server_is_survived() -> None:
    if servers.binaries() is None:
        pytest.skip(servers.MISSING)
    with (
        servers.cluster() as cluster,
        Ledger.open(cluster.start().url) as ledger,
        ledger.take_over("up", now=NOW) as takeover,
    ):
        owner = ledger.owner()
        cluster.stop()
        with pytest.raises(Transient):
            takeover.keep()
        cluster.start()
        assert not takeover.keep()
        assert ledger.owner() == owner


@pytest.mark.parametrize(
    ("told", "host", "same"),
    [
        ("box", "box", True),
        ("box", "box2", False),
        ("box2", "box", False),
        ("", "box", False),
        ("a" * HOST_CHARS, "a" * HOST_CHARS + ".example.org", True),
        ("a" * HOST_CHARS, "a" * (HOST_CHARS - 1), False),
    ],
)
def test_a_standby_is_of_one_host(told: str, host: str, same: bool) -> None:
    """`down` ends a process by its number, which may be another's on another machine."""
    assert Standby(7, told, 0.0).is_on(host) is same


def test_a_standby_waits_and_is_seen(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger, Ledger.open(ledger_url) as other:
        takeover = ledger.take_over("up", now=NOW)
        assert ledger.standbys() == ()
        with other.stand_by("up", now=NOW) as waiting:
            assert turn(waiting) is None
            [standby] = ledger.standbys()
            assert (standby.pid, standby.is_on(socket.gethostname())) == (os.getpid(), True)
            assert ledger.owner() is not None
            takeover.release()
            mine = turn(waiting)
            assert mine is not None
            assert mine.fence == takeover.fence + 1
            owner = other.owner()
            assert owner is not None
            assert owner.pid == os.getpid()
            mine.release()
        assert ledger.standbys() == ()


def test_a_dead_controller_is_replaced_at_once(url: str) -> None:
    with holder(url) as process, Ledger.open(url) as ledger, ledger.stand_by("up", now=NOW) as waiting:
        assert turn(waiting) is None
        process.kill()
        mine = wait_until(lambda: turn(waiting), "the turn")
        assert mine.fence == 2


@pytest.mark.parametrize("words", [(), ("within a transaction",)])
def test_a_frozen_controller_is_replaced(
    url: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it froze while it had locked the row that a takeover changes."""
    monkeypatch.setattr(serverlock, "FROZEN_SECONDS", 0.6)
    with holder(url, *words) as process, Ledger.open(url) as ledger:
        if words:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
        with ledger.stand_by("up", now=NOW) as waiting:
            assert turn(waiting) is None
            process.send_signal(signal.SIGSTOP)
            mine = wait_until(lambda: turn(waiting), "the turn")
            assert mine.fence == 2
            process.send_signal(signal.SIGCONT)
            if not words:
                assert process.wait(PATIENCE) == 1, "it is told that another one has taken over"
            assert mine.keep()


def test_a_controller_that_beats_keeps_its_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a heartbeat before each look, so it does not matter how slow this machine is."""
    monkeypatch.setattr(serverlock, "FROZEN_SECONDS", 0.3)
    clock = SystemClock()
    with Ledger.open(url) as ledger, Ledger.open(url) as other, ledger.take_over("up", now=NOW) as takeover:
        with other.stand_by("up", now=NOW) as waiting:
            ends = clock.monotonic() + 1.0

            def over() -> bool:
                assert takeover.keep()
                assert turn(waiting) is None
                return clock.monotonic() > ends

            wait_until(over, "three times as long")
        assert takeover.keep(), "it never lost its lock"


def test_an_older_controller_that_never_beats_is_left_alone(
    url: str, postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It controls, and says nothing on its connection for days."""
    monkeypatch.setattr(serverlock, "FROZEN_SECONDS", 0.1)
    schema = url.rpartition("%3D")[2]
    with (
        psycopg.connect(postgresql.dsn, options=f"-csearch_path={schema}", autocommit=True) as older,
        Ledger.open(url) as ledger,
        ledger.stand_by("up", now=NOW) as waiting,
    ):
        older.execute("SET application_name = 'orchestrator 0123'")
        older.execute(serverlock._TRY_LOCK.replace(":key", str(serverlock._LOCK)).encode())
        looks: list[Takeover | None] = []

        def looked() -> bool:
            looks.append(turn(waiting))
            return len(looks) > 10

        wait_until(looked, "several looks")
        assert not any(looks)


def test_a_standby_survives_a_cut(url: str, postgresql: Server) -> None:
    with Ledger.open(url) as ledger, ledger.stand_by("up", now=NOW) as waiting, holder(url) as process:
        assert turn(waiting) is None
        with psycopg.connect(postgresql.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'orchestrator waits%'"
            )
        with pytest.raises(OrchestratorError):
            wait_until(lambda: waiting.attempt(NOW, 0.0), "the cut to be noticed")
        process.kill()
        assert wait_until(lambda: turn(waiting), "the turn").fence == 2


def test_a_standby_of_an_older_version_does_not_take_over(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger, ledger.stand_by("up", now=NOW) as waiting:
        with ledger._database.write() as connection:
            connection.execute(text("UPDATE orchestrator_version SET version_num = '9999'"))
        with pytest.raises(InputError, match="newer version"):
            waiting.attempt(NOW, 0.0)
        assert ledger.owner() is None
