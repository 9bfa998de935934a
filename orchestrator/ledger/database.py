"""Access to a ledger's database: its URL, its transactions, and messages for its errors.

Knows SQLite and PostgreSQL, but none of our tables. Never shows the user, password or options of the URL.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url

from orchestrator import installation
from orchestrator.clock import SystemClock
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    DiskFull,
    HostUnknown,
    InputError,
    LedgerConflict,
    OrchestratorError,
    Rejected,
    Transient,
)
from orchestrator.files import NoLocks, check_locks, lacks_inodes, own_trouble, shortage, tighten
from orchestrator.ledger.filelock import lock_path
from orchestrator.shut import shut, unshut
from orchestrator.user import expanded

BUSY_SECONDS = 30  # how long a writer waits for another before it gives up
CREATED_PAUSE_SECONDS = 0.01  # before another try, while another process creates the same file
CONNECT_SECONDS = 10
LOST_SECONDS = 7  # a server ends the connection of a machine that does not answer for so long
CUT_SECONDS = 25  # we give up a server that does not answer for so long; TCP alone would wait 15 minutes
FORMS = "sqlite:///PATH or postgresql://USER@HOST/DATABASE"


class Database:
    """One database. `path` is its file (None for PostgreSQL); `shown` names it without user and options."""

    def __init__(self, url: str, *, alone: bool = False) -> None:
        """`alone`: SQLite keeps its shared state in memory, not in a file. So it opens on a full disk, if no
        other process has it open, and no other process can open it until it is closed."""
        self._alone = alone
        parsed = _parse(url)
        self.path = Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None
        self.shown = str(
            self.path or URL.create("postgresql", None, None, parsed.host, parsed.port, parsed.database)
        )
        self._unsaid = _secrets(parsed)
        self._engine = self._connect(parsed)
        self._writer = self._engine.execution_options(writes=True)

    def _connect(self, url: URL) -> Engine:
        if self.path is not None:
            self._make_folder(self.path.parent)
            check_files(self.path)
            self._check_locks(self.path)
            _make_private(self.path)
            for each in _all_of(self.path):
                shut(each)
            engine = create_engine(url, hide_parameters=True, connect_args={"timeout": BUSY_SECONDS})
            if self._alone:
                event.listen(engine, "connect", _keep_alone)
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        arguments = _arguments(url)
        try:
            engine = create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=arguments)
        except ModuleNotFoundError as error:
            raise InputError(
                f"the ledger {self.shown} needs a driver: {installation.found().adding('postgresql')}"
            ) from error
        event.listen(engine, "connect", _set_up_postgresql)
        return engine

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise AccessDenied(
                f"the ledger's folder {folder} cannot be created ({error.strerror}): "
                "set ORCHESTRATOR_HOME to a folder you may write to",
                backend="ledger",
                operation="open",
            ) from error

    def _check_locks(self, path: Path) -> None:
        """SQLite takes a file system without locks for one where everything is locked, and waits."""
        try:
            check_locks(lock_path(path), path)
        except NoLocks as error:
            raise AccessDenied(f"the ledger {error}", backend="ledger", operation="open") from error

    def close(self) -> None:
        self._engine.dispose()
        for each in _all_of(self.path) if self.path is not None else ():
            unshut(each)

    def dedicated(self) -> Connection:
        """A connection outside the pool, without transactions; closing it ends the server's session."""
        with self._explained("connect"):
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
            return connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads."""
        with self._explained("read"), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction: when the block ends, all of it is durable, or nothing was changed."""
        with self._explained("write"), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        try:
            yield
        except exc.IntegrityError as error:
            raise LedgerConflict(f"the ledger {self.shown} already holds this") from error
        except exc.DataError as error:  # a number out of range, text with a NUL
            said = " ".join(str(error.orig).split())
            message = f"the ledger {self.shown} cannot hold a value: {said}"
            raise Rejected(message, backend="ledger", operation=operation) from error
        except exc.DBAPIError as error:
            original = error.orig
            if isinstance(original, sqlite3.Error):
                raise self._explain_sqlite(original, operation) from error
            # Not `from error`: the driver's message may contain our values.
            raise self._explain_postgresql(original, operation) from None

    def _explain_sqlite(self, error: sqlite3.Error, operation: str) -> OrchestratorError:
        name = getattr(error, "sqlite_errorname", "")
        ledger = f"the ledger {self.shown}"
        where: dict[str, Any] = {"backend": "ledger", "operation": operation}
        match name.removeprefix("SQLITE_").split("_")[0]:
            case "NOTADB":
                return InputError(f"{ledger} is not an SQLite database: move that file away, or use another")
            case "BUSY" | "LOCKED":
                return Transient(
                    f"{ledger} was locked by another process for {BUSY_SECONDS} seconds; "
                    f"`fuser {self.shown}` shows which",
                    **where,
                )
            case "CANTOPEN" if self.path is not None and self.path.is_dir():
                return InputError(f"{ledger} is a folder, not a file: move it away, or use another")
            case "CANTOPEN" if self.path is not None and lacks_inodes(self.path):
                return self._full(where)  # for the two files that it keeps beside an open database
            case "READONLY" | "CANTOPEN" | "PERM" | "AUTH":
                return AccessDenied(
                    f"{ledger} cannot be opened for writing ({error}): make its folder writable, "
                    "or set ORCHESTRATOR_HOME to one that is",
                    **where,
                )
            case "FULL":
                return self._full(where)
            case "CORRUPT":
                return BackendError(
                    f"{ledger} is damaged ({error}): restore a copy, or save what you can with "
                    f"`sqlite3 {self.shown} .recover`",
                    **where,
                )
        if name == "SQLITE_IOERR_SHMSIZE":  # the first file that WAL needs
            return self._full(where)
        return BackendError(f"{ledger}: {error} ({name}); is its disk full or failing?", **where)

    def _masked(self, said: str) -> str:
        for secret in self._unsaid:
            said = said.replace(secret, "***")
        return said

    def _full(self, where: dict[str, Any]) -> DiskFull:
        what, do = "its disk is full", "free some space"
        if (
            self.path is not None
        ):  # beside it lie the folders of the sessions and runs that may have filled it
            what, do = shortage(self.path, *self.path.parent.glob("*/*/*"))
        return DiskFull(
            f"the ledger {self.shown} did not change: {what}; {do} (`orchestrator rm` removes runs that are "
            "over, `orchestrator prune` shows what is no longer needed)",
            **where,
        )

    def _explain_postgresql(self, error: BaseException | None, operation: str) -> OrchestratorError:
        state = getattr(error, "sqlstate", None) or ""
        said = " ".join(str(error).split())
        message = f"the ledger {self.shown}: {self._masked(_ASKS.sub('', said))}"
        where: dict[str, Any] = {"backend": "ledger", "operation": operation}
        if _NO_TLS in said:
            return AccessDenied(
                f"{message}; TLS is required because the connection uses a network: enable TLS on the "
                "server, or add ?sslmode=disable to the URL if you trust the network",
                **where,
            )
        if state == "3D000" or ("database" in said and "does not exist" in said):
            return InputError(f"{message}; create it with `createdb`")
        if state.startswith("28") or any(sign in said for sign in _DENIED):
            return AccessDenied(f"{message}; check user and password (PGPASSWORD, ~/.pgpass)", **where)
        if state == "42501":
            return AccessDenied(f"{message}; the user needs permission to create and change tables", **where)
        if state == "25006":
            return AccessDenied(f"{message}; use the server that accepts writes", **where)
        if state == "53100":
            return BackendError(f"{message}; nothing was changed: free some space on the server", **where)
        if _UNKNOWN_HOST in said:
            return HostUnknown(f"{message}; check the host in the config's `database`", **where)
        if state[:2] in _PASSING or state in ("", _IDLE):
            return Transient(f"{message}; is the server running?", **where)
        return BackendError(message, **where)


