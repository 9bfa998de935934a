"""The engine with platforms that show an ended session's output late, and that refuse launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orchestrator.core.event import Assigned, Event, Faulted, TurnedAway, Wished
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Awaited, Phase, Wish
from orchestrator.core.offer import Uplink
from orchestrator.core.run import RunRecord
from orchestrator.errors import LedgerConflict
from orchestrator.ledger import Proposal
from orchestrator.platforms.simulated import Faults, Scenario
from tests.test_engine import FlakyLedger, Make, Small, scenario, small

__all__ = ["small"]  # a fixture

HOUR = 3600.0
SHORT = Work(total=300, global_batch=16)


def far(**faults: float) -> Scenario:
    """A platform whose sessions are read only after their end."""
    return scenario(uplink=Uplink.NONE, saving_seconds_max=300.0, faults=Faults(**faults))


def held(world: Small, run: str) -> Callable[[], bool]:
    return lambda: world.record(run).standing is Phase.HELD


def events(world: Small, run: str, kind: type[Event]) -> list[Event]:
    return [item.event for item in world.ledger.history(run) if isinstance(item.event, kind)]


def test_output_that_comes_late_is_waited_for_and_the_run_goes_on_by_itself(small: Make) -> None:
    world = small(box=far(late_output=1.0, late_output_seconds=HOUR))
    world.submit("first", work=SHORT)
    assert world.until(held(world, "first"))
    assert "its output does not appear" in world.record("first").standing_reason
    assert world.until(world.phase("first", Phase.DONE), seconds=2 * HOUR)
    assert world.record("first").generation == 1
    assert not world.platforms["box"].history.stops, "nothing was given up"


def test_a_run_that_awaits_output_leaves_its_slot_to_others(small: Make) -> None:
    world = small(box=far(stuck_output=1.0))
    world.submit("first", work=SHORT)
    world.submit("second", work=SHORT)
    assert world.until(held(world, "first"))
    assert not world.engine.idle, "it is watched"
    assert world.until(held(world, "second"))
    assert world.record("second").generation == 1


@pytest.mark.soak
def test_a_run_is_released_without_what_its_session_left(small: Make) -> None:
    world = small(box=far(stuck_output=1.0))
    world.submit("first", work=SHORT)
    assert world.until(held(world, "first"))
    world.platforms["box"].calm()
    world.ledger.wish("first", Wished(world.clock.now(), Wish.RELEASE, discard=True))
    assert world.until(world.phase("first", Phase.DONE))
    assert world.record("first").generation == 2


@pytest.mark.soak
def test_after_a_restart_the_run_is_watched_on(small: Make) -> None:
    world = small(box=far(late_output=1.0, late_output_seconds=HOUR))
    world.submit("first", work=SHORT)
    assert world.until(held(world, "first"))
    world.restart("box")
    assert world.until(world.phase("first", Phase.DONE), seconds=2 * HOUR)
    assert len(events(world, "first", Faulted)) == 1


def test_a_session_beyond_its_limit_keeps_its_slot(small: Make) -> None:
    world = small(box=far(wedged=1.0, wedged_seconds=20 * HOUR))
    world.submit("first", work=Work(total=100_000, global_batch=16))
    assert world.until(held(world, "first"))
    assert world.record("first").awaits is Awaited.END
    world.submit("second", work=SHORT)
    assert not world.until(lambda: world.record("second").generation > 0, seconds=600.0)


def test_a_refused_launch_is_tried_again_with_the_same_session(small: Make) -> None:
    world = small(box=far(refused=1.0))
    world.submit("first", work=SHORT)
    assert world.until(lambda: len(events(world, "first", TurnedAway)) == 3)
    world.platforms["box"].calm()
    assert world.until(world.phase("first", Phase.DONE))
    orders = [event.order for event in events(world, "first", Assigned) if isinstance(event, Assigned)]
    assert len(orders) == 4
    assert len(set(orders)) == 1
    assert not world.platforms["box"].history.discards[:-1]


class Interrupted(FlakyLedger):
    """A ledger in which a user makes a wish at the moment when a refusal is journalled."""

    wished = False

    def append_many(
        self, proposals: Sequence[Proposal], *, fence: int | None = None
    ) -> list[RunRecord | LedgerConflict]:
        for proposal in proposals:
            if not self.wished and any(isinstance(event, TurnedAway) for event in proposal.events):
                self.wished = True
                self.wish(proposal.record.run, Wished(proposal.events[-1].at, Wish.RELEASE))
        return super().append_many(proposals, fence=fence)


class Interrupting(Small):
    def new_ledger(self, folder: Path) -> FlakyLedger:
        return Interrupted.open(f"sqlite:///{folder / 'ledger.sqlite'}")


def test_a_wish_in_the_moment_of_a_refusal_launches_nothing(tmp_path: Path) -> None:
    world = Interrupting(tmp_path, box=far(refused=1.0))
    world.submit("first", work=SHORT)
    assert world.until(lambda: len(events(world, "first", TurnedAway)) == 1)
    world.until(lambda: False, seconds=60.0)
    assert len(world.platforms["box"].history.launches) == 1
    world.ledger.close()


def test_a_failed_run_is_released(small: Make) -> None:
    world = small(box=scenario(crash_at_step=5))
    world.submit("first", work=SHORT)
    assert world.until(world.phase("first", Phase.FAILED))
    assert world.until(lambda: not world.record("first").strays)
    world.ledger.wish("first", Wished(world.clock.now(), Wish.RELEASE))
    generation = world.record("first").generation
    assert world.until(lambda: world.record("first").generation > generation)
