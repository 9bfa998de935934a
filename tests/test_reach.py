"""Sessions that are bound to another machine: not asked for, not stopped there, and given up in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.action import Collect, Discard, Done, Failed, Launch, Prepare, Stop, Trouble
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import Completed, Ended, Requeued
from orchestrator.core.offer import Offer, Traits, host_of, is_same_machine, machine_id
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import StopReply
from orchestrator.core.watch import Watch
from orchestrator.engine.perform import Backends, perform
from orchestrator.engine.reach import Reach
from orchestrator.errors import Fenced
from orchestrator.home import Folders
from orchestrator.platforms.platform import Platform
from orchestrator.platforms.simulated.platform import SimulatedPlatform
from orchestrator.platforms.simulated.scenario import Scenario
from orchestrator.stores.memory import MemoryStore
from tests.core.runs import NOW, RUN, TRAITS, assigned, ended, record, running, seen
from tests.simulation.clock import VirtualClock

THERE, HERE = machine_id("1111", "boxa"), machine_id("2222", "boxb")
BOUND = replace(TRAITS, machine=THERE, silence_seconds=30.0, setup_seconds=10.0)


class Untouched(SimulatedPlatform):
    """This machine's platform, which must not be asked for the other's sessions."""

    def __getattribute__(self, name: str) -> object:
        if name in ("prepare", "launch", "observe", "open", "stop", "discard"):
            raise AssertionError(f"{name} was called on the wrong machine")
        return super().__getattribute__(name)


def elsewhere(*events: object) -> RunRecord:
    """A run whose session is on boxa."""
    return record(assigned(traits=BOUND), *running()[1:], *events)  # type: ignore[arg-type]


@pytest.fixture
def backends(tmp_path: Path) -> Backends:
    here: Platform = Untouched("here", Scenario(), VirtualClock())
    return Backends({"here": here}, {"home": MemoryStore()}, "home", Folders(tmp_path), secret=str)


def reached(backends: Backends, machine: str = HERE) -> Reach:
    """After the platform's first answer."""
    reach = Reach(backends.platforms, 0.0)
    reach.surveyed("here", (Offer("here", "cpu", Traits(machine=machine)),))
    return reach


def test_a_machine_is_known_by_its_identity_and_not_by_its_name() -> None:
    assert is_same_machine(THERE, machine_id("1111", "boxa.local"))
    assert not is_same_machine(THERE, machine_id("2222", "boxa"))
    assert (host_of(THERE), host_of("")) == ("boxa", "another machine")


def test_until_a_platform_answers_nobody_knows_whose_sessions_it_has(backends: Backends) -> None:
    reach, run = Reach(backends.platforms, 0.0), elsewhere()
    assert reach.is_unknown(run, 1.0)
    assert not reach.is_unknown(run, 60.0), "a platform that never answers holds no run for ever"
    assert not reach.is_unknown(record(*running()), 1.0), "its platform is the same for every controller"
    assert not reached(backends).is_unknown(run, 1.0)


def test_a_session_of_this_machine_is_reached(backends: Backends) -> None:
    reach = reached(backends, machine_id("1111", "renamed"))
    assert reach.elsewhere(elsewhere()) == {}
    assert reach.beyond(elsewhere()) == ""


def test_actions_on_a_session_of_another_machine_touch_nothing_here(backends: Backends) -> None:
    reach, run = reached(backends), elsewhere()
    assert reach.beyond(run) == "boxa"
    assert run.session is not None
    name, order = run.session.name, run.session.order
    expected: Mapping[object, object] = {
        Prepare(order): Trouble.CAPACITY,
        Launch(order): Trouble.TRANSIENT,
        Collect(RUN, name, "here", 1, "aaaa", frozenset(), last=True): Trouble.NOT_FOUND,
    }
    for action, trouble in expected.items():
        failed = reach.perform(action, backends, run)  # type: ignore[arg-type]
        assert isinstance(failed, Failed)
        assert failed.trouble is trouble
        assert failed.action == action
    stopped = reach.perform(Stop(name, "here"), backends, run)
    assert isinstance(stopped, Done)
    assert stopped.reply is StopReply.REQUESTED, "it runs on"


def test_what_is_left_on_another_machine_is_forgotten_here(backends: Backends) -> None:
    run = elsewhere(ended(Outcome.LOST, confirmed=False), Requeued(NOW, "lost", 0))
    [stray] = run.strays
    assert stray.machine == THERE
    reach = reached(backends)
    stopped = reach.perform(Stop(stray.session, "here"), backends, run)
    assert isinstance(stopped, Done)
    assert stopped.reply is StopReply.ENDED
    assert isinstance(reach.perform(Discard(stray.session, "here"), backends, run), Done)


def test_a_session_out_of_reach_is_given_up_after_its_silence() -> None:
    run = elsewhere()
    early = decide(run, Inputs(NOW + 39, 39.0, watch=Watch(0.0), beyond="boxa"))
    assert early.events == ()
    late = decide(run, Inputs(NOW + 41, 41.0, watch=Watch(0.0), beyond="boxa"))
    [lost] = late.events
    assert isinstance(lost, Ended)
    assert (lost.outcome, lost.confirmed) == (Outcome.LOST, False)
    assert "out of reach on here of boxa" in lost.message
    assert decide(run, Inputs(NOW + 999, 999.0, watch=Watch(0.0))).events == (), "an outage is another matter"


def test_a_session_out_of_reach_that_is_heard_goes_on() -> None:
    heard = Watch(0.0).see(seen(1), 40.0, 2.0).see(seen(2), 42.0, 2.0)
    decision = decide(elsewhere(), Inputs(NOW + 45, 45.0, watch=heard, beyond="boxa"))
    assert not any(isinstance(event, Ended | Completed) for event in decision.events)


def test_a_controller_that_lost_control_starts_and_stops_nothing(backends: Backends) -> None:
    """It was frozen between the journal and the action."""

    def fenced() -> None:
        raise Fenced("another controller has taken over")

    order = assigned().order
    for action in (
        Prepare(order),
        Launch(order),
        Stop(order.session, "here"),
        Discard(order.session, "here"),
    ):
        failed = perform(action, replace(backends, confirm=fenced))
        assert isinstance(failed, Failed)
        assert "taken over" in failed.message


def test_the_fold_keeps_the_machine() -> None:
    run = apply(elsewhere(), ended(Outcome.LOST, confirmed=False))
    assert run.session is not None
    assert run.session.traits.machine == THERE
