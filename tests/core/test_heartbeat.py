"""How a session is judged by heartbeats through the store: by when they are seen to change."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.ending import ending
from orchestrator.core.event import Ended
from orchestrator.core.offer import Uplink
from orchestrator.core.order import AgentStatus, Outcome
from orchestrator.core.session import Observation, Session, Sighting
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, TRAITS, record, running

POLL = TRAITS.poll_seconds
PATIENCE = 60.0
SHIPPED = replace(TRAITS, uplink=Uplink.STORE, silence_seconds=PATIENCE, setup_seconds=20.0)


def session(heard: bool = True) -> Session:
    found = record(*running()).session
    assert found is not None
    return replace(found, traits=SHIPPED, incarnation="aaaa" if heard else None)


def watched(
    seconds: float, sighting: Sighting, beats_every: float | None, watch: Watch | None = None
) -> Watch:
    """Readings over this many seconds. The heartbeat changes every `beats_every` seconds, or never if that is
    None. The agent's own clock is far off."""
    found = watch or Watch(0.0)
    before = found.observation
    beat = before.status.heartbeat if before is not None and before.status is not None else 0
    began = found.at
    while found.at - began < seconds:
        at = found.at + POLL
        if beats_every is not None and int(at / beats_every) != int(found.at / beats_every):
            beat += 1
        found = found.see(
            Observation(sighting, ("aaaa",), AgentStatus("aaaa", beat, -1e9, "training")), at, POLL
        )
    return found


def judged(watch: Watch, found: Session | None = None) -> Ended | None:
    return ending(found or session(), watch, NOW)


def test_a_heart_that_beats_keeps_a_session_that_its_platform_does_not_see() -> None:
    assert judged(watched(900.0, Sighting.ABSENT, beats_every=15.0)) is None


def test_neither_seen_nor_heard_it_is_lost_after_its_patience() -> None:
    alive = watched(300.0, Sighting.ABSENT, beats_every=15.0)
    assert judged(watched(PATIENCE - 20.0, Sighting.ABSENT, None, alive)) is None
    lost = judged(watched(PATIENCE + 20.0, Sighting.ABSENT, None, alive))
    assert lost is not None
    assert (lost.outcome, lost.confirmed) == (Outcome.LOST, False)


def test_a_heart_that_stopped_is_lost_whatever_the_platform_says() -> None:
    alive = watched(300.0, Sighting.RUNNING, beats_every=15.0)
    assert judged(alive) is None
    assert judged(watched(PATIENCE - 20.0, Sighting.RUNNING, None, alive)) is None
    lost = judged(watched(PATIENCE + 20.0, Sighting.RUNNING, None, alive))
    assert lost is not None
    assert "heartbeat stopped" in lost.message


def test_hours_without_a_reading_prove_nothing() -> None:
    alive = watched(300.0, Sighting.RUNNING, beats_every=15.0)
    slept = replace(alive, at=alive.at + 7200.0)
    assert judged(watched(PATIENCE - 20.0, Sighting.RUNNING, None, slept)) is None


def test_one_that_runs_and_is_never_heard_is_given_up() -> None:
    watch = Watch(0.0)
    while watch.running_seconds < PATIENCE + SHIPPED.setup_seconds:
        assert judged(watch, session(heard=False)) is None if watch.readings else True
        watch = watch.see(Observation(Sighting.RUNNING), watch.at + POLL, POLL)
    watch = watch.see(Observation(Sighting.RUNNING), watch.at + POLL, POLL)
    lost = judged(watch, session(heard=False))
    assert lost is not None
    assert "wrote nothing to the store" in lost.message


def test_one_that_was_never_seen_nor_heard_found_no_capacity() -> None:
    watch = Watch(0.0)
    for second in range(20):
        watch = watch.see(Observation(Sighting.ABSENT), float(second) * POLL, POLL)
    lost = judged(watch, session(heard=False))
    assert lost is not None
    assert lost.outcome is Outcome.NO_CAPACITY
