"""A ledger in which one value of a run, schedule or notification is damaged, for every column in turn.

Through the command line alone. For each column and each kind of damage there is one row, beside good ones: no
command may lose the good ones, and each damaged one is told with its column.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from orchestrator.core import wire
from orchestrator.core.job import NoticeKind
from orchestrator.core.notice import Notice
from tests.cli.calls import SOURCE, UNLIMITED, Caller
from tests.cli.conftest import Finished
from tests.waiting import wait_until

DAMAGES = {
    "null": "NULL", "text": "'ab cd'", "blob": "x'ff00'", "infinite": "9e999", "huge": "1e300",
    "large": "4611686018427387904", "negative": "-7", "no-utf8": "CAST(x'ff7b7d' AS TEXT)",
}  # fmt: skip
OPTIONAL = {
    "due_at", "platform", "accelerator", "session", "until", "accepted_step", "ended_at", "closed_at",
    "next_at", "run",
}  # fmt: skip
STRICT = {"phase", "record", "body", "state"}  # of text, these hold no other words
LARGE = {"steps_total", "accepted_step"}  # these have 64 bits
OLD = 1000.0  # the runs ended so long ago that `prune` would remove what they left
OF_RUNS = (["show"], ["why"], ["logs"], ["checkpoints"], ["curves"], ["replay"], ["rm", "--dry-run"])
OF_ALL = (
    ["ps"], ["ps", "--wide"], ["plan"], ["quota"], ["notify", "list", "--all"],
    ["schedule", "list"], ["schedule", "next"], ["schedule", "show", "good"], ["prune", "--dry-run"],
    ["uninstall"],
)  # fmt: skip


def is_damage(column: str, kind: str, affinity: str) -> bool:
    """Whether this column may not hold that."""
    if kind == "null":
        return column not in OPTIONAL
    if kind == "large" and column in LARGE:
        return False
    words = affinity == "TEXT" and kind not in ("blob", "no-utf8")  # SQLite keeps numbers as text there
    return not words or column in STRICT


@contextmanager
def ledger(home: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(home / "ledger.sqlite")) as database, database:
        yield database


def columns(database: sqlite3.Connection, table: str) -> dict[str, str]:
    return {row[1]: row[2] for row in database.execute(f"PRAGMA table_info({table})")}


def copied(database: sqlite3.Connection, table: str, key: str, of: str, to: str) -> None:
    """A row like that of another name, which its record or body says, too."""
    names = list(columns(database, table))
    told = {key: "?", **{name: f"replace({name}, '{of}', '{to}')" for name in ("record", "body", "inputs")}}
    chosen = ", ".join(told.get(name, name) for name in names)
    query = f"INSERT INTO {table} ({', '.join(names)}) SELECT {chosen} FROM {table} WHERE {key} = ?"
    database.execute(query, (to, of))


@pytest.fixture(scope="module")
def home(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, a schedule with a fire and a notification: all called `good`."""
    folder = tmp_path_factory.mktemp("values")
    shutil.copytree(finished.user.home, folder / "home", ignore=shutil.ignore_patterns("*.sock"))
    shutil.copytree(finished.user.folder / "source", folder / "source")
    user = Caller(folder, folder / "home")
    path = folder / user.job("good.yaml")
    path.write_text(path.read_text().replace("name: tiny", "name: good") + "schedule: {cron: '0 0 1 1 *'}\n")
    user("submit", "good.yaml")
    user("down")
    notice = wire.encode(Notice(NoticeKind.FAILED, OLD, "it failed", run="good-1", job="tiny")).decode()
    with ledger(user.home) as database:
        database.execute("PRAGMA writable_schema = ON")  # a damaged file may hold NULL anywhere
        database.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'")
    with ledger(user.home) as database:
        for run in ("good-1", "good-2"):
            copied(database, "runs", "run", finished.run, run)
            copied(database, "events", "run", finished.run, run)
        database.execute("INSERT INTO fires VALUES ('good', 5.0, 6.0, 'skipped', NULL, 'none', 1)")
        database.execute(
            "INSERT INTO notifications VALUES ('good', 5.0, 'phone', 'failed', 'good-1', ?, 'dead', 3, 6.0, "
            "7.0, 'no answer')", (notice,),
        )  # fmt: skip
    return user.home


