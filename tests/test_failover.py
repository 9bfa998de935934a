"""What makes a run leave a platform, and what brings it back, with the real engine.

Two simulated platforms on a virtual clock: `cloud` is fast and has a quota, `box` is slow and has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.story import told
from orchestrator.core.event import Assigned, CheckpointAccepted, Ended, Event, Wished
from orchestrator.core.job import Claim, Precision, Profile, Work
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Order, Outcome
from orchestrator.platforms.simulated import Faults, QuotaWindow, Scenario, SimulatedOffer
from tests.test_engine import Small

HOUR = 3600.0
FOREVER = 1e9
WALL = 1800.0
DAY = QuotaWindow(allowed_seconds=HOUR, window_seconds=24 * HOUR)


def claimed(steps_per_second: float) -> Profile:
    rates = (0.9 * steps_per_second, 1.1 * steps_per_second)
    return Profile(8, Precision.FP32, claim=Claim(rates, 16, "any", "a test", "2026-11-20"))


def work(total: int) -> dict[str, object]:
    profiles = (("T4", claimed(4.0)), ("cpu", claimed(1.0)))
    return {"work": Work(total=total, global_batch=16), "profiles": profiles}


def platform(accelerator: str, rate: float, wall: float | None = WALL, **changes: object) -> Scenario:
    offer = SimulatedOffer(accelerator, rate, session_seconds=wall, memory_gb=64.0, disk_gb=100.0)
    calm = Scenario(seed=1, offers=(offer,), checkpoint_seconds=240.0, poll_seconds=20.0)
    return replace(calm, **changes)  # type: ignore[arg-type]


def cloud(**changes: object) -> Scenario:
    return platform("T4", 4.0, **{"quota": DAY, **changes})  # type: ignore[arg-type]


def box(wall: float | None = WALL) -> Scenario:
    return platform("cpu", 1.0, wall)


class Story:
    """A world with one run, and questions to its history."""

    def __init__(self, world: Small, total: int) -> None:
        self.world = world
        world.submit("first", **work(total))
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """The run's history; only the new part is read."""
        self._events += [s.event for s in self.world.ledger.history("first", after=len(self._events))]
        return self._events

    def orders(self) -> list[Order]:
        return [event.order for event in self.events() if isinstance(event, Assigned)]

    def places(self) -> list[str]:
        """Where its sessions ran; several in a row on one platform count once."""
        found = [order.platform for order in self.orders()]
        return [place for n, place in enumerate(found) if n == 0 or found[n - 1] != place]

    def outcomes(self) -> list[Outcome]:
        return [event.outcome for event in self.events() if isinstance(event, Ended)]

    def newest(self) -> int:
        """The step of the newest checkpoint accepted so far."""
        kept = [e.checkpoint.ref.step for e in self.events() if isinstance(e, CheckpointAccepted)]
        return max(kept, default=0)

    def why(self) -> str:
        return "\n".join(text for _, text in told(self.events()))

    def until(self, condition: Callable[[], bool], hours: float = 12.0) -> None:
        end = self.world.clock.elapsed() + hours * HOUR
        while not condition():
            assert self.world.clock.elapsed() < end, f"not in {hours:g} h:\n{self.why()}"
            self.world.engine.tick()
            self.world.clock.advance(20.0)

    def until_done(self, hours: float = 12.0) -> None:
        self.until(lambda: self.world.record("first").phase.final, hours)
        assert self.world.record("first").phase is Phase.DONE, self.why()
        assert self.newest() == self.world.record("first").job.work.total

    def until_it_left(self, platform: str, hours: float = 12.0) -> Order:
        """Waits for the first order on another platform. It must resume at the newest checkpoint."""
        self.until(lambda: len(self.places()) > 1 and self.places()[0] == platform, hours)
        order = next(order for order in self.orders() if order.platform != platform)
        before = self.events()[: [getattr(e, "order", None) for e in self.events()].index(order)]
        kept = [e.checkpoint.ref.step for e in before if isinstance(e, CheckpointAccepted)]
        assert order.resume_step == max(kept, default=0)
        return order


Make = Callable[..., Story]


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Make]:
    made: list[Small] = []

    def make(total: int, **scenarios: Scenario) -> Story:
        made.append(Small(tmp_path, **scenarios))
        return Story(made[-1], total)

    yield make
    for each in made:
        each.ledger.close()


def trouble(world: Small, **faults: float) -> None:
    """From now on calls to the cloud fail."""
    cloud = world.platforms["cloud"]
    cloud.calm()
    cloud.faults = faults = Faults(**faults)  # type: ignore[assignment]
    f = cloud.faults
    cloud._outages = cloud._intervals("outages", f.outages_per_hour, f.outage_seconds)
    cloud._denials = cloud._intervals("denials", f.denials_per_hour, f.denial_seconds)
    cloud._shortages = cloud._intervals("shortages", f.shortages_per_hour, f.shortage_seconds)


OUTAGE = {"outages_per_hour": FOREVER, "outage_seconds": FOREVER}
REVOKED = {"denials_per_hour": FOREVER, "denial_seconds": FOREVER}
SHORTAGE = {"shortages_per_hour": FOREVER, "shortage_seconds": FOREVER}


