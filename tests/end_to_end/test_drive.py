"""A run whose home store is a folder of the local Drive, in bad weather and through a killed session."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

from tests.end_to_end.user import QUICK, Role, User, fingerprints, train_in_one_piece
from tests.stand_ins.drive import local_drive
from tests.stand_ins.drive.tokens import ACCESS_PREFIX, REFRESH, write_login

pytestmark = pytest.mark.timeout(900)


def test_a_run_goes_on_from_its_checkpoint_in_drive_with_the_same_result(
    new_user: Callable[..., User],
) -> None:
    user = new_user()
    chance = random.Random(13)
    with local_drive() as drive:
        write_login(user.home / "login.json", drive.url)
        given = {"folder": drive.disk.folder, "endpoint": drive.url, "credentials": "file:login.json"}
        store = {"type": "drive", **given}
        user.configure({"platforms": {"here": QUICK}, "stores": {"drive": store}})
        run = user.submit(
            command="python train.py {steps} --save-every 20 --pause 0.02 --hold-at 60",
            work={"total": 100, "global_batch": 8},
        )
        user.wait_for(run, lambda record: record.accepted, "a checkpoint in Drive")
        drive.tokens.expire()
        for _ in range(30):
            kind = chance.choice(["rate", "503", "html", "drop-after", "unauthorized"])
            drive.fail(kind, chance.choice(["list", "chunk", "get", "media"]), skip=chance.randrange(40))
        for role in (Role.GUARDIAN, Role.AGENT, Role.LEADER):
            for process in user.by_role()[role]:
                process.send(signal.SIGKILL)
        user.wait_for_end(run)
        drive.faults.clear()
        user.run("pull", run, "-o", str(user.folder / "final"))
        stored = [name for name in drive.disk.files if name != drive.disk.folder]
        said = user.run("logs", run) + user.run("show", run) + user.story(run)
    assert stored
    assert user.record(run).generation >= 2
    expected = train_in_one_piece(user.folder / "one-piece", "train.py", 100)
    assert fingerprints(user.folder / "final") == expected
    kept = [path.read_bytes() for path in user.home.rglob("*") if path.is_file()]
    kept.append(said.encode())
    for secret in (ACCESS_PREFIX, REFRESH, "upload_id"):
        assert sum(secret.encode() in each for each in kept) == (secret == REFRESH), "the login file has one"