_ASKS = re.compile(r" Is the server running [^?]*\?")  # libpq asks for each address; we ask once
_UNKNOWN_HOST = "[Errno -2]"  # of the resolver; -3 may pass
_DENIED = ("authentication failed", "no password supplied", "no pg_hba.conf entry", 'role "')
_IDLE = "25P03"  # the process stood still within a transaction
_PASSING = frozenset({"08", "40", "53", "55", "57"})  # connection, serialization, resources, locks, operator


_SECRET_CHARS_MIN = 3  # shorter ones would mask ordinary words
_PASSWORDS = ("password", "sslpassword")  # options of a URL
_NO_TLS = "server does not support SSL"


def _arguments(url: URL) -> dict[str, str | int]:
    """The driver's arguments in addition to the URL: a connect timeout, and TLS if the server is not local.

    By default libpq continues without TLS if the server refuses it (sslmode=prefer), and the network could
    read everything. On Unix sockets it ignores sslmode.
    """
    arguments: dict[str, str | int] = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
                                       "tcp_user_timeout": 1000 * CUT_SECONDS}  # fmt: skip
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    if "connect_timeout" not in url.query:
        arguments["connect_timeout"] = CONNECT_SECONDS
    if "sslmode" not in url.query and not os.environ.get("PGSSLMODE") and not _is_local(url):
        arguments["sslmode"] = "require"
    return arguments


def _is_local(url: URL) -> bool:
    """Whether every possible host is this machine. The URL's options override its host; libpq's environment
    variables count as well."""
    if "service" in url.query or os.environ.get("PGSERVICE"):
        return False
    where = url.query.get("hostaddr") or os.environ.get("PGHOSTADDR")
    where = where or url.query.get("host") or url.host or os.environ.get("PGHOST") or ""
    hosts = ",".join([where] if isinstance(where, str) else where).split(",")
    return all(_is_loopback(host.partition(":")[0] if host.count(":") == 1 else host) for host in hosts)


