"""Opening a ledger: it is created and upgraded once, and every failure has a clear message."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sqlite3
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from orchestrator.core.event import Noted
from orchestrator.errors import AccessDenied, BackendError, InputError, OrchestratorError, Transient
from orchestrator.installation import found
from orchestrator.ledger import Ledger
from orchestrator.ledger.database import Database
from orchestrator.ledger.migration import SCRIPTS
from orchestrator.ledger.tables import REVISION, VERSION_TABLE, metadata
from tests.core.runs import fold
from tests.postgresql import Server
from tests.walks import NOW, submission

ROOT = Path(__file__).resolve().parent.parent
NOBODY = 65534
SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")  # PostgreSQL's protocol, "SSLRequest"


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def refusal(url: str) -> OrchestratorError:
    with pytest.raises(OrchestratorError) as caught:
        Ledger.open(url)
    return caught.value


# --- Tables ----------------------------------------------------------------------------------------------


def test_the_migrations_lead_to_the_tables_the_code_knows(ledger_url: str) -> None:
    Ledger.open(ledger_url).close()
    database = Database(ledger_url)
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
    database.close()
    assert ScriptDirectory(str(SCRIPTS)).get_current_head() == REVISION


def test_opening_again_changes_nothing(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        record = ledger.submit(submission("tiny-1"))
    with Ledger.open(ledger_url) as ledger:
        assert ledger.record("tiny-1") == record


def test_many_may_open_a_new_one_at_once(ledger_url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        ledgers = list(pool.map(Ledger.open, [ledger_url] * 8))
    for number, ledger in enumerate(ledgers):
        ledger.submit(submission(f"tiny-{number}"))
    assert len(ledgers[0].summaries()) == 8
    for ledger in ledgers:
        ledger.close()


def test_many_processes_may_open_a_new_one_at_once(ledger_url: str) -> None:
    program = "import sys; from orchestrator.ledger import Ledger; Ledger.open(sys.argv[1]).close()"
    command = [sys.executable, "-c", program, ledger_url]
    processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(p.communicate()[1], p.returncode) for p in processes] == [("", 0)] * 4


def test_one_that_another_is_creating_is_waited_for(tmp_path: Path) -> None:
    """SQLite's own waiting does not apply while the other one has begun to write the new file."""
    path = tmp_path / "ledger.sqlite"
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(Ledger.open, sqlite_url(path))
        with pytest.raises(TimeoutError):
            opening.exception(timeout=0.3)
        other.close()
        opening.result().close()


def test_one_of_a_newer_version_is_left_alone(ledger_url: str) -> None:
    Ledger.open(ledger_url).close()
    database = Database(ledger_url)
    with database.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    database.close()
    error = refusal(ledger_url)
    assert isinstance(error, InputError)
    assert "newer version" in str(error)
    assert f"upgrade with {found().updating}" in str(error)


def test_a_database_of_something_else_is_left_alone(ledger_url: str) -> None:
    database = Database(ledger_url)
    with database.write() as connection:
        connection.execute(sa.text("CREATE TABLE runs (distance integer)"))
    error = refusal(ledger_url)
    assert isinstance(error, InputError)
    assert "belongs to something else: it has tables called runs" in str(error)
    with database.read() as connection:
        assert sa.inspect(connection).get_table_names() == ["runs"]
    database.close()


