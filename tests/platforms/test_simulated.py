"""The simulated platform: each fault at a rate at which it must happen, and its determinism."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.core.checkpoint import Manifest
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Order, Outcome
from orchestrator.core.session import ABSENT, Observation, Sighting, StopReply
from orchestrator.errors import AccessDenied, NotFound, QuotaExhausted, Transient
from orchestrator.platforms.simulated import (
    Faults,
    History,
    QuotaWindow,
    Scenario,
    SimulatedOffer,
    SimulatedPlatform,
    expected_state,
)
from orchestrator.session.staging import Materials
from tests.conformance.platform_suite import content
from tests.conformance.test_platforms import any_order
from tests.seen import collected, observed
from tests.simulation.clock import VirtualClock

HOUR = 3600.0


class World:
    def __init__(
        self, folder: Path, *, seed: int = 1, faults: Faults | None = None, **scenario: object
    ) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        made = Scenario(seed=seed, faults=faults or Faults())
        self.platform = SimulatedPlatform("sim", replace(made, **scenario), self.clock)  # type: ignore[arg-type]

    @property
    def history(self) -> History:
        return self.platform.history

    def order(self, number: int = 1, total: int = 3600, **changes: object) -> Order:
        return any_order(f"a-s{number:02d}", total, number, **({"platform": "sim"} | changes))

    def start(self, order: Order, resume: Path | None = None) -> None:
        self.platform.prepare(order, Materials(Path("bundle"), Path("agent"), resume=resume))
        self.platform.launch(order)

    def see(self, number: int = 1) -> Observation:
        return observed(self.platform, [f"a-s{number:02d}"])[f"a-s{number:02d}"]

    def after(self, seconds: float, number: int = 1) -> Observation:
        self.clock.advance(seconds)
        return self.see(number)

    def into(self, number: int = 1) -> Path:
        into = self.folder / f"into-{number}"
        into.mkdir(exist_ok=True)
        return into

    def newest(self, number: int = 1) -> Manifest:
        return collected(self.platform, f"a-s{number:02d}", self.into(number)).manifests[-1]


def test_the_same_seed_is_the_same_world(tmp_path: Path) -> None:
    faults = Faults(
        request_lost=0.1, reply_lost=0.1, double_start=0.3, killed=0.3, partitioned=0.3, crash=0.3, stall=0.3,
        corrupt=0.3, outages_per_hour=2.0, shortages_per_hour=2.0,
    )  # fmt: skip

    def play(folder: Path, seed: int) -> dict[str, object]:
        folder.mkdir()
        world = World(folder, seed=seed, faults=faults, offers=(SimulatedOffer(slots=9),))
        for number in range(1, 6):
            for verb in (world.start, lambda order: world.platform.stop(order.session)):
                try:
                    verb(world.order(number))
                except (Transient, QuotaExhausted):
                    pass
                world.clock.advance(700.0)
        return asdict(world.history)

    assert play(tmp_path / "1", 7) == play(tmp_path / "2", 7)
    assert play(tmp_path / "3", 7) != play(tmp_path / "4", 8)


def test_many_hops_end_where_one_uninterrupted_run_does(tmp_path: Path) -> None:
    world = World(tmp_path)
    resume: Manifest | None = None
    for number in range(1, 20):
        order = world.order(number, budget_seconds=600.0)
        if resume is not None:
            order = replace(order, resume=resume.name, resume_step=resume.ref.step)
        world.start(order, world.into(number - 1) if resume else None)
        result = world.after(2 * HOUR, number).result
        assert result is not None
        resume = world.newest(number)
        if result.outcome is Outcome.COMPLETED:
            break
    assert number > 5
    assert resume is not None
    assert content(world.into(number), resume, "state.json") == expected_state(order, 3600)
    assert [life.resumed_step for life in world.history.lifetimes[1:]] == [
        life.written[-1].step for life in world.history.lifetimes[:-1]
    ]


def test_a_resume_at_the_wrong_step_shows_in_the_end(tmp_path: Path) -> None:
    world = World(tmp_path)
    order = world.order(1, total=100)
    world.start(order)
    world.after(HOUR)
    resumed = world.order(2, total=200, resume=world.newest().name, resume_step=100, seed=8)
    world.start(resumed, world.into(1))
    world.after(HOUR, 2)
    assert content(world.into(2), world.newest(2), "state.json") != expected_state(order, 200)


def test_a_lost_reply_hides_that_it_was_done(tmp_path: Path) -> None:
    world = World(tmp_path, faults=Faults(launch_started_but_failed=1.0))
    with pytest.raises(Transient):
        world.start(world.order())
    assert [launch.started for launch in world.history.launches] == [True]
    assert world.after(60.0).sighting is Sighting.RUNNING


def test_a_lost_request_does_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, faults=Faults(request_lost=1.0))
    with pytest.raises(Transient):
        world.platform.prepare(world.order(), Materials(Path("bundle"), Path("agent")))
    world.platform.calm()
    assert world.see() == ABSENT


def test_a_double_start_writes_twice(tmp_path: Path) -> None:
    world = World(tmp_path, faults=Faults(double_start=1.0))
    world.start(world.order())
    both = world.after(2000.0).incarnations
    assert len(set(both)) == 2
    brought = collected(world.platform, "a-s01", world.into())
    assert {manifest.ref.incarnation for manifest in brought.manifests} == set(both)
    ended = world.after(2 * HOUR)
    assert ended.result is not None
    assert ended.result.incarnation == both[0]


def test_a_started_session_is_unseen_for_a_while(tmp_path: Path) -> None:
    world = World(tmp_path, visibility_seconds=600.0, pending_seconds=1.0)
    world.start(world.order())
    assert world.after(2.0) == ABSENT
    assert len(world.history.lifetimes) == 1
    assert world.after(600.0).sighting is Sighting.RUNNING


def test_killed_sessions_end_or_are_forgotten(tmp_path: Path) -> None:
    seen = []
    for seed in range(12):
        world = World(tmp_path, seed=seed, faults=Faults(killed=1.0))
        world.start(world.order())
        seen.append(world.after(5 * HOUR))
        assert world.history.lifetimes[0].outcome is None
    assert {observation.sighting for observation in seen} == {Sighting.ABSENT, Sighting.ENDED}
    assert {o.ending for o in seen if o.sighting is Sighting.ENDED} == {Outcome.LOST}


def test_a_partitioned_session_vanishes_runs_on_and_comes_back(tmp_path: Path) -> None:
    came_back = 0
    for seed in range(6):
        world = World(tmp_path, seed=seed, faults=Faults(partitioned=1.0))
        world.start(world.order())
        seen = [world.after(30.0).sighting for _ in range(200)]
        assert seen[-1] is Sighting.ENDED
        gone = seen.index(Sighting.ABSENT, seen.index(Sighting.RUNNING))
        came_back += Sighting.RUNNING in seen[gone:]
        [life] = world.history.lifetimes
        assert life.outcome is Outcome.COMPLETED
    assert came_back


@pytest.mark.parametrize(
    ("faults", "outcome"),
    [
        (Faults(crash=1.0), Outcome.CRASHED),
        (Faults(stall=1.0), Outcome.STALLED),
    ],
)
def test_a_training_that_goes_wrong_leaves_a_result(tmp_path: Path, faults: Faults, outcome: Outcome) -> None:
    world = World(tmp_path, faults=faults)
    world.start(world.order())
    result = world.after(3 * HOUR).result
    assert result is not None
    assert result.outcome is outcome


def test_a_job_that_always_crashes_crashes_at_its_step(tmp_path: Path) -> None:
    world = World(tmp_path, crash_at_step=1000)
    world.start(world.order())
    result = world.after(3 * HOUR).result
    assert result is not None
    assert result.outcome is Outcome.CRASHED
    assert result.step is not None
    assert result.step < 1000


def test_a_frozen_agent_is_still_called_running_until_its_wall(tmp_path: Path) -> None:
    world = World(tmp_path, faults=Faults(freeze=1.0), offers=(SimulatedOffer(session_seconds=9000.0),))
    world.start(world.order())
    before, after = world.after(5000.0), world.after(1000.0)
    assert (before.sighting, after.sighting) == (Sighting.RUNNING, Sighting.RUNNING)
    assert before.status is not None
    assert after.status is not None
    assert before.status.heartbeat == after.status.heartbeat
    ended = world.after(4000.0)
    assert (ended.sighting, ended.ending) == (Sighting.ENDED, Outcome.LOST)


def test_too_large_a_micro_batch_runs_out_of_memory(tmp_path: Path) -> None:
    world = World(tmp_path, offers=(SimulatedOffer(micro_batch_max=4),))
    world.start(world.order(1, micro_batch=8))
    result = world.after(60.0).result
    assert result is not None
    assert result.outcome is Outcome.OUT_OF_MEMORY
    world.start(world.order(2, micro_batch=4))
    assert world.after(60.0, 2).sighting is Sighting.RUNNING


def test_quota_runs_out_in_a_session_and_refuses_until_its_window_ends(tmp_path: Path) -> None:
    world = World(tmp_path, quota=QuotaWindow(1000.0, 10_000.0))
    born = world.clock.now()
    world.start(world.order())
    ended = world.after(2000.0)
    assert (ended.sighting, ended.ending, ended.result) == (Sighting.ENDED, Outcome.QUOTA_EXHAUSTED, None)
    [offer] = world.platform.survey()
    assert offer.quota is not None
    assert offer.quota.left_seconds == 0
    assert offer.unavailable is not None
    assert offer.unavailable.until.at == pytest.approx(born + 10_000.0)
    with pytest.raises(QuotaExhausted) as caught:
        world.start(world.order(2))
    assert caught.value.until == pytest.approx(born + 10_000.0)
    world.clock.advance(8000.0)
    world.platform.launch(world.order(2))
    assert world.after(60.0, 2).sighting is Sighting.RUNNING
    assert world.history.quota_used[0] == pytest.approx(1000.0)
    assert [launch.started for launch in world.history.launches] == [True, False, True]


def test_quota_used_elsewhere_counts_but_is_not_ours(tmp_path: Path) -> None:
    quota = QuotaWindow(1000.0, 10_000.0)
    world = World(tmp_path, quota=quota, faults=Faults(quota_used_elsewhere=0.5))
    world.clock.advance(800.0)
    [offer] = world.platform.survey()
    assert offer.quota is not None
    assert offer.quota.left_seconds == pytest.approx(600.0)
    assert world.history.quota_used == {0: 0.0}


def test_slots_are_enforced(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start(world.order(1, total=100))
    with pytest.raises(QuotaExhausted, match="slots"):
        world.start(world.order(2))
    world.clock.advance(HOUR)
    world.platform.launch(world.order(2))
    assert world.after(60.0, 2).sighting is Sighting.RUNNING


def test_no_capacity_is_found_after_the_launch(tmp_path: Path) -> None:
    world = World(tmp_path, faults=Faults(starved=1.0), pending_seconds=60.0)
    world.start(world.order())
    assert world.after(30.0).sighting is Sighting.PENDING
    ended = world.after(60.0)
    assert (ended.sighting, ended.ending) == (Sighting.ENDED, Outcome.NO_CAPACITY)
    assert world.history.lifetimes == []


def test_a_shortage_refuses_and_says_until_when(tmp_path: Path) -> None:
    world = World(tmp_path, faults=Faults(shortages_per_hour=3600.0, shortage_seconds=1e6))
    world.clock.advance(100.0)
    [offer] = world.platform.survey()
    assert offer.unavailable is not None
    with pytest.raises(QuotaExhausted) as caught:
        world.start(world.order())
    assert caught.value.until == pytest.approx(offer.unavailable.until.at)


def test_stops_are_slow_or_ignored(tmp_path: Path) -> None:
    world = World(tmp_path, faults=Faults(stop_ignored=1.0))
    world.start(world.order(1, total=36_000))
    world.clock.advance(60.0)
    assert world.platform.stop("a-s01") is StopReply.REQUESTED
    assert world.after(HOUR).sighting is Sighting.RUNNING
    slow = World(tmp_path, seed=3, faults=Faults(stop_slow_seconds=1000.0))
    slow.start(slow.order(1, total=36_000))
    slow.clock.advance(60.0)
    assert slow.platform.stop("a-s01") is StopReply.REQUESTED
    assert slow.after(20.0).sighting is Sighting.RUNNING
    result = slow.after(1000.0).result
    assert result is not None
    assert result.outcome is Outcome.STOPPED


def test_where_nothing_can_be_stopped_it_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, can_stop=False)
    world.start(world.order())
    world.clock.advance(60.0)
    assert world.platform.stop("a-s01") is StopReply.IMPOSSIBLE


def test_without_uplink_a_killed_session_leaves_nothing(tmp_path: Path) -> None:
    offers = (SimulatedOffer(session_seconds=1000.0),)
    world = World(tmp_path, uplink=Uplink.NONE, offers=offers)
    world.start(world.order())
    running = world.after(900.0)
    assert (running.sighting, running.status, running.incarnations) == (Sighting.RUNNING, None, ())
    ended = world.after(900.0)
    assert (ended.sighting, ended.result) == (Sighting.ENDED, None)
    with pytest.raises(NotFound):
        collected(world.platform, "a-s01", world.into())


def test_without_uplink_an_outbox_may_be_lost(tmp_path: Path) -> None:
    world = World(tmp_path, uplink=Uplink.NONE, faults=Faults(outbox_lost=1.0))
    world.start(world.order(1, total=100))
    world.clock.advance(HOUR)
    with pytest.raises(NotFound):
        collected(world.platform, "a-s01", world.into())
    assert world.history.lifetimes[0].outcome is Outcome.COMPLETED


def test_corrupt_checkpoints_are_told_in_the_history(tmp_path: Path) -> None:
    world = World(tmp_path, faults=Faults(corrupt=1.0))
    world.start(world.order())
    world.clock.advance(2 * HOUR)
    brought = collected(world.platform, "a-s01", world.into())
    written = world.history.lifetimes[0].written
    assert brought.manifests == ()
    assert {name for name, _ in brought.corrupt} <= {w.name for w in written if w.corrupt}
    assert brought.corrupt


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (Faults(outages_per_hour=3600.0, outage_seconds=1e6), Transient),
        (Faults(denials_per_hour=3600.0, denial_seconds=1e6), AccessDenied),
    ],
)
def test_in_bad_times_every_verb_fails_until_calm(
    tmp_path: Path, faults: Faults, error: type[Exception]
) -> None:
    world = World(tmp_path, faults=faults)
    world.clock.advance(100.0)
    for verb in (
        world.platform.survey,
        lambda: world.start(world.order()),
        lambda: world.platform.launch(world.order()),
        world.see,
        lambda: world.platform.stop("a-s01"),
        lambda: collected(world.platform, "a-s01", world.into()),
        lambda: world.platform.discard("a-s01"),
    ):
        with pytest.raises(error) as caught:
            verb()
        assert caught.value.backend == "sim"  # type: ignore[attr-defined]
    world.platform.calm()
    world.start(world.order())
    assert world.after(60.0).sighting is Sighting.RUNNING


def test_calm_ends_what_has_not_happened_yet(tmp_path: Path) -> None:
    faults = Faults(
        killed=1.0, crash=1.0, stall=1.0, freeze=1.0, partitioned=1.0, corrupt=1.0, stop_ignored=1.0
    )
    world = World(tmp_path, faults=faults)
    world.start(world.order())
    world.platform.calm()
    result = world.after(3 * HOUR).result
    assert result is not None
    assert result.outcome is Outcome.COMPLETED
    assert world.newest().ref.step == 3600
