"""A backup comes into an empty home, and what has happened since is not undone."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PosixPath
from typing import Any, NamedTuple

import pytest

from orchestrator import Client
from orchestrator.client import Restored, backing_up
from orchestrator.core.event import (
    Cancelled,
    CheckpointAccepted,
    Completed,
    Event,
    GaveUp,
    Prepared,
    Released,
    Requeued,
    Submitted,
)
from orchestrator.core.job import NoticeKind, Precision, Recurrence
from orchestrator.core.lifecycle import Phase
from orchestrator.core.notice import Target, addressed, schedule_missed
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.schedule import Schedule
from orchestrator.core.speed import Measurement
from orchestrator.errors import InputError
from orchestrator.ledger import Ledger
from orchestrator.stores import deposits
from tests.client.homes import ledger_of
from tests.client.test_adopting import Houses, houses, old_client
from tests.core.runs import NOW, RUN, assigned, ended, job
from tests.postgresql import Server
from tests.simulation.clock import VirtualClock

__all__ = ["houses"]  # a fixture
ENDS: dict[Phase, Completed | GaveUp | Cancelled] = {
    Phase.DONE: Completed(NOW + 30, "all steps are trained"),
    Phase.FAILED: GaveUp(NOW + 30, "it crashed again"),
    Phase.CANCELLED: Cancelled(NOW + 30, "cancelled by the user"),
}


def restored(path: Path, home: Path) -> tuple[Client, Restored]:
    home.mkdir(mode=0o700)
    client = Client(home, clock=VirtualClock(NOW + 60))
    return client, client.backups.restore(path)


def backed_up(houses: Houses, *more: Event) -> tuple[Path, RunRecord]:
    """A backup of the run after these events."""
    old = old_client(houses)
    with ledger_of(houses.old.home) as ledger:
        record = ledger.record(RUN)
        record = ledger.append(record, more, due_at=None) if more else record
    return old.backups.write(houses.old.home.parent / "backup.tar.gz").path, record


def goes_on(houses: Houses, record: RunRecord, *events: Event) -> None:
    """What the old controller does after the backup, and tells the store."""
    for event in events:
        record = apply(record, event)
    houses.record = record
    houses.tell()


GONE = (ended(Outcome.LOST), Requeued(NOW, "lost", 0))
STAGES: dict[str, tuple[tuple[Event, ...], tuple[Event, ...]]] = {  # before the backup, and after it
    "queued": (GONE, (assigned(2), Prepared(NOW), GONE[0])),
    "preparing": ((*GONE, assigned(2)), (Prepared(NOW), GONE[0])),
    "running": ((), (GONE[0],)),
}


@pytest.mark.parametrize("phase", ENDS)
@pytest.mark.parametrize("stage", STAGES)
def test_a_run_that_ended_after_the_backup_is_over(
    houses: Houses, tmp_path: Path, phase: Phase, stage: str
) -> None:
    """A cancelled one would train again, and cost what nobody wants to spend."""
    before, later = STAGES[stage]
    path, record = backed_up(houses, *before)
    goes_on(houses, record, *later, ENDS[phase])
    client, done = restored(path, tmp_path / "third")
    [found] = done.revived
    assert (found.phase, found.step) == (phase, 10)
    assert "since then" in found.notes[-1]
    after = client.run(RUN).record()
    assert (after.phase, after.reason) == (phase, ENDS[phase].reason)
    looked_for = {"queued": [], "preparing": [f"{RUN}-s02"], "running": [f"{RUN}-s01"]}[stage]
    assert [each.session for each in after.strays if not each.ended] == looked_for
    said = deposits.said_of(houses.store, RUN)
    assert said is not None
    assert said.deposit is not None
    assert said.deposit.phase is phase, "the store keeps the last word"


def test_what_the_store_was_told_before_the_backup_ends_nothing(houses: Houses, tmp_path: Path) -> None:
    """The run had failed and was released; the store did not hear of that."""
    path, record = backed_up(houses, GONE[0], ENDS[Phase.FAILED], Released(NOW + 31))
    goes_on(houses, houses.record, GONE[0], ENDS[Phase.FAILED])
    assert record.phase is Phase.QUEUED
    _, done = restored(path, tmp_path / "third")
    assert [each.phase for each in done.revived] == [Phase.QUEUED]


def test_a_run_whose_checkpoints_are_not_here_is_told(houses: Houses, tmp_path: Path) -> None:
    """Neither the backup has them, nor the store of the new machine."""
    path, _ = backed_up(houses)
    (tmp_path / "shared").rename(tmp_path / "away")
    client, done = restored(path, tmp_path / "third")
    [found] = done.revived
    assert (found.phase, found.step) == (Phase.RUNNING, None)
    assert found.notes[-1].startswith("step 10 has no checkpoint here: bring what the old machine had")
    assert found.notes[-1].endswith("or it is held")
    assert not any("goes on" in each for each in found.notes)
    assert [each.ref.step for each in client.run(RUN).record().accepted] == [10]


def test_the_newest_checkpoint_that_is_here_counts(houses: Houses, tmp_path: Path) -> None:
    houses.accept(20)
    path, record = backed_up(houses, *(CheckpointAccepted(NOW, each) for each in houses.record.accepted[1:]))
    shutil.rmtree(tmp_path / "shared" / "runs" / RUN / "checkpoints" / record.accepted[1].name)
    _, done = restored(path, tmp_path / "third")
    [found] = done.revived
    assert found.step == 10
    assert found.notes[-1] == "step 20 has no checkpoint here: it goes on from step 10"


PLATFORMS = """
platforms:
  kaggle: {type: kaggle, username: somebody, key: env:KAGGLE_KEY}
  here: {type: process}
