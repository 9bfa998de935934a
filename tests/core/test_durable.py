"""A session with an uplink that its platform cannot show is durable only while it ships."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.decide import decide
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.durable import UNSHIPPED_SECONDS_MAX, is_durable
from orchestrator.core.event import Ended, Faulted, Noted, StopRequested, Wished
from orchestrator.core.lifecycle import Awaited, Phase, Wish
from orchestrator.core.offer import Uplink
from orchestrator.core.order import AgentStatus, Outcome
from orchestrator.core.run import apply
from orchestrator.core.session import Observation, Sighting
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, TRAITS, assigned, record, running

HOUR = 3600.0
HIDDEN = replace(
    TRAITS, uplink=Uplink.STORE, readable_mid_run=False, silence_seconds=60.0, session_seconds=12 * HOUR
)
SHIPS = AgentStatus("aaaa", 1, NOW, "training", unshipped_seconds=0.0)
STUCK = replace(SHIPS, unshipped_seconds=UNSHIPPED_SECONDS_MAX + 1.0)


def seen_for(seconds: float, sighting: Sighting, status: AgentStatus | None) -> Decision:
    """The same reading for so long, of a session that runs."""
    watch = Watch(0.0)
    while watch.at < seconds:
        watch = watch.see(Observation(sighting, ("aaaa",), status), watch.at + 10.0, 10.0)
    found = record(assigned(traits=HIDDEN), *running()[1:])
    return decide(found, Inputs(NOW + seconds, watch.at, watch=watch))


def test_one_that_ships_is_given_up_when_its_heart_stops() -> None:
    [ended] = [each for each in seen_for(200.0, Sighting.RUNNING, SHIPS).events if isinstance(each, Ended)]
    assert (ended.outcome, ended.confirmed) == (Outcome.LOST, False)


@pytest.mark.parametrize("status", [STUCK, None])
def test_one_that_does_not_ship_is_not(status: AgentStatus | None) -> None:
    """Its work exists nowhere else, and its platform says that it runs."""
    assert not any(isinstance(each, Ended) for each in seen_for(2 * HOUR, Sighting.RUNNING, status).events)


def test_what_it_left_is_waited_for_only_if_it_is_nowhere_else() -> None:
    long = TRAITS.saving_seconds_max + 100.0
    [ended] = [each for each in seen_for(long, Sighting.SAVING, SHIPS).events if isinstance(each, Ended)]
    assert ended.outcome is Outcome.LOST
    [held] = [each for each in seen_for(long, Sighting.SAVING, STUCK).events if isinstance(each, Faulted)]
    assert held.awaits is Awaited.OUTPUT


@pytest.mark.parametrize(("status", "stops"), [(SHIPS, True), (STUCK, False), (None, False)])
def test_a_wish_ends_it_only_if_that_loses_little(status: AgentStatus | None, stops: bool) -> None:
    found = apply(record(assigned(traits=HIDDEN), *running()[1:]), Wished(NOW, Wish.CANCEL))
    watch = Watch(0.0).see(Observation(Sighting.RUNNING, ("aaaa",), status), 2.0, 2.0)
    decision = decide(found, Inputs(NOW + 2.0, watch.at, watch=watch))
    assert any(isinstance(each, StopRequested) for each in decision.events) == stops
    assert decision.record.phase is (Phase.STOPPING if stops else Phase.RUNNING)
    said = [each.text for each in decision.events if isinstance(each, Noted)]
    assert [f"cancel {found.run} --discard" in text for text in said] == ([] if stops else [True])


def test_where_the_platform_shows_a_running_session_it_is_durable_anyway() -> None:
    assert is_durable(replace(HIDDEN, readable_mid_run=True), None)
    assert not is_durable(replace(HIDDEN, durable_mid_run=False), SHIPS)
