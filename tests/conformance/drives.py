"""A store in the local Drive, as a user configures it, for every test module that needs one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.stores import catalog
from orchestrator.stores.drive.store import DriveStore
from tests.stand_ins.drive import LocalDrive, local_drive
from tests.stand_ins.drive.tokens import write_login

PART = 256 * 1024  # the smallest part of an upload that Drive takes


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
