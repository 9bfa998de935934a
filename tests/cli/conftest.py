"""A user with an empty home, and a user whose first run is done."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.calls import Answer, Caller, caller

ANOTHER_DISK = Path("/dev/shm")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Caller]:
    with caller(tmp_path) as found:
        found.config()
        yield found


@dataclass(frozen=True)
class Finished:
    """A run that hit its session limit once and is done, and the output of its `submit --follow`."""

    user: Caller
    run: str
    followed: Answer


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """Its home lies on another disk than its job and the pulled files, if possible. Tests only read it."""
    disk = ANOTHER_DISK if os.access(ANOTHER_DISK, os.W_OK) else None
    home = Path(tempfile.mkdtemp(prefix="orchestrator-test-", dir=disk))
    try:
        with caller(tmp_path_factory.mktemp("finished"), home) as found:
            found.config()
            answer = found(found.job(total=100), "--follow", program="submit")
            yield Finished(found, answer.out.split()[0], answer)
    finally:
        shutil.rmtree(home)


@pytest.fixture
def finished_home(finished: Finished) -> Path:
    return finished.user.home
