"""A store in the local Drive, as a user configures it, for every test module that needs one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import Transient
from orchestrator.stores import catalog
from orchestrator.stores.drive.account import Account, Login
from orchestrator.stores.drive.store import DriveStore
from tests.stand_ins.drive import LocalDrive, local_drive
from tests.stand_ins.drive.tokens import write_login
from tests.waiting import PATIENCE

PART = 256 * 1024  # the smallest part of an upload that Drive takes
DATA = random.Random(3).randbytes(4 * PART + 1000)


@pytest.fixture
def drive() -> Iterator[LocalDrive]:
    with local_drive() as found:
        yield found


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, drive: LocalDrive) -> Path:
    """The orchestrator's home, with the login that `orchestrator init drive` leaves."""
    found = tmp_path_factory.mktemp("home")
    write_login(found / "drive-credentials.json", drive.url)
    return found


def configured(drive: LocalDrive, home: Path, **options: object) -> DriveStore:
    given = {"folder": drive.disk.folder, "endpoint": drive.url, **options}
    found = catalog.build("mine", "drive", given, home)
    assert isinstance(found, DriveStore)
    return found


@pytest.fixture
def store(drive: LocalDrive, home: Path) -> DriveStore:
    return configured(drive, home)


def in_parts(drive: LocalDrive, home: Path, timeout: float = PATIENCE) -> DriveStore:
    account = Account("mine", Login(home / "drive-credentials.json"), drive.url, timeout=timeout)
    return DriveStore(account, drive.disk.folder, chunk=PART)


@pytest.fixture
def parts(drive: LocalDrive, home: Path) -> DriveStore:
    """A store that sends and fetches in five parts."""
    return in_parts(drive, home)


def objects(drive: LocalDrive) -> list[bytes]:
    return [
        file.data for file in drive.disk.files.values() if file.properties.get("orchestrator") == "object"
    ]


def stubborn(act: Callable[[], object], tries: int = 6) -> None:
    """As the retrying wrapper, without its pauses."""
    for _ in range(tries):
        try:
            act()
        except Transient:
            continue
        return
    raise AssertionError(f"still failing after {tries} tries")
