"""Sessions with an uplink, by real commands: what a machine takes with it when it vanishes, and what not."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable

import pytest

from orchestrator.core.event import Assigned
from orchestrator.core.run import RunRecord
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.folder import FolderStore
from tests.end_to_end.user import Role, User, fingerprints, living, train_in_one_piece, wait_until

pytestmark = pytest.mark.timeout(900)
STEPS = 60
SESSION_ROLES = (Role.AGENT, Role.GUARDIAN, Role.LEADER, Role.UPLINK)


def newest(user: User, run: str) -> int:
    """The newest step in the home store."""
    refs = stored.names(FolderStore(user.home / "store"), run)
    return max((ref.step for ref in refs), default=-1)


def resumed_at(user: User, run: str) -> list[int]:
    """The steps at which the run's sessions began."""
    history = (each.event for each in user.history(run))
    return [event.order.resume_step for event in history if isinstance(event, Assigned)]


def kill(user: User) -> None:
    """Every process of the session, at once. An agent and its guardian go first, and nothing restarts."""
    found = user.by_role()
    assert all(found[role] for role in SESSION_ROLES), found
    doomed = [process for role in SESSION_ROLES for process in found[role]]
    for process in doomed:
        process.send(signal.SIGKILL)
    wait_until(lambda: not any(living(each.pid) == each for each in doomed), "the killed to die")


def check_as_in_one_piece(user: User, run: str) -> None:
    user.run("pull", run, "-o", str(user.folder / "final"))
    expected = train_in_one_piece(user.folder / "one-piece", "train.py", STEPS)
    assert fingerprints(user.folder / "final") == expected


def training(record: RunRecord) -> bool:
    return record.session is not None and record.session.incarnation is not None


def test_a_machine_that_vanishes_takes_only_the_last_seconds(new_user: Callable[..., User]) -> None:
    """No controller runs while it ships, and nothing is left of the machine. So all that can be resumed is
    what the uplink shipped."""
    user = new_user(uplink=True, uplink_seconds=1, uplink_silence_seconds=2)
    run = user.submit(
        command="python train.py {steps} --pause 0.25", work={"total": STEPS, "global_batch": 8}
    )
    user.wait_for(run, training, "its agent")
    user.run("down")
    wait_until(lambda: newest(user, run) > 0, "a checkpoint in the store")
    kill(user)
    there = newest(user, run)
    [session] = (user.home / "platforms" / "here").iterdir()
    shutil.rmtree(session)
    user.run("up", "--detach")
    record = user.wait_for_end(run)
    assert resumed_at(user, run) == [0, there]
    assert record.accepted
    assert "uplink: shipped" in user.run("logs", run)
    check_as_in_one_piece(user, run)
    user.run("down")
    user.wait_for_silence()


def test_nothing_durable_is_lost_because_it_was_not_shipped(new_user: Callable[..., User]) -> None:
    """The uplink holds back for an hour after the first checkpoint. When the agent dies, the machine still
    has newer ones."""
    user = new_user(uplink=True, uplink_seconds=3600)
    run = user.submit(
        command="python train.py {steps} --pause 0.25", work={"total": STEPS, "global_batch": 8}
    )
    user.wait_for(run, training, "its agent")
    wait_until(lambda: list(user.home.glob("platforms/here/*/outbox/checkpoints/*/*")), "a checkpoint")
    wait_until(lambda: _saved(user) > max(0, newest(user, run)), "a checkpoint that is not shipped")
    kill(user)
    saved = _saved(user)
    user.wait_for_end(run)
    assert resumed_at(user, run) == [0, saved]
    check_as_in_one_piece(user, run)


def _saved(user: User) -> int:
    """The newest step on the machine of the session."""
    found = user.home.glob("platforms/here/*/outbox/checkpoints/*/manifest.json")
    return max((int(path.parent.name.partition("-")[0]) for path in found), default=-1)