def test_a_listing_needs_neither_alembic_nor_the_driver_of_another_database(tmp_path: Path) -> None:
    """`ps` must start fast."""
    url = sqlite_url(tmp_path / "ledger.sqlite")
    Ledger.open(url).close()
    program = (
        "import sys; from orchestrator.ledger import Ledger; Ledger.open(sys.argv[1]).summaries();"
        "print(*{m.split('.')[0] for m in sys.modules} & {'alembic', 'pydantic', 'psycopg', 'mako'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


# --- SQLite: what a user runs into -----------------------------------------------------------------------


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new home" / "100%" / "ledger.sqlite"
    with Ledger.open(sqlite_url(path)) as ledger:
        assert ledger.summaries() == ()
    assert path.is_file()


def test_commits_survive_the_power_and_readers_do_not_wait(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(sqlite_url(path)) as ledger:
        ledger.submit(submission("tiny-1"))
        database = Database(sqlite_url(path))
        with database.read() as connection:
            assert connection.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
            assert connection.execute(sa.text("PRAGMA synchronous")).scalar() == 2  # FULL
            connection.execute(sa.text("SELECT * FROM runs")).all()
            ledger.submit(submission("tiny-2"))
        database.close()


def test_a_file_that_is_no_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_text("my notes, and quite a lot of them\n" * 200)
    error = refusal(sqlite_url(path))
    assert isinstance(error, InputError)
    assert f"{path} is not an SQLite database" in str(error)
    assert path.read_text().startswith("my notes")


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    error = refusal(sqlite_url(tmp_path))
    assert isinstance(error, InputError)
    assert f"{tmp_path} is a folder" in str(error)


def test_a_file_where_its_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    error = refusal(sqlite_url(tmp_path / "home" / "ledger.sqlite"))
    assert isinstance(error, AccessDenied)
    assert "set ORCHESTRATOR_HOME" in str(error)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that belongs to another user, and this process without root's right to ignore modes."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    root = os.geteuid() == 0
    if root:
        shutil.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_home_that_cannot_be_written(unprivileged: Path) -> None:
    unprivileged.chmod(0o555)
    for path in (unprivileged / "ledger.sqlite", unprivileged / "home" / "ledger.sqlite"):
        error = refusal(sqlite_url(path))
        assert isinstance(error, AccessDenied)
        assert str(unprivileged) in str(error)
        assert "set ORCHESTRATOR_HOME" in str(error)


def test_a_ledger_that_became_read_only(unprivileged: Path) -> None:
    path = unprivileged / "ledger.sqlite"
    with Ledger.open(sqlite_url(path)) as ledger:
        ledger.submit(submission("tiny-1"))
    path.chmod(stat.S_IRUSR)
    unprivileged.chmod(0o555)
    with (
        pytest.raises(AccessDenied, match="make its folder writable"),
        Ledger.open(sqlite_url(path)) as ledger,
    ):
        ledger.submit(submission("tiny-2"))


def test_another_who_holds_it_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.ledger.database.BUSY_SECONDS", 0)
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(sqlite_url(path)) as ledger:
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Transient, match=f"`fuser {path}`"):
            ledger.submit(submission("tiny-1"))
        other.close()
        ledger.submit(submission("tiny-1"))
        assert len(ledger.summaries()) == 1


def test_a_full_disk_loses_nothing_that_was_there(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk. Both make a write fail half-way."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(sqlite_url(path)) as ledger:
        record = ledger.submit(submission("tiny-1"))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (path.with_name(path.name + "-wal").stat().st_size + 20_000, before[1])
        )
        try:
            with pytest.raises(BackendError, match="disk"):
                ledger.append(record, [Noted(NOW, "x" * 10_000)] * 20, due_at=None)
            assert ledger.record("tiny-1") == record
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        record = ledger.append(record, [Noted(NOW, "space again")], due_at=None)
    with Ledger.open(sqlite_url(path)) as ledger:
        assert fold(stored.event for stored in ledger.history("tiny-1")) == record


# --- URLs and PostgreSQL ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["", "ledger.sqlite", "sqlite://", "sqlite:///:memory:", "mysql://root@db/x", "postgresql://h:port/x"],
)
def test_a_url_of_another_kind(url: str) -> None:
    error = refusal(url)
    assert isinstance(error, InputError)
    assert "sqlite:///PATH or postgresql://USER@HOST/DATABASE" in str(error)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:1"])
def test_a_server_that_does_not_answer_is_asked_after_once(host: str) -> None:
    error = refusal(f"postgresql://me@{host}/ledger")
    assert type(error) is Transient
    assert str(error).lower().count("is the server running") == 1
    assert "Connection refused; is the server running?" in str(error)


