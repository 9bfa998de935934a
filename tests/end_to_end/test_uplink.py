"""Sessions with an uplink, by real commands: what a machine takes with it when it vanishes, and what not."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.core.event import Assigned
from orchestrator.core.run import RunRecord
from orchestrator.stores import catalog
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store
from tests.conformance.age_keys import encrypted
from tests.end_to_end.user import (
    QUICK,
    Role,
    User,
    fingerprints,
    gated,
    living,
    opens,
    train_in_one_piece,
    wait_until,
)
from tests.leaks import Leak, Leaks
from tests.stand_ins.drive import local_drive
from tests.stand_ins.drive.tokens import ACCESS_PREFIX, CLIENT_SECRET, REFRESH, write_login
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

pytestmark = pytest.mark.timeout(900)
STEPS, GATE = 60, 40  # it stays there until its machine has vanished
JOB_SECRET = ("PROOF_TOKEN", "a-token-of-the-job")
SESSION_ROLES = (Role.AGENT, Role.GUARDIAN, Role.LEADER, Role.UPLINK)


@dataclass(frozen=True)
class Home:
    """A home store for a user's config; if it is encrypted, with the keys of `age_keys`. Its `secrets` are in
    `files` of the user's home."""

    options: Mapping[str, object]
    files: dict[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)

    def configure(self, user: User, **options: object) -> None:
        here = {**QUICK, "uplink": True, **options}
        user.configure({"platforms": {"here": here}, "stores": {"home": self.options}})
        for name, text in self.files.items():
            (user.home / name).write_text(text)
            (user.home / name).chmod(0o600)

    def store(self, user: User) -> Store:
        given = {name: value for name, value in self.options.items() if name != "encrypt"}
        store = catalog.build("home", str(given.pop("type")), given, user.home)
        return encrypted(store) if "encrypt" in self.options else store

    def newest(self, user: User, run: str) -> int:
        """The newest step in the home store."""
        return max((ref.step for ref in stored.names(self.store(user), run)), default=-1)


FOLDER = Home({"type": "folder", "path": "store"})


@pytest.fixture(params=["folder", "s3", "drive"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    match request.param:
        case "folder":
            yield FOLDER
        case "s3":
            server: Seaweed = request.getfixturevalue("seaweedfs")
            options = {
                "type": "s3", "preset": "seaweedfs", "endpoint": server.endpoint, "bucket": BUCKET,
                "prefix": server.prefix(), "access_key": "file:access", "secret_key": "file:secret",
            }  # fmt: skip
            keys = {"access": ACCESS_KEY, "secret": SECRET_KEY}
            yield Home(options, keys, keys)
        case _:
            with local_drive() as drive:
                write_login(tmp_path / "login", drive.url)
                options = {"type": "drive", "folder": drive.disk.folder, "endpoint": drive.url}
                files = {"drive-credentials.json": (tmp_path / "login").read_text()}
                yield Home(
                    options, files, {"refresh": REFRESH, "client": CLIENT_SECRET, "token": ACCESS_PREFIX}
                )


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


def check_only_training_has_secrets(leaks: Leaks, user: User, session: Path) -> None:
    """While the session runs: those of its job, in its environment, and no other anywhere."""
    assert leaks.in_folder(session) == []
    [leader] = user.by_role()[Role.LEADER]
    assert leaks.in_processes(session) == [Leak("job", f"environ of {' '.join(leader.command)}")]


def test_a_machine_that_vanishes_takes_only_the_last_seconds(
    new_user: Callable[..., User], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No controller runs while it ships, and nothing is left of the machine. So all that can be resumed is
    what the uplink shipped. All the time, secrets are only where they belong."""
    monkeypatch.setenv(*JOB_SECRET)
    leaks = Leaks({"job": JOB_SECRET[1], **home.secrets})
    user = new_user()
    home.configure(user, uplink_seconds=1, uplink_silence_seconds=2)
    run = user.submit(
        command=gated(user, GATE, pause=0.25),
        work={"total": STEPS, "global_batch": 8},
        secrets=[JOB_SECRET[0]],
    )
    user.wait_for(run, training, "its agent")
    user.run("down")
    wait_until(lambda: home.newest(user, run) > 0, "a checkpoint in the store")
    [session] = (user.home / "platforms" / "here").iterdir()
    check_only_training_has_secrets(leaks, user, session)
    kill(user)
    there = home.newest(user, run)
    shutil.rmtree(session)
    opens(user, GATE)
    user.run("up", "--detach")
    record = user.wait_for_end(run)
    assert resumed_at(user, run) == [0, there]
    assert record.accepted
    said = user.run("logs", run)
    assert "uplink: shipped" in said
    assert leaks.in_text("logs", said) == []
    assert leaks.in_store(home.store(user)) == []
    assert {leak.where for leak in leaks.in_folder(user.home)} == set(home.files)
    check_as_in_one_piece(user, run)
    user.run("down")
    user.wait_for_silence()


def test_nothing_durable_is_lost_because_it_was_not_shipped(new_user: Callable[..., User]) -> None:
    """The uplink holds back for an hour after the first checkpoint. When the agent dies, the machine still
    has newer ones."""
    user = new_user()
    FOLDER.configure(user, uplink_seconds=3600)
    run = user.submit(command=gated(user, GATE, pause=0.25), work={"total": STEPS, "global_batch": 8})
    user.wait_for(run, training, "its agent")
    wait_until(lambda: list(user.home.glob("platforms/here/*/outbox/checkpoints/*/*")), "a checkpoint")
    wait_until(lambda: _saved(user) > max(0, FOLDER.newest(user, run)), "a checkpoint that is not shipped")
    kill(user)
    saved = _saved(user)
    opens(user, GATE)
    user.wait_for_end(run)
    assert resumed_at(user, run) == [0, saved]
    check_as_in_one_piece(user, run)


def _saved(user: User) -> int:
    """The newest step on the machine of the session."""
    found = user.home.glob("platforms/here/*/outbox/checkpoints/*/manifest.json")
    return max((int(path.parent.name.partition("-")[0]) for path in found), default=-1)