class Damaged:
    """A copy of the home. `marked`: of each table, the names of its damaged rows, and the damaged column."""

    def __init__(self, home: Path, folder: Path) -> None:
        shutil.copytree(home, folder / "home", ignore=shutil.ignore_patterns("*.sock"))
        self.user = Caller(folder, folder / "home")
        self.marked: dict[str, dict[str, str]] = {"runs": {}, "schedules": {}, "notifications": {}}
        with ledger(self.user.home) as database:
            for kind, value in DAMAGES.items():
                self._damage(database, "runs", "run", "good-2", kind, value)
                self._damage(database, "schedules", "name", "good", kind, value)
                self._damage(database, "notifications", "id", "good", kind, value)
                _damage_parts(database, kind, value)

    def _damage(
        self, database: sqlite3.Connection, table: str, key: str, good: str, kind: str, value: str
    ) -> None:
        for column, affinity in columns(database, table).items():
            name = f"bad-{column.replace('_', '-')}-{kind}"
            copied(database, table, key, good, name)
            database.execute(f"UPDATE {table} SET {column} = {value} WHERE {key} = ?", (name,))
            if column != key and is_damage(column, kind, affinity):
                self.marked[table][name] = column


def _damage_parts(database: sqlite3.Connection, kind: str, value: str) -> None:
    """Of events, fires and measurements: they belong to something good."""
    for column in columns(database, "events"):
        run = f"bad-event-{column}-{kind}"
        copied(database, "runs", "run", "good-2", run)
        copied(database, "events", "run", "good-2", run)
        database.execute(f"UPDATE events SET {column} = {value} WHERE run = ? AND seq = 2", (run,))
    for column in columns(database, "fires").keys() - {"schedule"}:
        database.execute("INSERT INTO fires VALUES ('good', 99.0, 6.0, 'skipped', NULL, 'none', 1)")
        database.execute(f"UPDATE fires SET {column} = {value} WHERE planned = 99.0")
        database.execute("UPDATE fires SET planned = 100 + random() WHERE planned = 99.0")
    for column in columns(database, "measurements").keys() - {"number"}:
        database.execute("INSERT INTO measurements (job_key, at, body) VALUES ('tiny', 1.0, 'new')")
        database.execute(f"UPDATE measurements SET {column} = {value} WHERE body = 'new'")
        database.execute("UPDATE measurements SET body = '{}' WHERE body = 'new'")


@pytest.fixture
def damaged(home: Path, tmp_path: Path) -> Iterator[Damaged]:
    found = Damaged(home, tmp_path)
    yield found
    found.user.close()


def test_one_damaged_value_hides_nothing_else(damaged: Damaged) -> None:
    user = damaged.user
    for words in OF_ALL:
        user(*words)
    for words in OF_RUNS:
        user(words[0], "good-1", *words[1:])
    rows = {row["run"]: row for row in user("ps", "--all", "--json").json["runs"]}
    table, _, notes = user("ps", "--all").out.partition("\n\n")
    phases = {line.split()[0]: line.split()[1] for line in table.splitlines()}
    for run in ("good-1", "good-2"):
        assert (rows[run]["unreadable"], rows[run]["phase"], phases[run]) == (None, "done", "done")
    for run, column in damaged.marked["runs"].items():
        assert f"its {column} is unreadable" in rows[run]["unreadable"], run
        assert phases[run] == "unreadable"
        assert f"{run} " in notes


