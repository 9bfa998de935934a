"""A run keeps its home store when the config changes. If something it needs is gone, it waits unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.event import Faulted, Regained, Submitted, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.needs import missing, wanting
from orchestrator.core.session import Stray
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


def without(world: Small, gone: str, *platforms: str) -> None:
    """Takes the store, the platform `box`, or both out of the config, and starts a controller."""
    if "store" in gone:
        del world.stores["home"]
        world.stores["new"], world.home_store = MemoryStore(), "new"
    world.restart(*platforms, *([] if "platform" in gone else ["box"]))


def cancel(world: Small, run: str, discard: bool = True) -> None:
    world.ledger.wish(run, Wished(world.clock.now(), Wish.CANCEL, discard))


EACH = ["store", "platform", "store and platform"]


@pytest.mark.parametrize("gone", EACH)
@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.LAUNCHING, Phase.RUNNING, Phase.STOPPING])
def test_a_run_without_what_it_needs_can_be_given_up(small: Make, gone: str, phase: Phase) -> None:
    world = small(box=scenario(), other=scenario("T4"))
    if phase in (Phase.PREPARING, Phase.LAUNCHING):
        world.submit("first")
        assert world.until(world.phase("first", phase))
    else:
        started(world, "first")
    accepted = world.record("first").accepted
    if phase is Phase.STOPPING:
        world.ledger.wish("first", Wished(world.clock.now(), Wish.HOLD))
        world.engine.tick()
        assert world.record("first").phase is phase
    without(world, gone, "other")
    assert world.until(lambda: world.record("first").standing is Phase.HELD)
    cancel(world, "first")
    assert world.until(world.phase("first", Phase.CANCELLED), seconds=10.0)
    record = world.record("first")
    assert record.accepted[: len(accepted)] == accepted, "its checkpoints stay"
    assert (record.session, record.missing) == (None, ())
    assert world.until(lambda: world.engine.idle, seconds=120.0), "the controller can leave"
    assert world.ledger.live() == (), "so `prune` may remove what it left in the home"
    left = "put box back into the config, and `orchestrator doctor --clean` removes it"
    assert any(left in note for note in record.notes) is ("platform" in gone)


@pytest.mark.parametrize("gone", EACH)
def test_a_run_is_given_up_only_with_discard(small: Make, gone: str) -> None:
    world = small(box=scenario(), other=scenario("T4"))
    started(world, "first")
    without(world, gone, "other")
    cancel(world, "first", discard=False)
    assert not world.until(world.phase("first", Phase.CANCELLED), seconds=600.0)
    assert world.record("first").standing is Phase.HELD
    assert world.engine.idle
    cancel(world, "first")
    assert world.until(world.phase("first", Phase.CANCELLED), seconds=10.0)


def test_without_its_store_a_session_is_still_ended_on_its_platform(small: Make) -> None:
    world = small(box=scenario())
    started(world, "first")
    session = world.record("first").session
    assert session is not None
    without(world, "store")
    cancel(world, "first")
    assert world.until(lambda: world.engine.idle)
    assert world.platforms["box"]._sessions[session.name].discarded


def test_what_a_given_up_run_has_elsewhere_is_ended_properly(small: Make) -> None:
    """Only its earlier session, which was given up as lost, is on the missing platform."""
    world = small(box=scenario(), cloud=scenario("T4"))
    started(world, "first")
    record = world.record("first")
    lost = Stray("first-s00", "cloud", "T4", ended=False, until=None)
    record = replace(record, strays=(lost,))
    assert missing(record, {"box"}, {"home"}) == ("platform 'cloud'",)
    record = replace(record, wish=Wish.CANCEL, discard=True)
    decision = wanting(record, ("platform 'cloud'",), world.clock.now())
    assert decision.record.strays == ()
    assert (decision.record.phase, decision.record.session) == (Phase.RUNNING, record.session)
    assert decision.record.wish is Wish.CANCEL
    assert missing(decision.record, {"box"}, {"home"}) == (), "decide now stops its session"


def test_a_given_up_run_harms_no_other_run(small: Make) -> None:
    world = small(box=scenario(slots=2), other=scenario())
    started(world, "first")
    started(world, "second")
    without(world, "platform", "other")
    here = world.record("second")
    cancel(world, "first")
    assert world.until(world.phase("first", Phase.CANCELLED), seconds=10.0)
    assert world.record("second").standing is Phase.HELD
    world.restart("box", "other")
    assert world.until(world.phase("second", Phase.DONE), seconds=4 * 3600.0)
    assert here.session is not None
    assert world.record("second").generation == here.generation, "its session went on"


@pytest.mark.parametrize("wish", [Wish.HOLD, Wish.RELEASE])
def test_a_wish_is_kept_until_the_config_has_everything_again(small: Make, wish: Wish) -> None:
    world = small(box=scenario())
    started(world, "first")
    world.restart()
    assert world.until(lambda: world.record("first").standing is Phase.HELD)
    world.ledger.wish("first", Wished(world.clock.now(), wish))
    assert world.record("first").missing == ("platform 'box'",), "no controller has looked yet"
    world.restart("box")
    after = Phase.HELD if wish is Wish.HOLD else Phase.DONE
    assert world.until(world.phase("first", after), seconds=4 * 3600.0)
    assert world.record("first").missing == ()
    kinds = [type(each.event) for each in world.ledger.history("first")]
    assert kinds.count(Regained) == 1


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
