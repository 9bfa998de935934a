"""The retrying wrapper around a platform that loses requests and replies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.core.session import Sighting
from orchestrator.errors import Rejected, Transient
from orchestrator.platforms.platform import Checkup, Cleaning
from orchestrator.platforms.retrying import RetryingPlatform
from orchestrator.platforms.simulated import Faults, Scenario, SimulatedPlatform
from orchestrator.session.staging import Materials
from tests.conformance.test_platforms import any_order
from tests.seen import observed
from tests.simulation.clock import VirtualClock


class World:
    """A faulty platform behind the wrapper, on a clock that the wrapper's pauses advance."""

    def __init__(self, faults: Faults, attempts: int = 4) -> None:
        self.clock = VirtualClock()
        self.pauses: list[float] = []
        self.inner = SimulatedPlatform("sim", Scenario(seed=1, faults=faults), self.clock)
        self.platform = RetryingPlatform(self.inner, sleep=self.sleep, random=Random(1), attempts=attempts)
        self.order = replace(any_order("a-s01", 10, 1), platform="sim")

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)


MATERIALS = Materials(Path("bundle"), Path("agent"))


def test_what_may_be_repeated_gets_through_a_bad_line() -> None:
    world = World(Faults(request_lost=0.3, reply_lost=0.2), attempts=30)
    for _ in range(10):
        assert world.platform.survey()
        assert observed(world.platform, ["x"])["x"].sighting is Sighting.ABSENT
    world.platform.prepare(world.order, MATERIALS)
    world.platform.stop("b-s01")
    world.platform.discard("b-s01")
    assert world.pauses


def test_the_pauses_grow_and_have_a_bound() -> None:
    world = World(Faults(request_lost=1.0), attempts=12)
    with pytest.raises(Transient, match="reset"):
        world.platform.survey()
    assert len(world.pauses) == 11
    assert max(world.pauses) <= 8.0
    assert sum(world.pauses[:3]) <= 0.5 + 1.0 + 2.0


def test_a_launch_is_never_repeated() -> None:
    world = World(Faults(launch_started_but_failed=1.0))
    world.platform.prepare(world.order, MATERIALS)
    with pytest.raises(Transient):
        world.platform.launch(world.order)
    assert len(world.inner.history.launches) == 1
    assert world.pauses == []


def test_what_cannot_get_better_is_not_repeated() -> None:
    world = World(Faults())
    with pytest.raises(Rejected):
        world.platform.prepare(replace(world.order, platform="other"), MATERIALS)
    assert world.pauses == []


def test_a_platform_that_has_no_checkup_and_leaves_nothing_says_so() -> None:
    world = World(Faults())
    assert not isinstance(world.inner, Checkup | Cleaning)
    assert isinstance(world.platform, Checkup)
    assert isinstance(world.platform, Cleaning)
    assert world.platform.checkup() == ()
    assert world.platform.leftovers() == ()
