"""What a collect asks of the outbox and of the home store: only new data costs calls."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core.event import Retired
from orchestrator.errors import Transient
from orchestrator.stores.memory import MemoryStore
from tests.core.runs import RUN
from tests.counted import Collecting

IDLE = {"checkpoints": 1.0, "growing": 1.0, "small": 3.0}
Make = Callable[..., Collecting]


@pytest.fixture
def collecting(tmp_path: Path) -> Iterator[Make]:
    made: list[Collecting] = []

    def make(*steps: int, store: MemoryStore | None = None) -> Collecting:
        (tmp_path / str(len(made))).mkdir()
        made.append(Collecting(tmp_path / str(len(made)), store))
        made[-1].commit(*steps)
        return made[-1]

    yield make
    for each in made:
        each.ledger.close()


@pytest.mark.parametrize("count", [1, 200])
def test_an_idle_collect_costs_the_same_however_much_was_accepted(collecting: Make, count: int) -> None:
    world = collecting(*range(1, count + 1))
    world.accept(count)
    assert len(world.record().accepted) == min(count, 3), "the others were retired"
    assert world.idle() == (IDLE, {})


@pytest.mark.parametrize("count", [1, 200])
def test_so_do_the_first_collects_of_the_next_controller(collecting: Make, count: int) -> None:
    world = collecting(*range(1, count + 1))
    world.accept(count)
    world.restart()
    assert world.idle() == (IDLE, {})
    world.commit(count + 1)
    world.accept(count + 1)
    assert len({c.name for c in world.record().accepted}) == min(count + 1, 3)


def test_what_is_known_is_not_brought_again_where_the_local_copies_are_lost(collecting: Make) -> None:
    world = collecting(*range(1, 101))
    world.accept(100)
    shutil.rmtree(world.folders.home)
    assert world.idle() == (IDLE, {})


def test_a_new_checkpoint_costs_as_much_after_two_hundred_as_after_ten(collecting: Make) -> None:
    asked = []
    for count in (10, 200):
        world = collecting(*range(1, count + 1))
        world.accept(count)
        world.commit(count + 1)
        world.store.asked.clear()
        world.platform.asked.clear()
        world.accept(count + 1)
        asked.append(
            (dict(world.store.asked), world.platform.asked["manifest"], world.platform.asked["blob"])
        )
    assert asked[0] == asked[1]
    assert asked[0][1:] == (1, 1)


def test_what_is_never_whole_costs_nothing_in_the_end(collecting: Make) -> None:
    world = collecting(*range(1, 101), 500)
    for path in world.platform.outbox.glob("checkpoints/*/manifest.json"):
        if not path.parent.name.startswith(f"{500:010}"):
            path.write_bytes(b"{}")
    world.accept(500)
    world.run(600.0)
    assert world.platform.asked["manifest"] > 100, "they were tried"
    assert world.idle() == (IDLE, {})


def test_a_checkpoint_that_is_published_half_way_is_not_known(collecting: Make) -> None:
    class Cut(MemoryStore):
        """A store that loses its connection right before the first manifest."""

        cut = False

        def put(self, key: str, source: Path, sha256: str) -> None:
            if key.endswith("manifest.json") and not self.cut:
                self.cut = True
                raise Transient("the connection was lost")
            super().put(key, source, sha256)

    store = Cut()
    world = collecting(7, store=store)
    world.accept(7)
    assert store.cut


def test_what_the_ledger_does_not_know_is_looked_for_and_brought_again(collecting: Make) -> None:
    """The controller died before it journalled what it had published, and the store has since lost it."""
    store = MemoryStore()
    world = collecting(7, store=store)
    before = world.record()
    while world.record() == before:
        world.workers.take_effect()
        if any(key.endswith("manifest.json") for key in store._objects):
            break
        world.engine.tick()
        world.clock.advance(0.5)
    assert world.record().accepted == (), "it is published, but not journalled"
    world.restart()
    store._objects.clear()
    world.accept(7)
    assert any(key.endswith("manifest.json") for key in store._objects)


def test_what_was_known_is_not_journalled_with_every_report(collecting: Make) -> None:
    world = collecting(*range(1, 101))
    world.accept(100)
    world.commit(101)
    world.accept(101)
    history = list(world.ledger.history(RUN))
    assert sum(len(each.event.names) for each in history if isinstance(each.event, Retired)) == 98
    reports = [report for each in history if each.inputs for report in each.inputs["reports"]]
    collects = [report["action"] for report in reports if report["action"]["kind"] == "collect"]
    assert collects
    assert not any(collect["known"] for collect in collects)
