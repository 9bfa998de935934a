"""A user with an empty home, and a user whose first run is done."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.calls import CONFIG, Answer, Caller, caller
from tests.waiting import wait_until

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
    with ExitStack() as stack:
        for slower in (1, 3, 9):  # a machine that stalls may end a session before it has saved
            found = _ran(stack.enter_context(_somebody(tmp_path_factory.mktemp("finished"))), slower)
            sessions = found.user("show", found.run, "--json").json["sessions"]
            if len(sessions) > 1 and sessions[1]["order"]["resume_step"] > 0:
                break
        yield found


@contextmanager
def _somebody(folder: Path) -> Iterator[Caller]:
    disk = ANOTHER_DISK if os.access(ANOTHER_DISK, os.W_OK) else None
    home = Path(tempfile.mkdtemp(prefix="orchestrator-test-", dir=disk))
    try:
        with caller(folder, home) as user:
            yield user
    finally:
        shutil.rmtree(home)


def _ran(user: Caller, slower: int) -> Finished:
    """A run that trains for as long as its session may stay. Its controller has left: it writes no more."""
    user.config(CONFIG.replace("session_seconds: 5", f"session_seconds: {5 * slower}"))
    answer = user(user.job(total=100, pace=0.05 * slower), "--follow", program="submit")
    wait_until(lambda: user.owner() is None, "the controller to leave")
    return Finished(user, answer.out.split()[0], answer)


@pytest.fixture
def finished_home(finished: Finished) -> Path:
    return finished.user.home
