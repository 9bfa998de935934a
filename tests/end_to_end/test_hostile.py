"""A session that attacks its controller: the other runs finish, and every view answers."""

from __future__ import annotations

import pytest

from orchestrator.core.lifecycle import Phase
from tests.end_to_end.user import Role, User

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def user(new_user: object) -> User:
    assert callable(new_user)
    made = new_user(slots=2)
    assert isinstance(made, User)
    return made


def test_a_hostile_session_harms_nobody_else(user: User) -> None:
    hostile = user.submit(name="hostile", command="python hostile.py {steps}")
    outbox = user.home / "platforms" / "here" / f"{hostile}-s01" / "outbox"
    user.wait_for(hostile, lambda _: (outbox / "progress.jsonl").exists(), "its first word")
    [controller] = user.by_role()[Role.CONTROLLER]
    healthy = user.submit(command="python train.py {steps} --pause 0.05")
    user.wait_for(hostile, lambda _: (outbox / "ready").exists(), "the end of its attacks")
    user.wait_for_end(healthy)
    record = user.wait_for(hostile, lambda r: r.accepted, "the one checkpoint that is whole")
    assert [each.ref.step for each in record.accepted] == [6]
    assert user.by_role()[Role.CONTROLLER] == [controller], "the controller never died"

    shown = user.answer("show", hostile)
    said = "\n".join(shown["notes"])
    assert "ignored malformed lines in progress.jsonl" in said
    assert "the step of step-9999999999999999999 is larger than" in said
    assert "neither a file nor a folder" in said
    assert "ignored corrupt checkpoint" in said
    assert "the manifest belongs to '9999999999999999999-g01-" in said
    for command in ("show", "why", "checkpoints", "logs"):
        assert hostile in user.run(command, hostile) or command in ("logs", "checkpoints")
        user.run(command, hostile, "--json")
    user.run("ps")
    assert {each["run"] for each in user.answer("ps", "--all")["runs"]} == {hostile, healthy}
    user.run("cancel", hostile)
    user.wait_for_end(hostile, Phase.CANCELLED)
