"""A run keeps its home store when the config changes. If something it needs is gone, it waits unchanged."""

from __future__ import annotations

import pytest

from orchestrator.core.event import Faulted, Regained, Submitted, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.needs import missing
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.memory import MemoryStore
from tests.core.runs import NOW, job
from tests.test_engine import Make, Small, scenario, small

__all__ = ["small"]  # a fixture


def started(world: Small, run: str, steps: int = 1) -> None:
    world.submit(run)
    assert world.until(lambda: len(world.record(run).accepted) >= steps)


def names(world: Small, store: str, run: str) -> set[str]:
    return {ref.name for ref in stored.names(world.stores[store], run)}


def test_a_run_stays_with_the_store_it_was_submitted_to(small: Make) -> None:
    world = small(box=scenario())
    started(world, "first")
    world.stores["other"] = MemoryStore()
    world.home_store = "other"
    world.restart("box")
    assert world.until(world.phase("first", Phase.DONE), seconds=4 * 3600.0)
    world.submit("second")
    assert world.until(world.phase("second", Phase.DONE), seconds=4 * 3600.0)
    for run, there, elsewhere in (("first", "home", "other"), ("second", "other", "home")):
        assert {each.name for each in world.record(run).accepted} <= names(world, there, run)
        assert names(world, elsewhere, run) == set()
    sessions = [each.event.order for each in world.ledger.history("first") if hasattr(each.event, "order")]
    assert {order.generation for order in sessions} == {1}, "its session went on despite the change"


@pytest.mark.parametrize("gone", ["store", "platform"])
def test_a_run_without_what_it_needs_is_held_and_goes_on_once_it_is_back(small: Make, gone: str) -> None:
    world = small(box=scenario(), other=scenario("T4"))
    started(world, "first")
    store = world.stores.pop("home") if gone == "store" else None
    world.stores["new"], world.home_store = MemoryStore(), "new"
    world.restart(*(["other"] if gone == "platform" else ["box", "other"]))
    session = world.record("first").session
    assert world.until(lambda: world.record("first").standing is Phase.HELD)
    record = world.record("first")
    what = "store 'home'" if gone == "store" else "platform 'box'"
    assert record.missing == (what,)
    assert f"it needs the {what}, which the config no longer has: put it back" in record.standing_reason
    world.until(lambda: False, seconds=120.0)
    assert world.record("first") == record, "the run is unchanged, reported only once"
    assert record.session == session
    if store is not None:
        world.stores["home"] = store
    world.restart("box", "other")
    assert world.until(world.phase("first", Phase.DONE), seconds=4 * 3600.0)
    kinds = [type(each.event) for each in world.ledger.history("first")]
    assert (kinds.count(Faulted), kinds.count(Regained)) == (1, 1)


def test_a_queued_run_without_its_store_waits_for_it(small: Make) -> None:
    world = small(box=scenario())
    world.submit("first")
    store = world.stores.pop("home")
    world.stores["new"], world.home_store = MemoryStore(), "new"
    world.restart("box")
    assert world.until(lambda: world.record("first").standing is Phase.HELD)
    assert world.record("first").session is None
    assert world.engine.idle, "the engine waits for a person"
    world.submit("second")
    assert world.until(world.phase("second", Phase.DONE), seconds=4 * 3600.0)
    world.stores["home"] = store
    world.restart("box")
    assert world.until(world.phase("first", Phase.DONE), seconds=4 * 3600.0)


@pytest.mark.parametrize("discard", [False, True])
def test_a_run_without_its_store_can_be_given_up(small: Make, discard: bool) -> None:
    """What its session has not yet brought home is then lost, so the user has to confirm it."""
    world = small(box=scenario())
    started(world, "first")
    del world.stores["home"]
    world.stores["new"], world.home_store = MemoryStore(), "new"
    world.restart("box")
    assert world.until(lambda: world.record("first").standing is Phase.HELD)
    world.ledger.wish("first", Wished(world.clock.now(), Wish.CANCEL, discard))
    cancelled = world.until(world.phase("first", Phase.CANCELLED), seconds=4 * 3600.0)
    assert cancelled is discard
    assert discard or world.record("first").standing is Phase.HELD


def test_a_queued_run_without_its_store_is_cancelled_at_once(small: Make) -> None:
    world = small(box=scenario())
    world.submit("first")
    del world.stores["home"]
    world.stores["new"], world.home_store = MemoryStore(), "new"
    world.restart("box")
    world.ledger.wish("first", Wished(world.clock.now(), Wish.CANCEL))
    assert world.until(world.phase("first", Phase.CANCELLED))


def test_a_run_that_is_over_needs_nothing(small: Make) -> None:
    world = small(box=scenario())
    started(world, "first")
    assert world.until(world.phase("first", Phase.DONE), seconds=4 * 3600.0)
    assert missing(world.record("first"), (), ()) == ()


def test_runs_of_the_first_version_keep_the_store_that_the_first_controller_found(small: Make) -> None:
    world = small(box=scenario())
    world.ledger.submit(Submitted("old", job(name="old"), NOW))
    assert world.record("old").store == ""
    world.restart("box", home_store="home")
    assert world.record("old").store == "home"
    world.restart("box", home_store="another")
    assert world.record("old").store == "home", "reported only once"
    assert [each.store for each in world.ledger.summaries()] == ["home"]
