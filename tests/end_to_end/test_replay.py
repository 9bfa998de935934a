"""Every journalled decision can be made again from the ledger: the same inputs give the same events.

The inputs of a decision are journalled with its first event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import wire
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import Event, Submitted, Wished
from orchestrator.core.route import judge
from orchestrator.core.run import apply, submit
from orchestrator.ledger import Stored
from tests.end_to_end.user import User
from tests.simulation.world import World


def decisions(history: Sequence[Stored]) -> Iterator[list[Stored]]:
    """The events that were journalled together, without those that a user appended."""
    group: list[Stored] = []
    for stored in history:
        if stored.inputs is not None or isinstance(stored.event, Submitted | Wished):
            if group:
                yield group
            group = []
        if not isinstance(stored.event, Submitted | Wished):
            group.append(stored)
    if group:
        yield group


def check_replay(history: Sequence[Stored]) -> int:
    """Makes every decision again on the record so far; returns how many there were."""
    events = [stored.event for stored in history]
    first = events[0]
    assert isinstance(first, Submitted)
    record, folded, count = submit(first), 1, 0
    for group in decisions(history):
        while history[folded].seq < group[0].seq:
            record, folded = apply(record, events[folded]), folded + 1
        assert group[0].inputs is not None, f"no inputs recorded for {group[0].event}"
        inputs = wire.decode(Inputs, group[0].inputs)
        if inputs.case is not None:
            assert judge(record, inputs.case, inputs.now) == inputs.route
        decision = decide(record, inputs)
        expected: tuple[Event, ...] = tuple(stored.event for stored in group)
        assert decision.events == expected
        count += 1
    return count


@pytest.mark.timeout(900)
def test_the_decisions_of_a_real_run_replay(user: User) -> None:
    run = user.submit(command="python train.py {steps} --pause 0.05 --nan-at 40")
    user.wait_for(run, lambda r: r.accepted, "a checkpoint")
    user.run("hold", run)
    user.run("release", run)
    user.wait_for_end(run)
    assert check_replay(user.history(run)) >= 6


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
def test_the_decisions_of_a_world_of_faults_replay(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    world.run()
    assert sum(check_replay(world.ledger.history(run)) for run in world.runs) >= 6


def test_a_decision_that_was_made_otherwise_is_found(tmp_path: Path) -> None:
    world = World(0, tmp_path)
    world.run()
    history = list(world.ledger.history(world.runs[0]))
    at = next(n for n, stored in enumerate(history) if stored.inputs is not None)
    history[at] = replace(history[at], inputs=dict(history[at].inputs or {}) | {"now": 0.0})
    with pytest.raises(AssertionError):
        check_replay(history)