def test_a_damaged_schedule_or_notification_is_told_beside_the_others(damaged: Damaged) -> None:
    user = damaged.user
    told = user("schedule", "list", "--json").json
    assert "good" in [each["name"] for each in told["schedules"]]
    for name, column in damaged.marked["schedules"].items():
        assert f"schedule {name} cannot be read: " in told["unreadable"][name]
        assert column == "body" or f"its {column} is unreadable" in told["unreadable"][name]
    assert "not be read" in user("schedule", "rm", "bad-version-text").out + user("schedule", "list").err
    rows = user("notify", "list", "--all", "--json").json["notifications"]
    titles = {each["id"]: each["title"] for each in rows}
    assert "damaged" not in titles["good"]
    for name, column in damaged.marked["notifications"].items():
        assert f"its {column} is unreadable" in titles[name] or column == "body"
    user("notify", "retry", "bad-state-text")


def test_a_damaged_event_costs_its_own_line_of_the_story(damaged: Damaged) -> None:
    for kind in DAMAGES:
        for column in ("seq", "body", "inputs"):
            run = f"bad-event-{column}-{kind}"
            assert "done" in damaged.user("why", run).out
    damaged.user("show", "bad-event-seq-text")
    damaged.user("curves", "bad-event-seq-blob")


def test_what_belongs_to_a_damaged_run_is_kept_and_saved(damaged: Damaged, tmp_path: Path) -> None:
    user = damaged.user
    [left] = (user.home / "runs").glob("tiny-*")
    with ledger(user.home) as database:
        database.execute("UPDATE runs SET ended_at = ? WHERE run NOT LIKE 'bad-ended-%'", (OLD,))
    kept = [run for run in damaged.marked["runs"] if run.endswith(("text", "blob"))]
    for run in (*kept, "good-1"):
        shutil.copytree(left, user.home / "runs" / run)
    things = user("prune", "--dry-run", "--json").json["things"]
    assert {each["run"] for each in things if each["goes"] and each["run"]} == {"good-1", left.name}
    user("backup", str(tmp_path / "saved.tar.gz"))


def test_a_damaged_row_is_written_again_or_its_run_removed(damaged: Damaged) -> None:
    user = damaged.user
    for column in ("ended-at", "phase", "live", "version"):
        run = f"bad-{column}-text"
        assert "written again from its record; it is done" in user("release", run).out
        assert user("show", run, "--json").json["phase"] == "done"
    listed = {row["run"]: row["unreadable"] for row in user("ps", "--all", "--json").json["runs"]}
    assert listed["bad-phase-text"] is listed["bad-version-text"] is None
    user("rm", "bad-phase-blob", "bad-version-null", "--keep-checkpoints", "--yes")
    refused = user("rm", "bad-record-text", "--yes", code=4).err
    assert "`orchestrator rm --keep-checkpoints bad-record-text`" in refused
    user("rm", "bad-record-text", "--keep-checkpoints", "--yes")
    left = {row["run"] for row in user("ps", "--all", "--json").json["runs"]}
    assert not left & {"bad-record-text", "bad-phase-blob", "bad-version-null"}
    assert "good-1" in left


def test_the_controller_finishes_what_is_not_damaged(damaged: Damaged) -> None:
    user = damaged.user
    with ledger(user.home) as database:
        database.execute("UPDATE runs SET phase = 'queued', due_at = 0.0 WHERE run = 'bad-record-text'")
        database.execute("UPDATE runs SET phase = 'queued', due_at = 0.0 WHERE typeof(run) = 'blob'")
        names = [name for name in damaged.marked["schedules"] if "-next-at-" not in name]
        marks = ", ".join("?" * len(names))  # for the others the controller would stay
        database.execute(f"DELETE FROM schedules WHERE name NOT IN ({marks})", names)
    shutil.copytree(SOURCE, user.folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    user.config(UNLIMITED)
    run = user.submitted(user.job(total=2, pace=0.01))
    wait_until(lambda: user.record(run).standing == "done", "the run to end")
    wait_until(lambda: user.owner() is None, "the controller to leave")
    log = (user.home / "controller.log").read_text()
    assert "bad-record-text is left alone: the ledger's record of bad-record-text cannot be read" in log
    assert "its run is unreadable (b'" in log
    assert "the schedule bad-version-text cannot be read: its version is unreadable" in log
    assert "Traceback" not in log
