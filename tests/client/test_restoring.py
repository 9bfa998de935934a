"""A backup comes into an empty home, and what has happened since is not undone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator import Client
from orchestrator.client import Restored
from orchestrator.core.event import (
    Cancelled,
    Completed,
    Event,
    GaveUp,
    Prepared,
    Released,
    Requeued,
    Submitted,
)
from orchestrator.core.job import Recurrence
from orchestrator.core.lifecycle import Phase
from orchestrator.core.notice import NoticeKind, Target, addressed, schedule_missed
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.schedule import Schedule
from orchestrator.errors import InputError
from orchestrator.ledger import Ledger
from orchestrator.stores import deposits
from tests.client.homes import ledger_of
from tests.client.test_adopting import Houses, houses, old_client
from tests.core.runs import NOW, RUN, assigned, ended, job
from tests.postgresql import Server
from tests.simulation.clock import VirtualClock

__all__ = ["houses"]  # a fixture
ENDS = {
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
    assert "since the backup was made" in found.notes[-1]
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


class Other(NamedTuple):
    """A ledger in a database of its own, in which somebody works, and a backup of another."""

    ledger: Ledger
    backup: Path
    client: Client


@pytest.fixture
def other(tmp_path: Path, postgresql: Server) -> Iterator[Other]:
    with ledger_of(tmp_path) as ledger:
        ledger.submit(Submitted(RUN, job(), NOW))
    backup = Client(tmp_path).backups.write(tmp_path / "backup.tar.gz").path
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "url").write_text(postgresql.new_schema(f"other_{secrets.token_hex(4)}"))
    (tmp_path / "second" / "config.yaml").write_text("database: file:url\n")
    client = Client(tmp_path / "second")
    with client.ledgers.made() as ledger:
        yield Other(ledger, backup, client)


def test_a_ledger_with_schedules_only_is_not_overwritten(other: Other) -> None:
    nightly = job(name="nightly", schedule=Recurrence("0 1 * * *"))
    other.ledger.schedules.add(Schedule("nightly", nightly, "home", NOW, NOW))
    with pytest.raises(InputError, match="already has schedules"):
        other.client.backups.restore(other.backup)
    assert [each.name for each in other.ledger.schedules.all()] == ["nightly"]


def test_a_ledger_with_notifications_only_is_not_overwritten(other: Other) -> None:
    notice = schedule_missed("nightly", "nightly", NOW, NOW, "no controller ran")
    other.ledger.notifications.post(
        addressed(notice, [Target("phone", frozenset(NoticeKind))], None, "nightly", "x")
    )
    with pytest.raises(InputError, match="already has notifications"):
        other.client.backups.restore(other.backup)


def test_a_ledger_whose_controller_runs_is_not_overwritten(other: Other) -> None:
    with (
        other.ledger.take_over("alive", now=NOW),
        pytest.raises(InputError, match=r"is running: alive \(process"),
    ):
        other.client.backups.restore(other.backup)
    other.client.backups.restore(other.backup)
    assert other.client.run(RUN).record().run == RUN