"""


def home_with_ids(home: Path) -> Client:
    """It has been on Kaggle, and on a platform that the config has no more."""
    home.mkdir(mode=0o700)
    with ledger_of(home) as ledger:
        ledger.submit(Submitted(RUN, job(), NOW))
    (home / "config.yaml").write_text(PLATFORMS)
    for name in ("kaggle", "here", "gone"):
        (home / "platforms" / name).mkdir(parents=True)
        (home / "platforms" / name / "home-id").write_text("a1b2c3d4e5f6")
    return Client(home)


def test_a_restored_home_goes_by_its_old_ids_on_the_platforms(tmp_path: Path) -> None:
    """By them it finds what the sessions of the first home left there."""
    path = home_with_ids(tmp_path / "one").backups.write(tmp_path / "backup.tar.gz").path
    there = tmp_path / "two" / "platforms"
    (there / "kaggle").mkdir(parents=True)
    (there / "kaggle" / "home-id").write_text("0123456789ab")  # such as from an early look with `doctor`
    [note] = [each for each in Client(tmp_path / "two").backups.restore(path).notes if "id" in each]
    assert (there / "kaggle" / "home-id").read_text() == "a1b2c3d4e5f6"
    assert (there / "kaggle" / "home-id.before").read_text() == "0123456789ab"
    assert note.startswith("on kaggle this home now goes by the backup's id")
    assert not (there / "here").exists()
    Client(tmp_path / "three").backups.restore(path)
    assert (tmp_path / "three" / "platforms" / "kaggle" / "home-id").read_text() == "a1b2c3d4e5f6"


def test_an_id_of_a_home_that_is_none_is_refused(tmp_path: Path) -> None:
    home = home_with_ids(tmp_path / "one")
    (tmp_path / "one" / "platforms" / "kaggle" / "home-id").write_bytes(b"\xff/../x")
    path = home.backups.write(tmp_path / "backup.tar.gz").path
    client = Client(tmp_path / "two")
    assert "id of this home on kaggle" in client.backups.restore(path, dry_run=True).refused
    with pytest.raises(InputError, match="id of this home on kaggle"):
        client.backups.restore(path)
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(("left", "refused"), [(b"", False), (b"no ledger, but somebody's", True)])
def test_a_restore_that_was_killed_can_be_made_again(tmp_path: Path, left: bytes, refused: bool) -> None:
    """It may have left an empty ledger. Anything else may be somebody's."""
    path = home_with_ids(tmp_path / "one").backups.write(tmp_path / "backup.tar.gz").path
    (tmp_path / "two").mkdir()
    ledger = tmp_path / "two" / "ledger.sqlite"
    ledger.write_bytes(left)
    client = Client(tmp_path / "two")
    assert ("not an SQLite database" in client.backups.restore(path, dry_run=True).refused) is refused
    if not refused:
        client.backups.restore(path)
    assert (ledger.read_bytes() == left) is refused


def test_a_database_by_the_ledgers_name_is_kept(tmp_path: Path) -> None:
    path = home_with_ids(tmp_path / "one").backups.write(tmp_path / "backup.tar.gz").path
    (tmp_path / "two").mkdir()
    ledger = tmp_path / "two" / "ledger.sqlite"
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("CREATE TABLE photos AS SELECT 'mine' AS name")
    client = Client(tmp_path / "two")
    assert "already has a ledger" in client.backups.restore(path, dry_run=True).refused
    with pytest.raises(InputError, match="already has a ledger"):
        client.backups.restore(path)
    with closing(sqlite3.connect(ledger)) as connection:
        assert connection.execute("SELECT name FROM photos").fetchall() == [("mine",)]


def test_a_run_that_is_submitted_while_its_home_is_restored_is_kept(houses: Houses, tmp_path: Path) -> None:
    """The last step of a restore would put another ledger into the place of the run's."""
    path, _ = backed_up(houses)
    home = tmp_path / "two"

    def submit(said: str) -> None:
        if said == RUN:  # it looks for the run's checkpoints, which may take long
            with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
                ledger.submit(Submitted("meanwhile-abcdefgh", job(), NOW))

    with pytest.raises(InputError, match="already has a ledger"):
        Client(home).backups.restore(path, progress=submit)
    with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
        assert [each.run for each in ledger.summaries()] == ["meanwhile-abcdefgh"]


