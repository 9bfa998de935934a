"""A private PostgreSQL server for tests and benchmarks: a unix socket in a folder of its own, no TCP.

initdb refuses root, so root starts it as nobody. The server stops when the process that started it dies. Also
a pytest plugin: the fixtures `postgresql` (one server per test session) and `ledger_url` (both databases).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

INSTALL = "apt-get install -y --no-install-recommends postgresql"
MISSING = f"PostgreSQL is not installed: {INSTALL}"
_START_SECONDS = 240.0  # on a machine that others use as well
_SETTINGS = ("listen_addresses=", "max_connections=50", "shared_buffers=32MB", "log_min_messages=fatal")


@dataclass(frozen=True)
class Server:
    folder: Path
    pid: int

    @property
    def url(self) -> str:
        return f"postgresql://orchestrator@/postgres?host={quote(str(self.folder))}"

    @property
    def dsn(self) -> str:
        return f"host={self.folder} user=orchestrator dbname=postgres"

    def new_schema(self, name: str) -> str:
        """The URL of an empty schema: as good as a new database, and created at once."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"'.encode())
        return f"{self.url}&options={quote(f'-csearch_path={name}')}"


def binaries() -> Path | None:
    """The folder with initdb and postgres; None if PostgreSQL is not installed."""
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    if pg_config := shutil.which("pg_config"):
        found = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        folders.insert(0, Path(found.stdout.strip()))
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


class Cluster:
    """A server that can be stopped and started again, as for an update."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.folder = folder
        self._fsync = f"fsync={'on' if durable else 'off'}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        found = binaries()
        assert found is not None, MISSING
        settings = [*_SETTINGS, f"unix_socket_directories={self.folder}", self._fsync]
        options = [word for setting in settings for word in ("-c", setting)]
        data = ["-D", str(self.folder / "data")]
        command = [*_as_nobody(), "--pdeathsig", "KILL", str(found / "postgres"), *data, *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        server = Server(self.folder, self._process.pid)
        _wait_ready(server, self._process)
        return server

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(_START_SECONDS)


@contextmanager
def cluster(*, durable: bool = False) -> Iterator[Cluster]:
    """A fresh server that is not started yet. With `durable` it syncs its commits, which benchmarks need and
    tests do not."""
    found = binaries()
    assert found is not None, MISSING
    folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir="/tmp"))  # a socket's path must be short
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        initdb = [found / "initdb", "-D", folder / "data", "-U", "orchestrator", "--auth=trust", "--no-sync"]
        _run([*_as_nobody(), *map(str, initdb), "--locale=C", "--encoding=UTF8"], folder)
        made = Cluster(folder, durable=durable)
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(*, durable: bool = False) -> Iterator[Server]:
    """A fresh server that runs."""
    with cluster(durable=durable) as made:
        yield made.start()


def _as_nobody() -> list[str]:
    if os.geteuid() != 0:
        return ["setpriv"]
    return ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


def _wait_ready(server: Server, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + _START_SECONDS
    while True:
        assert process.poll() is None, (server.folder / "log").read_text()
        try:
            psycopg.connect(server.dsn).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, (server.folder / "log").read_text()
            threading.Event().wait(0.02)
        else:
            return


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """One server for all tests of this process. Without PostgreSQL the test is skipped; the reason says how
    to install it."""
    if binaries() is None:
        pytest.skip(MISSING)
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    server: Server = request.getfixturevalue("postgresql")
    return server.new_schema(f"test_{uuid.uuid4().hex[:12]}")
