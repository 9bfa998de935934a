"""How long a run can wait: a clock that jumps, a home that stays full. With the real engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core.event import Ended, Requeued, Wished
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Uplink
from orchestrator.errors import QuotaExhausted
from orchestrator.platforms.simulated import Faults, QuotaWindow, Scenario
from orchestrator.stores.memory import MemoryStore
from tests.test_engine import Small, scenario

DAY = 86400.0
HOUR = 3600.0


class FullStore(MemoryStore):
    """A home store on a disk that is full until somebody frees space."""

    full = False

    def put(self, key: str, source: Path, sha256: str) -> None:
        if self.full:
            raise QuotaExhausted("the store is full", backend="home", operation="put")
        super().put(key, source, sha256)


class Stored(Small):
    """A small world whose store may be full."""

    store: FullStore

    def new_store(self) -> FullStore:
        return FullStore()


Make = Callable[..., Stored]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Make]:
    made: list[Stored] = []

    def make(**scenarios: Scenario) -> Stored:
        made.append(Stored(tmp_path, **scenarios))
        return made[-1]

    yield make
    for each in made:
        each.ledger.close()


def test_no_run_waits_for_the_days_that_a_clock_was_ahead(stored: Make) -> None:
    """Ten days ahead while sessions crash and quotas run out, then corrected: those pauses are over."""
    crashing = scenario(faults=Faults(crash=1.0), quota=QuotaWindow(0.5 * HOUR, 4 * HOUR))
    world = stored(box=crashing)
    world.submit("first", without_progress=40)
    assert world.until(world.phase("first", Phase.RUNNING))
    world.clock.jump(10 * DAY)
    before = len(world.ledger.history("first"))
    assert world.until(lambda: any(
        isinstance(s.event, Requeued) for s in world.ledger.history("first", after=before)
    ))  # fmt: skip
    world.clock.jump(-10 * DAY)
    world.platforms["box"].calm()
    assert world.until(world.phase("first", Phase.DONE), seconds=8 * HOUR)


def test_a_claim_on_quota_that_a_clock_ahead_has_dated_is_let_go(stored: Make) -> None:
    world = stored(box=scenario(quota=QuotaWindow(HOUR, 4 * HOUR)))
    world.submit("first", work=Work(total=500, global_batch=16))
    assert world.until(world.phase("first", Phase.RUNNING))
    world.clock.jump(10 * DAY)
    assert world.until(world.phase("first", Phase.DONE))
    world.clock.jump(-10 * DAY)
    world.submit("second", work=Work(total=500, global_batch=16))
    assert world.until(world.phase("second", Phase.DONE), seconds=6 * HOUR)


def test_a_home_that_stays_full_holds_the_run_and_loses_nothing(stored: Make) -> None:
    """This session's work comes home only at its end. It is kept on the platform until there is room."""
    world = stored(cloud=scenario(uplink=Uplink.NONE))
    world.submit("first", work=Work(total=2000, global_batch=16))
    assert world.until(lambda: bool(world.platforms["cloud"].history.launches))
    world.store.full = True
    assert world.until(lambda: world.record("first").standing is Phase.HELD, seconds=2 * DAY)
    record = world.record("first")
    assert "the store is full" in record.standing_reason
    assert record.session is not None
    name = record.session.name
    world.until(lambda: False, seconds=HOUR)
    world.restart("cloud")
    world.until(lambda: False, seconds=HOUR)
    assert not world.platforms["cloud"]._sessions[name].discarded, "it is only there"
    world.store.full = False
    world.ledger.wish("first", Wished(world.clock.now(), Wish.RELEASE))
    assert world.until(world.phase("first", Phase.DONE))
    endings = [s.event for s in world.ledger.history("first") if isinstance(s.event, Ended)]
    assert len(endings) == 1, "no work was repeated"