class Superseded(PosixPath):
    """A file that another one takes the place of just after it was opened, as `inputs` of a live home."""

    def open(self, *args: Any, **kwargs: Any) -> Any:
        stream = super().open(*args, **kwargs)
        self.unlink()
        Path(str(self)).write_bytes(b"another, and a longer one")
        return stream


def test_a_file_that_is_superseded_while_it_is_read_is_backed_up_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"the first")
    with tarfile.open(tmp_path / "tar", "w") as tar:
        backing_up._Writing(tar).file("inputs/file", Superseded(tmp_path / "file"))
    with tarfile.open(tmp_path / "tar") as tar:
        read = tar.extractfile("inputs/file")
        assert read is not None
        assert read.read() == b"the first"


class Other(NamedTuple):
    """A ledger in a database of its own, in which somebody works, and a backup of another."""

    ledger: Ledger
    backup: Path
    client: Client

    def refuses(self, words: str) -> None:
        """A refused restore has changed nothing, and a dry run knows of it."""
        home = self.client.home.path
        before = contents(home)
        assert words in self.client.backups.restore(self.backup, dry_run=True).refused
        with pytest.raises(InputError) as caught:
            self.client.backups.restore(self.backup)
        assert words in str(caught.value)
        assert contents(home) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def other(tmp_path: Path, postgresql: Server) -> Iterator[Other]:
    first = home_with_ids(tmp_path / "first")
    (tmp_path / "first" / "bundles").mkdir()
    (tmp_path / "first" / "bundles" / "a").write_text("source")
    backup = first.backups.write(tmp_path / "backup.tar.gz").path
    home = tmp_path / "second"
    (home / "platforms" / "kaggle").mkdir(parents=True)
    (home / "platforms" / "kaggle" / "home-id").write_text("0123456789ab")
    (home / "url").write_text(postgresql.new_schema(f"other_{secrets.token_hex(4)}"))
    (home / "config.yaml").write_text("database: file:url\n")
    client = Client(home)
    with client.ledgers.made() as ledger:
        yield Other(ledger, backup, client)


def test_a_ledger_with_schedules_only_is_not_overwritten(other: Other) -> None:
    nightly = job(name="nightly", schedule=Recurrence("0 1 * * *"))
    other.ledger.schedules.add(Schedule("nightly", nightly, "home", NOW, NOW))
    other.refuses("already has schedules")
    assert [each.name for each in other.ledger.schedules.all()] == ["nightly"]


def test_a_ledger_that_has_only_learned_speeds_is_not_overwritten(other: Other) -> None:
    other.ledger.add_measurement("key", Measurement("T4", Precision.FP16, 8, 100.0, 60.0, NOW))
    other.refuses("already has measurements")


def test_a_ledger_with_notifications_only_is_not_overwritten(other: Other) -> None:
    notice = schedule_missed("nightly", "nightly", NOW, NOW, "no controller ran")
    other.ledger.notifications.post(
        addressed(notice, [Target("phone", frozenset(NoticeKind))], None, "nightly", "x")
    )
    other.refuses("already has notifications")


def test_a_ledger_whose_controller_runs_is_not_overwritten(other: Other) -> None:
    with other.ledger.take_over("alive", now=NOW):
        other.refuses("is running: alive (process")
    other.client.backups.restore(other.backup)
    assert other.client.run(RUN).record().run == RUN
    ids = other.client.home.path / "platforms" / "kaggle"
    assert (ids / "home-id").read_text() == "a1b2c3d4e5f6"
    assert (ids / "home-id.before").read_text() == "0123456789ab"


def test_the_database_that_the_backups_config_names_is_looked_at(other: Other, tmp_path: Path) -> None:
    """And a controller of the old home is, which lies in PostgreSQL."""
    backup = other.client.backups.write(tmp_path / "shared.tar.gz").path
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "url").write_text((other.client.home.path / "url").read_text())
    other.ledger.submit(Submitted(RUN, job(), NOW))
    other._replace(backup=backup, client=Client(tmp_path / "third")).refuses("already has runs")
    fourth = Client(tmp_path / "fourth")
    refused = fourth.backups.restore(backup, dry_run=True).refused
    assert f"{backup}/config.yaml" in refused
    assert "fourth/url cannot be read" in refused
    (tmp_path / "fourth").mkdir()
    (tmp_path / "fourth" / "config.yaml").write_text("database: sqlite:///mine.sqlite\n")
    with other.ledger.take_over("alive", now=NOW):
        other._replace(backup=backup, client=fourth).refuses("second is in use by a controller (alive")
    assert fourth.backups.restore(backup, dry_run=True).refused == ""
    assert [each.name for each in (tmp_path / "fourth").iterdir()] == ["config.yaml"]