# --- Before a session -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults", [OUTAGE, REVOKED, SHORTAGE], ids=["outage", "revoked credentials", "no capacity"]
)
def test_a_platform_that_takes_nobody_is_passed_over(story: Make, faults: dict[str, float]) -> None:
    told = story(1000, cloud=cloud(faults=Faults(**faults)), box=box())
    told.until_done()
    assert told.places() == ["box"]


def test_a_quota_used_up_before_is_passed_over(story: Make) -> None:
    told = story(1000, cloud=cloud(faults=Faults(quota_used_elsewhere=HOUR)), box=box())
    told.world.clock.advance(1.0)
    told.until_done(hours=6)
    assert told.places() == ["box"]


def test_a_slot_that_another_run_holds_is_not_waited_for(story: Make) -> None:
    told = story(8000, cloud=cloud(), box=box())
    told.until(lambda: told.places() == ["cloud"])
    told.world.submit("second", **work(1000))
    assert told.world.until(told.world.phase("second", Phase.DONE), 6 * HOUR)
    assert told.world.platforms["box"].history.launches


# --- During a session -----------------------------------------------------------------------------------


def test_a_quota_used_up_by_others_in_mid_session_goes_on_elsewhere(story: Make) -> None:
    told = story(8000, cloud=cloud(faults=Faults(quota_used_elsewhere=3.5)), box=box())
    order = told.until_it_left("cloud")
    assert told.outcomes()[-1] is Outcome.QUOTA_EXHAUSTED
    assert order.resume_step > 0
    assert "out of quota" in told.why()
    assert f"session s{order.generation:02d} on box/cpu, from step {order.resume_step:,}" in told.why()


def test_where_a_session_left_nothing_the_run_goes_on_from_its_start(story: Make) -> None:
    hungry = Faults(quota_used_elsewhere=3.5)
    told = story(8000, cloud=cloud(uplink=Uplink.NONE, faults=hungry), box=box())
    order = told.until_it_left("cloud")
    assert order.resume_step == 0
    told.until_done()


def test_launches_that_find_no_capacity_go_elsewhere(story: Make) -> None:
    told = story(1000, cloud=cloud(faults=Faults(starved=1.0)), box=box())
    told.until_done()
    assert told.places()[:2] == ["cloud", "box"]
    assert "found no capacity" in told.why()


SILENCE = pytest.mark.parametrize("faults", [OUTAGE, REVOKED], ids=["outage", "revoked credentials"])
SILENT = "its session limit has passed, and cloud has not answered"


@SILENCE
def test_a_platform_that_falls_silent_for_good_is_left(story: Make, faults: dict[str, float]) -> None:
    told = story(8000, cloud=cloud(uplink=Uplink.SHARED), box=box())
    told.until(lambda: told.newest() > 0)
    trouble(told.world, **faults)
    order = told.until_it_left("cloud")
    assert order.resume_step > 0
    assert SILENT in told.why()


def held_by_silence(story: Make, faults: dict[str, float]) -> Story:
    """A run whose work exists only on a platform that answers no more."""
    told = story(8000, cloud=cloud(uplink=Uplink.NONE), box=box())
    told.until(lambda: bool(told.world.platforms["cloud"].history.lifetimes))
    trouble(told.world, **faults)
    told.until(lambda: told.world.record("first").standing is Phase.HELD)
    assert SILENT in told.why()
    assert told.places() == ["cloud"]
    return told


@SILENCE
def test_a_silent_platform_with_the_only_copy_is_waited_for(story: Make, faults: dict[str, float]) -> None:
    told = held_by_silence(story, faults)
    trouble(told.world)
    told.until(lambda: told.newest() > 0)
    assert told.world.record("first").standing is not Phase.HELD


@SILENCE
def test_the_only_copy_on_a_silent_platform_may_be_given_up(story: Make, faults: dict[str, float]) -> None:
    told = held_by_silence(story, faults)
    told.world.ledger.wish("first", Wished(told.world.clock.now(), Wish.RELEASE, discard=True))
    assert told.until_it_left("cloud").resume_step == 0


# --- And back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wall",
    [WALL, pytest.param(None, marks=pytest.mark.soak)],
    ids=["sessions end", "a session has no limit of its own"],
)
def test_it_moves_back_when_the_quota_is_refreshed(story: Make, wall: float | None) -> None:
    quota = QuotaWindow(allowed_seconds=HOUR, window_seconds=4 * HOUR)
    told = story(30000, cloud=cloud(quota=quota), box=box(wall))
    told.until_done()
    assert told.places()[:3] == ["cloud", "box", "cloud"]
    resumed = [order.resume_step for order in told.orders()]
    assert resumed == sorted(set(resumed)), "each session gets further than the one before"
    for order in told.orders()[1:]:
        place = f"session {order.session[-3:]} on {order.platform}/{order.accelerator}"
        assert f"{place}, from step {order.resume_step:,}" in told.why()


def test_it_stays_where_moving_back_would_finish_later(story: Make) -> None:
    quota = QuotaWindow(allowed_seconds=0.5 * HOUR, window_seconds=HOUR)
    told = story(5000, cloud=cloud(quota=quota, setup_seconds=1400.0), box=box())
    told.until_done()
    assert told.places() == ["box"], "the hop costs more than the faster steps save"
