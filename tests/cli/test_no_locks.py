"""A home, or a session's folder, on a file system without locks: refused with its path, the reason and the
remedy."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import BINARIES, UNLIMITED, Caller

WITHOUT = Path(__file__).parents[1] / "no_locks.py"
AT_ONCE = 25.0  # less than the 30 s that SQLite waits for another process
LAUNCH = """
import sys
from pathlib import Path
from orchestrator.files import NoLocks
from tests.platforms.test_process import Box
box = Box(Path(sys.argv[1]))
platform = box.platform()
platform.prepare(box.order, box.materials())
try:
    platform.launch(box.order)
except NoLocks as error:
    print(error)
"""


def called(user: Caller, kind: str, number: int, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(WITHOUT), kind, str(number), str(BINARIES / "orchestrator"), *words],
        cwd=user.folder, env=user.environment(), capture_output=True, text=True, timeout=AT_ONCE, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "number", "words"),
    [
        ("flock", errno.ENOLCK, ("submit", "job.yaml")),
        ("flock", errno.ENOSYS, ("up",)),
        ("all", errno.ENOLCK, ("submit", "job.yaml")),
        ("all", errno.EOPNOTSUPP, ("health",)),
        ("all", errno.EINVAL, ("ps",)),
        ("all", errno.ENOLCK, ("doctor",)),
    ],
)
def test_a_home_without_locks_is_refused_at_once(
    user: Caller, kind: str, number: int, words: tuple[str, ...]
) -> None:
    user.config(UNLIMITED)
    user.job()
    (user.home / "ledger.sqlite").touch(0o600)
    code, said = called(user, kind, number, *words)
    assert code == 3
    assert f"{user.home}" in said
    assert "its file system has no locks (" in said
    assert "set ORCHESTRATOR_HOME (or --home) to a folder on a disk with locks" in said


def test_a_session_whose_folder_has_no_locks_is_not_started(tmp_path: Path) -> None:
    words = [
        sys.executable,
        str(WITHOUT),
        "flock",
        str(errno.ENOLCK),
        sys.executable,
        "-c",
        LAUNCH,
        str(tmp_path),
    ]
    said = subprocess.run(words, cwd=WITHOUT.parents[1], capture_output=True, text=True, check=True).stdout
    assert f"{tmp_path}/sessions/a-s01/lock cannot be locked" in said
    assert "to a folder on a disk with locks" in said
    assert not (tmp_path / "sessions" / "a-s01" / "agent.pid").exists()
