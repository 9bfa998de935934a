"""Registers in Drive against other processes, lost answers, and a Drive that does not keep its word."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.errors import BackendError, Conflict, Rejected, Transient
from orchestrator.stores.drive.store import DriveStore
from orchestrator.stores.register import Held
from orchestrator.stores.retrying import RetryingStore
from tests.conformance.drives import configured, drive, home, store
from tests.conformance.register_suite import KEY, incremented
from tests.stand_ins.drive import LocalDrive

__all__ = ["drive", "home", "store"]  # fixtures


def files(drive: LocalDrive, kind: str) -> list[str]:
    found = (file for file in drive.disk.files.values() if file.properties.get("orchestrator") == kind)
    return sorted(file.fields["title"] for file in found)


@pytest.mark.parametrize("round_", range(5))
def test_of_several_processes_that_create_one_wins(drive: LocalDrive, home: Path, round_: int) -> None:
    """Each has a login and memory of its own, and none of them knows the directory yet."""
    together = threading.Barrier(4)

    def claim(number: int) -> bool:
        registers = configured(drive, home).registers
        assert registers.read("claim") is None
        together.wait()
        try:
            registers.swap("claim", f"{round_}-{number}".encode(), None)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(claim, range(4)))
    assert won.count(True) == 1
    held = configured(drive, home).registers.read("claim")
    assert held is not None
    assert held.value == f"{round_}-{won.index(True)}".encode()
    assert files(drive, "register") == ["claim"], "losers leave nothing"
    assert files(drive, "directory") == [".registers"]
    assert files(drive, "probe") == []


def test_several_processes_create_different_keys(drive: LocalDrive, home: Path) -> None:
    def create(number: int) -> None:
        registers = configured(drive, home).registers
        for turn in range(3):
            registers.swap(f"a/{number}-{turn}", b"1", None)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(create, number) for number in range(3)]:
            done.result()
    expected = sorted(f"a/{number}-{turn}" for number in range(3) for turn in range(3))
    assert list(configured(drive, home).registers.list("a/")) == expected


def test_one_that_was_created_again_elsewhere_is_found(drive: LocalDrive, home: Path) -> None:
    here, there = configured(drive, home).registers, configured(drive, home).registers
    version = here.swap(KEY, b"1", None)
    there.delete(KEY)
    with pytest.raises(Conflict):
        here.swap(KEY, b"2", version)
    again = there.swap(KEY, b"3", None)
    assert here.read(KEY) == Held(b"3", again)
    assert here.swap(KEY, b"4", again)


def test_a_deletion_that_was_cut_off_leaves_the_key_free(drive: LocalDrive, store: DriveStore) -> None:
    store.registers.swap(KEY, b"1", None)
    drive.fail("500", "update", times=5)
    with pytest.raises(Transient):
        store.registers.delete(KEY)
    drive.faults.clear()
    assert store.registers.read(KEY) is None
    assert store.registers.swap(KEY, b"2", None)


def test_a_swap_is_never_sent_twice_by_itself(drive: LocalDrive, store: DriveStore) -> None:
    version = store.registers.swap(KEY, b"1", None)
    before = drive.requests.count("update")
    drive.fail("drop-after", "update")
    with pytest.raises(Transient):
        store.registers.swap(KEY, b"2", version)
    assert drive.requests.count("update") == before + 1
    held = store.registers.read(KEY)
    assert held is not None
    assert held.value == b"2", "it was received"


@pytest.mark.parametrize("on", ["update", "insert", "patch", "get", "media", "delete", "ids"])
@pytest.mark.parametrize("kind", ["drop", "drop-after", "503", "rate", "html-ok", "empty"])
def test_with_lost_answers_each_count_counts_once(
    drive: LocalDrive, store: DriveStore, kind: str, on: str
) -> None:
    registers = RetryingStore(store, attempts=20, sleep=lambda _: None).registers
    assert registers is not None
    for number in range(3):
        drive.fail(kind, on, times=2, skip=number)
        incremented(registers)
    drive.faults.clear()
    held = registers.read(KEY)
    assert held is not None
    assert held.value == b"3"


def test_a_value_that_arrives_damaged_is_no_success(drive: LocalDrive, store: DriveStore) -> None:
    version = store.registers.swap(KEY, b"1", None)
    drive.fail("damage", "update")
    with pytest.raises(Transient, match="damaged"):
        store.registers.swap(KEY, b"2", version)


@pytest.mark.parametrize("how", ["ignores conditions", "keeps etags"])
def test_a_drive_that_ignores_conditions_gets_no_registers(
    drive: LocalDrive, store: DriveStore, how: str
) -> None:
    drive.disk.ignores_conditions = how == "ignores conditions"
    drive.disk.keeps_etags = how == "keeps etags"
    with pytest.raises(Rejected, match="If-Match"):
        store.registers.swap(KEY, b"1", None)
    assert store.registers.read(KEY) is None
    assert files(drive, "register") == files(drive, "probe") == []


@pytest.mark.parametrize("damage", ["trash", "bytes", "gone"])
def test_a_lost_directory_is_told_and_never_replaced(
    drive: LocalDrive, home: Path, store: DriveStore, damage: str
) -> None:
    """A new one would forget every fence."""
    store.registers.swap(KEY, b"1", None)
    (directory,) = (file for file in drive.disk.files.values() if file.fields["title"] == ".registers")
    if damage == "trash":
        directory.is_trashed = True
    elif damage == "bytes":
        directory.data = b'{"ids": {"a": 1}}'
    else:
        del drive.disk.files[directory.id]
    fresh = configured(drive, home).registers
    for act in (lambda: fresh.read(KEY), lambda: fresh.swap(KEY, b"2", None), lambda: list(fresh.list(""))):
        with pytest.raises(Rejected, match="restore"):
            act()
    if damage == "trash":
        directory.is_trashed = False
        assert fresh.read(KEY) is not None


def test_a_register_that_is_too_large_is_not_read(drive: LocalDrive, store: DriveStore) -> None:
    store.registers.swap(KEY, b"1", None)
    (register,) = (file for file in drive.disk.files.values() if file.fields["title"] == KEY)
    register.data = b"x" * 200_000
    with pytest.raises(BackendError, match="too large"):
        store.registers.read(KEY)


def test_one_in_the_trash_does_not_count(drive: LocalDrive, store: DriveStore) -> None:
    store.registers.swap(KEY, b"1", None)
    (register,) = (file for file in drive.disk.files.values() if file.fields["title"] == KEY)
    register.is_trashed = True
    assert store.registers.read(KEY) is None
    store.registers.swap(KEY, b"2", None)
    held = store.registers.read(KEY)
    assert held is not None
    assert held.value == b"2"