def _is_loopback(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):  # a Unix socket, also if no host is given
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _secrets(url: URL) -> tuple[str, ...]:
    """What no message may contain: passwords, raw and URL-encoded, the longest first."""
    given = [str(url.password or "")]
    for name, value in url.query.items():
        if name.lower() in _PASSWORDS:
            given += [value] if isinstance(value, str) else value
    given += [os.environ.get("PGPASSWORD", "")]
    found = {form for secret in given for form in (secret, quote(secret, safe=""), quote_plus(secret))}
    return tuple(sorted((each for each in found if len(each) >= _SECRET_CHARS_MIN), key=len, reverse=True))


def is_absent(url: str) -> bool:
    """Whether the database is a file that is not there. To open it would create it."""
    parsed = _parse(url)
    return parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists()


def check_files(path: Path) -> None:
    """Raises InputError if something else than a file has the name of a file of this SQLite database. SQLite
    would wait for a FIFO's other end."""
    for each in _all_of(path):
        wrong = own_trouble(each)
        if not wrong and each != path and each.is_symlink():
            wrong = "is a link, which SQLite does not follow"
        if wrong:
            raise InputError(f"the ledger's file {each} {wrong}: move it away, or use another ledger")


def has_password(url: str) -> bool:
    """Whether a ledger's URL contains a password. If it cannot be read, it may."""
    try:
        parsed = make_url(url) if url else None
    except (exc.ArgumentError, ValueError):
        return True
    if parsed is None:
        return False
    return bool(parsed.password) or any(name.lower() in _PASSWORDS for name in parsed.query)


def _check_at(url: str, parsed: URL) -> None:
    """Refuses a URL with an `@` that is not the one before the host. If a password contains an `@` that is
    not written as %40, its end would count as the host, which messages show and name servers receive."""
    rest = url.partition("://")[2]
    if rest.count("@") > 1 or ("@" in rest and parsed.username is None):
        raise InputError(
            "the ledger's URL (not shown) has an @ that is not the one before the host: write it as %40, and "
            "in a user or password also / as %2F, : as %3A, ? as %3F, # as %23 and % as %25"
        )


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise InputError(f"the ledger's URL cannot be read; it should be {FORMS}") from None
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        _check_at(url, parsed)
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise InputError(f"a ledger cannot be stored in {parsed.drivername!r}; its URL should be {FORMS}")
    if not parsed.database or parsed.database.startswith((":", "file:")):
        raise InputError(f"the ledger must be a file: {FORMS}")
    try:
        path = expanded(Path(parsed.database)).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"the ledger's path {parsed.database!r} cannot be resolved: {error}") from error
    return URL.create("sqlite", database=str(path))


def _keep_alone(connection: sqlite3.Connection, _record: object) -> None:
    # If this is set before the first read of a WAL database, SQLite needs no -shm file (sqlite.org/wal.html,
    # "Use of WAL without shared-memory").
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")


def _make_private(path: Path) -> None:
    """SQLite gives its other files the mode of the first. If that cannot be created, SQLite reports why."""
    with suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for each in _all_of(path):
        tighten(each)


def _all_of(path: Path) -> tuple[Path, ...]:
    """All files of a SQLite database."""
    return tuple(path.with_name(f"{path.name}{ending}") for ending in ("", "-wal", "-shm"))


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver begins no transactions; _begin_sqlite does
    # Text may be damaged, too. Decoding it strictly would fail the whole query: `tables` checks each value.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    _use_wal(connection)  # readers and the writer do not block each other
    connection.execute("PRAGMA synchronous = FULL")  # an intent is on disk before we act on it
    connection.execute("PRAGMA foreign_keys = ON")


def _use_wal(connection: sqlite3.Connection) -> None:
    """Two processes that create the file at the same time may meet here, and SQLite does not wait then."""
    clock, never = SystemClock(), threading.Event()
    ends = clock.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or clock.monotonic() >= ends:
                raise
        clock.wait(never, CREATED_PAUSE_SECONDS)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


_SETTINGS = {  # of the server's side of our connections; on Unix sockets it ignores those of TCP
    "lock_timeout": f"{BUSY_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{BUSY_SECONDS}s",  # a process that froze in one keeps its locks
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": f"{LOST_SECONDS}s",  # since PostgreSQL 12
}


def _set_up_postgresql(connection: Any, _record: object) -> None:
    rows = ", ".join(["(%s, %s)"] * len(_SETTINGS))
    connection.execute(
        f"SELECT set_config(name, given, false) FROM (VALUES {rows}) AS ours (name, given) "
        "WHERE name IN (SELECT name FROM pg_settings)",
        [word for setting in _SETTINGS.items() for word in setting],
    )
    connection.commit()
