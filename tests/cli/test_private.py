"""A home is private to its owner, whatever its modes were; a start removes what a killed controller left."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress
from pathlib import Path

from tests.cli.calls import Caller
from tests.waiting import wait_until


def open_to_others(home: Path) -> list[str]:
    """Everything that others may read, write or lock, except a session's source: it keeps the modes of its
    archive, but its folder is closed. A controller and its sessions run meanwhile, so files may disappear;
    those do not count."""
    found = []
    for folder, folders, names in os.walk(home):
        for path in (Path(folder, name) for name in (*folders, *names)):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if mode & 0o077 and not stat.S_ISLNK(mode) and "source" not in path.parts:
                    found.append(str(path.relative_to(home)))
    return found


def test_a_home_is_made_private_and_a_start_clears_it_up(user: Caller, tmp_path: Path) -> None:
    user.home.chmod(0o755)
    (user.home / "config.yaml").chmod(0o644)
    answer = user("submit", user.job(total=2000))
    run = answer.out.split()[0]
    assert f"{user.home} was open to other users (0755) and is now private (0700)" in answer.err
    user.wait_for_checkpoint(run)
    assert user.home.stat().st_mode & 0o777 == 0o700
    assert open_to_others(user.home) == []
    user("pull", run, "-o", str(tmp_path / "pulled"))
    pulled = (tmp_path / "pulled" / "state.json").stat().st_mode & 0o777
    assert pulled == 0o666 & ~umask(), "pulled files have the user's usual modes"
    owner = user.owner()
    assert owner is not None
    os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: user.owner() is None, "the controller to be gone")
    left = [
        user.home / "staged" / f"{run}-s00" / "blobs",
        user.home / "runs" / run / ".tmp-live.json-1-2",
        user.home / "platforms" / "here" / ".tmp-orchestrator-left",
    ]
    for path in left:
        path.mkdir(parents=True)
    (user.home / "staged").chmod(0o700)
    (user.home / "ledger.sqlite.lock").chmod(0o644)
    again = user("up", "--detach")
    assert "open to other users" not in again.err
    wait_until(lambda: not any(path.exists() for path in left), "the start to clear up")
    assert open_to_others(user.home) == []
    user("cancel", run)
    user.wait_for_phase(run, "cancelled")


def test_logs_follow_no_link(user: Caller, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (user.home / "controller.log").symlink_to(victim)
    told = user("submit", user.job(), code=4)
    assert "controller.log" in told.err
    assert victim.read_text() == "precious"


def umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