def test_no_server_and_no_password_in_the_words(tmp_path: Path) -> None:
    error = refusal(f"postgresql://me:sesame@/ledger?host={tmp_path}&password=sesame2")
    assert isinstance(error, Transient)
    assert "; is the server running?" in str(error)
    assert "sesame" not in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pa@s3same@127.0.0.1:1/ledger",
        "postgresql://me:p/a@s3same@127.0.0.1:1/ledger",
        "postgresql://m/e:s3same@127.0.0.1:1/ledger",
        "postgresql://me@example.org:s3same@127.0.0.1:1/ledger",
        "postgresql:///ledger?host=me:pa@s3same",
        "postgresql://me:s3same@127.0.0.1:1s3same/ledger",
        "postgresql://me:pa%40s3same@127.0.0.1:1/ledger?password=x@s3same",
    ],
)
def test_a_url_whose_password_is_not_encoded_is_refused_and_never_repeated(url: str) -> None:
    """`ss@host` was once taken for the host: shown everywhere, and sent to the name servers."""
    error = refusal(url)
    assert isinstance(error, InputError)
    assert "s3same" not in str(error)
    assert "%40" in str(error) or "cannot be read" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:pa%40s3same@127.0.0.1:1/ledger",
        "postgresql://s3same-token@127.0.0.1:1/ledger",
        "postgresql://me@127.0.0.1:1/ledger?password=s3same&sslpassword=s3same",
        "postgresql://me:s3same@127.0.0.1:1/ledger?sslkey=/s3same/key&sslmode=verify-full&bogus=s3same",
    ],
)
def test_no_part_of_a_url_before_its_host_is_shown_nor_its_options(url: str) -> None:
    error = refusal(url)
    assert "s3same" not in "".join(traceback.format_exception(error))
    assert "postgresql://" in str(error)


@contextmanager
def relayed(server: Server, tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """The server behind a TCP port, with TLS or without; and the first bytes that each client sent."""
    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(client: socket.socket) -> None:
        with suppress(OSError), ExitStack() as opened:
            opened.enter_context(client)
            heard.append(client.recv(8, socket.MSG_PEEK))
            if tls is not None and heard[-1] == SSL_REQUEST:
                client.recv(8)
                client.sendall(b"S")
                client = opened.enter_context(tls.wrap_socket(client, server_side=True))
            there = opened.enter_context(socket.socket(socket.AF_UNIX))
            there.connect(str(server.folder / ".s.PGSQL.5432"))
            back = threading.Thread(target=pump, args=(there, client), daemon=True)
            back.start()
            pump(client, there)
            back.join(10)

    threads: list[threading.Thread] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True))
                threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1], heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(10)
        listener.close()
        for thread in threads:
            thread.join(10)


def test_a_server_over_a_network_is_asked_for_tls(postgresql: Server, tmp_path: Path) -> None:
    """0.0.0.0 leads to this machine, but it is not one of the addresses that we treat as local."""
    with relayed(postgresql) as (port, heard):
        url = f"postgresql://orchestrator@0.0.0.0:{port}/postgres"
        error = refusal(url)
        assert isinstance(error, AccessDenied)
        assert "sslmode=disable" in str(error)
        elsewhere = f"postgresql://orchestrator@localhost:{port}/postgres?host=0.0.0.0"
        assert isinstance(refusal(elsewhere), AccessDenied), "options win over the host"
        assert set(heard) == {SSL_REQUEST}, "nothing was said before TLS"
        for plain in (f"{url}?sslmode=disable", f"postgresql://orchestrator@127.0.0.1:{port}/postgres"):
            Database(plain).dedicated().close()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
         "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with relayed(postgresql, context) as (port, heard):
        database = Database(f"postgresql://orchestrator@0.0.0.0:{port}/postgres")
        with database.read() as connection:
            assert connection.execute(sa.text("SELECT 1")).scalar() == 1
        database.close()
        assert heard == [SSL_REQUEST]


def test_a_database_or_user_that_the_server_does_not_know(postgresql: Server) -> None:
    unknown = refusal(postgresql.url.replace("/postgres?", "/nothing?"))
    assert isinstance(unknown, InputError)
    assert "create it with `createdb`" in str(unknown)
    stranger = refusal(postgresql.url.replace("orchestrator@", "stranger@"))
    assert isinstance(stranger, AccessDenied)
    assert "check user and password" in str(stranger)
