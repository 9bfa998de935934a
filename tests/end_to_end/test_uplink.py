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
from tests.end_to_end.user import QUICK, Role, User, fingerprints, living, train_in_one_piece, wait_until
from tests.stand_ins.drive import local_drive
from tests.stand_ins.drive.tokens import REFRESH, write_login
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed

pytestmark = pytest.mark.timeout(900)
STEPS = 60
SESSION_ROLES = (Role.AGENT, Role.GUARDIAN, Role.LEADER, Role.UPLINK)


@dataclass(frozen=True)
class Home:
    """A home store for a user's config. `secret` is what nobody but its own file may show."""

    options: Mapping[str, object]
    files: dict[str, str] = field(default_factory=dict)
    secret: str = "nothing that anybody would write"

    def configure(self, user: User, **options: object) -> None:
        here = {**QUICK, "uplink": True, **options}
        user.configure({"platforms": {"here": here}, "stores": {"home": self.options}})
        for name, text in self.files.items():
            (user.home / name).write_text(text)
            (user.home / name).chmod(0o600)

    def newest(self, user: User, run: str) -> int:
        """The newest step in the home store."""
        given = dict(self.options)
        store = catalog.build("home", str(given.pop("type")), given, user.home)
        return max((ref.step for ref in stored.names(store, run)), default=-1)


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
            yield Home(options, {"access": ACCESS_KEY, "secret": SECRET_KEY}, SECRET_KEY)
        case _:
            with local_drive() as drive:
                write_login(tmp_path / "login", drive.url)
                options = {"type": "drive", "folder": drive.disk.folder, "endpoint": drive.url}
                yield Home(options, {"drive-credentials.json": (tmp_path / "login").read_text()}, REFRESH)


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


def test_a_machine_that_vanishes_takes_only_the_last_seconds(
    new_user: Callable[..., User], home: Home
) -> None:
    """No controller runs while it ships, and nothing is left of the machine. So all that can be resumed is
    what the uplink shipped."""
    user = new_user()
    home.configure(user, uplink_seconds=1, uplink_silence_seconds=2)
    run = user.submit(
        command="python train.py {steps} --pause 0.25", work={"total": STEPS, "global_batch": 8}
    )
    user.wait_for(run, training, "its agent")
    user.run("down")
    wait_until(lambda: home.newest(user, run) > 0, "a checkpoint in the store")
    kill(user)
    there = home.newest(user, run)
    [session] = (user.home / "platforms" / "here").iterdir()
    shutil.rmtree(session)
    user.run("up", "--detach")
    record = user.wait_for_end(run)
    assert resumed_at(user, run) == [0, there]
    assert record.accepted
    said = user.run("logs", run)
    assert "uplink: shipped" in said
    left = [path for path in user.home.rglob("*") if path.is_file() and path.name not in home.files]
    assert not any(home.secret.encode() in text for text in (said.encode(), *(p.read_bytes() for p in left)))
    check_as_in_one_piece(user, run)
    user.run("down")
    user.wait_for_silence()


def test_nothing_durable_is_lost_because_it_was_not_shipped(new_user: Callable[..., User]) -> None:
    """The uplink holds back for an hour after the first checkpoint. When the agent dies, the machine still
    has newer ones."""
    user = new_user()
    FOLDER.configure(user, uplink_seconds=3600)
    run = user.submit(
        command="python train.py {steps} --pause 0.25", work={"total": STEPS, "global_batch": 8}
    )
    user.wait_for(run, training, "its agent")
    wait_until(lambda: list(user.home.glob("platforms/here/*/outbox/checkpoints/*/*")), "a checkpoint")
    wait_until(lambda: _saved(user) > max(0, FOLDER.newest(user, run)), "a checkpoint that is not shipped")
    kill(user)
    saved = _saved(user)
    user.wait_for_end(run)
    assert resumed_at(user, run) == [0, saved]
    check_as_in_one_piece(user, run)


def _saved(user: User) -> int:
    """The newest step on the machine of the session."""
    found = user.home.glob("platforms/here/*/outbox/checkpoints/*/manifest.json")
    return max((int(path.parent.name.partition("-")[0]) for path in found), default=-1)
