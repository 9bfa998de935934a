"""`replay` of a real run: every decision that a controller made is made again, the same."""

from __future__ import annotations

import pytest

from orchestrator.core.lifecycle import Phase
from tests.end_to_end.user import User


@pytest.mark.timeout(900)
def test_the_decisions_of_a_real_run_replay(user: User) -> None:
    run = user.submit(command="python train.py {steps} --pause 0.05 --nan-at 40 --hold-at 60")
    user.wait_for(run, lambda r: r.accepted, "a checkpoint")
    user.run("hold", run)
    user.wait_for(run, lambda r: r.phase is Phase.HELD, "the hold")  # or both are given at once
    user.run("release", run)
    user.wait_for_end(run)
    found = user.answer("replay", run, "--steps")
    assert (found["differs"], found["unjudged"]) == (0, 0)
    assert found["same"] >= 6
    assert any(step["routed"] for step in found["steps"]), "the router judged again, too"
    given = [step["kinds"] for step in found["steps"] if step["answer"] == "given"]
    assert given == [["submitted"], ["wished"], ["wished"]]
