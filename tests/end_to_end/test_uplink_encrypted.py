"""A session that ships to an encrypted home store, by real commands: resumed after its machine vanished."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.conformance.age_keys import ME, RECOVERY
from tests.end_to_end.test_uplink import (
    GATE,
    JOB_SECRET,
    STEPS,
    check_as_in_one_piece,
    check_only_training_has_secrets,
    kill,
    resumed_at,
    training,
)
from tests.end_to_end.user import QUICK, User, gated, opens, wait_until
from tests.leaks import Leak, Leaks

pytestmark = pytest.mark.timeout(900)


@pytest.mark.soak
def test_what_was_shipped_encrypted_is_resumed_and_pulled(
    new_user: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*JOB_SECRET)
    leaks = Leaks({"job": JOB_SECRET[1], "identity": str(ME.identity)})
    user = new_user()
    store = {
        "type": "folder",
        "path": "store",
        "encrypt": {"recipients": [ME.public, RECOVERY.public], "identity": "file:age-identity.txt"},
    }
    here = {**QUICK, "uplink": True, "uplink_seconds": 1, "uplink_silence_seconds": 2}
    user.configure({"platforms": {"here": here}, "stores": {"home": store}})
    (user.home / "age-identity.txt").write_text(ME.text)
    run = user.submit(
        command=gated(user, GATE, pause=0.25),
        work={"total": STEPS, "global_batch": 8},
        secrets=[JOB_SECRET[0]],
    )
    user.wait_for(run, training, "its agent")
    user.run("down")
    shipped = f"store/runs/{run}/checkpoints/*/manifest.json.age"
    wait_until(lambda: len(list(user.home.glob(shipped))) > 1, "checkpoints in the store")
    [session] = (user.home / "platforms" / "here").iterdir()
    check_only_training_has_secrets(leaks, user, session)
    kill(user)
    shutil.rmtree(session)
    opens(user, GATE)
    user.run("up", "--detach")
    user.wait_for_end(run)
    first, *later = resumed_at(user, run)
    assert first == 0
    assert any(step > 0 for step in later)
    check_as_in_one_piece(user, run)
    plain = [path for path in (user.home / "store" / "runs").rglob("*") if path.is_file()]
    assert plain
    assert all(path.name.endswith(".age") for path in plain)
    assert leaks.in_folder(user.home) == [Leak("identity", "age-identity.txt")]
    user.run("down")
    user.wait_for_silence()
