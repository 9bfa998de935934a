"""What is asked for before a session starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.action import Prepare
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.offer import Uplink
from tests.core.runs import NOW, TRAITS, assigned, record


@pytest.mark.parametrize(
    ("fetches", "fruitless", "allowed", "thorough"),
    [(False, 2, 3, False), (True, 0, 3, False), (True, 1, 3, True), (True, 0, 1, True)],
)
def test_a_checkpoint_is_verified_before_a_session_that_may_fetch_a_damaged_one(
    fetches: bool, fruitless: int, allowed: int, thorough: bool
) -> None:
    traits = replace(TRAITS, uplink=Uplink.STORE, fetches=fetches)
    before = replace(record(assigned(traits=traits), without_progress=allowed), fruitless=fruitless)
    [action] = decide(before, Inputs(NOW)).actions
    assert isinstance(action, Prepare)
    assert (action.fetches, action.thorough) == (fetches, thorough)
