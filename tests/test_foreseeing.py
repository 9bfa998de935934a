"""What the controller's watcher makes of events and readings, and what its thread does with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from orchestrator.core.event import Completed, Event, Launched, Prepared, Requeued, Started
from orchestrator.core.foreseen import Forecast
from orchestrator.core.job import Recurrence, Work
from orchestrator.core.order import AgentStatus, Outcome
from orchestrator.core.route import Case
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.scene import Scene
from orchestrator.core.schedule import Schedule
from orchestrator.core.session import Observation, Sighting
from orchestrator.core.speed import Measurement
from orchestrator.engine.foreseeing import FORESEE_SECONDS, Foreseer
from orchestrator.errors import Transient
from tests.core.runs import NOW, RUN, accept, assigned, ended, record, running
from tests.simulation.clock import VirtualClock
from tests.waiting import wait_until


class Watched:
    """A foreseer whose run lives on a clock that stands still until it is moved. `written` is what its thread
    has made; `unforeseen` what it met."""

    def __init__(
        self, *, fails: bool = False, measurements: Callable[[str], tuple[Measurement, ...]] = lambda _job: ()
    ) -> None:
        self.clock = VirtualClock(NOW)
        self.written: list[tuple[Scene, Mapping[str, Forecast]]] = []
        self.unforeseen: list[str] = []
        self.record = record()
        self.foreseer = Foreseer(
            self.clock, measurements, self._fails if fails else self._write,
            lambda doing, _error: self.unforeseen.append(doing),
        )  # fmt: skip

    def _write(self, scene: Scene, found: Mapping[str, Forecast]) -> None:
        self.written.append((scene, found))

    def _fails(self, _scene: Scene, _found: Mapping[str, Forecast]) -> None:
        raise RuntimeError("a disk of another kind")

    def happen(self, *events: Event) -> None:
        for event in events:
            self.record = apply(self.record, event)
            self.foreseer.told(self.record, event)

    def read(self, step: int | None, *, late: float = 0.0) -> None:
        status = AgentStatus("aaaa", 1, self.clock.now() - late, "training", step=step)
        self.foreseer.reading(self.record, Observation(Sighting.RUNNING, ("aaaa",), status), self.clock.now())

    def train(self, seconds: int, from_step: int = 0) -> None:
        """Two steps a second, read every second."""
        for second in range(1, seconds + 1):
            self.clock.advance(1.0)
            self.read(from_step + 2 * second)

    def scene(self) -> Scene:
        running = (self.record,) if self.record.session is not None else ()
        return self.foreseer.scene(Case(), running, ())

    def scenery(self) -> tuple[Case, tuple[RunRecord, ...], tuple[RunRecord, ...]]:
        return Case(), (self.record,), ()


def test_a_growing_run_is_foreseen_with_the_fires_of_its_schedule() -> None:
    watched = Watched()
    watched.happen(*running())
    scheduled = replace(watched.record.job, name="nightly", schedule=Recurrence("0 1 * * *"))
    nightly = Schedule("nightly", scheduled, "home", NOW, NOW)
    often = replace(nightly, name="often", job=replace(scheduled, schedule=Recurrence("* * * * *")))
    paused = replace(nightly, name="paused", paused_at=NOW)
    with watched.foreseer.at_work():
        watched.foreseer.after_tick(watched.scenery, lambda: (nightly, often, paused))
        wait_until(lambda: watched.written, "a forecast")
    [(scene, _found), *_] = watched.written
    assert [each.schedule for each in scene.coming].count("nightly") == 7
    assert [each.schedule for each in scene.coming].count("often") == 7
    assert {each.schedule for each in scene.coming} == {"nightly", "often"}
    assert scene.unkept == {"often"}
    assert "nightly" in scene.measurements, "also of a schedule whose run is not there yet"


def test_a_session_that_was_watched_has_a_pace() -> None:
    watched = Watched()
    watched.happen(*running())
    watched.train(30)
    found = watched.scene().watched[RUN]
    assert found.pace is not None
    assert found.pace.samples_per_second == pytest.approx(32.0)
    assert found.session == f"{RUN}-s01"


@pytest.mark.parametrize("late", [-7200.0, 7200.0])
def test_an_agents_clock_that_is_hours_wrong_changes_no_pace(late: float) -> None:
    watched = Watched()
    watched.happen(*running())
    for second in range(1, 31):
        watched.clock.advance(1.0)
        watched.read(2 * second, late=late)
    pace = watched.scene().watched[RUN].pace
    assert pace is not None
    assert pace.samples_per_second == pytest.approx(32.0)
    assert pace.at == pytest.approx(watched.clock.now())


def test_the_next_session_is_watched_anew_and_the_turn_between_them_is_known() -> None:
    watched = Watched()
    watched.happen(*running())
    watched.train(30)
    later = NOW + 40.0
    watched.happen(
        accept(60), replace(ended(Outcome.STOPPED), at=NOW + 31.0), Requeued(NOW + 33.0, "its deadline", 0),
        replace(assigned(2), at=NOW + 34.0), Prepared(NOW + 35.0), Launched(later), Started(later, "bbbb"),
    )  # fmt: skip
    found = watched.scene().watched[RUN]
    assert found.turn == pytest.approx(9.0)
    assert found.pace is None


def test_a_wait_of_hours_between_two_sessions_is_no_turn() -> None:
    watched = Watched()
    watched.happen(*running())
    later = NOW + 7200.0
    watched.happen(
        accept(60), replace(ended(Outcome.STOPPED), at=NOW + 31.0), Requeued(NOW + 33.0, "its deadline", 0),
        replace(assigned(2), at=later), Prepared(later), Launched(later),
    )  # fmt: skip
    assert watched.scene().watched[RUN].turn is None


def test_a_run_that_is_over_is_forgotten() -> None:
    watched = Watched()
    watched.happen(*running())
    watched.train(10)
    watched.happen(
        accept(1000), replace(ended(Outcome.COMPLETED), at=NOW + 11.0), Completed(NOW + 12.0, "done")
    )
    assert watched.foreseer.watches == 0


def test_a_controller_that_has_just_started_uses_the_agents_own_figure() -> None:
    watched = Watched()
    watched.record = record(*running())
    watched.clock.advance(100.0)
    status = AgentStatus("aaaa", 1, watched.clock.now(), "training", step=150, steps_per_second=2.0)
    reading = Observation(Sighting.RUNNING, ("aaaa",), status)
    watched.foreseer.reading(watched.record, reading, watched.clock.now())
    pace = watched.scene().watched[RUN].pace
    assert pace is not None
    assert pace.samples_per_second == pytest.approx(32.0)


def test_its_thread_writes_a_forecast_every_few_seconds_and_no_more_often() -> None:
    watched = Watched()
    watched.happen(*running())
    watched.train(60)
    with watched.foreseer.at_work():
        watched.foreseer.after_tick(watched.scenery)
        wait_until(lambda: watched.written, "a forecast")
        [(_, found)] = watched.written
        assert found[RUN].end == pytest.approx(NOW + 500.0, abs=20.0)
        watched.foreseer.after_tick(watched.scenery)
        watched.clock.advance(FORESEE_SECONDS + 1.0)
        wait_until(lambda: _again(watched), "another forecast")
    assert len(watched.written) == 2


def _again(watched: Watched) -> bool:
    watched.foreseer.after_tick(watched.scenery)
    return len(watched.written) > 1


def test_what_goes_wrong_in_its_thread_is_told_and_ends_nothing() -> None:
    watched = Watched(fails=True)
    watched.happen(*running())
    with watched.foreseer.at_work():
        watched.foreseer.after_tick(watched.scenery)
        wait_until(lambda: watched.unforeseen, "the error")
        watched.clock.advance(FORESEE_SECONDS + 1.0)
        wait_until(lambda: _told_again(watched), "the next error")
    assert set(watched.unforeseen) == {"a forecast"}


def _told_again(watched: Watched) -> bool:
    watched.foreseer.after_tick(watched.scenery)
    return len(watched.unforeseen) > 1


def _two_scenes(watched: Watched) -> None:
    """Two ticks, so far apart that each collects a scene."""
    watched.foreseer.after_tick(watched.scenery)
    watched.clock.advance(FORESEE_SECONDS + 1.0)
    watched.foreseer.after_tick(watched.scenery)


def test_a_scene_that_cannot_be_collected_is_told_and_left_out() -> None:
    def damaged(_job: str) -> tuple[Measurement, ...]:
        raise ValueError("a damaged row")

    watched = Watched(measurements=damaged)
    watched.happen(*running())
    with watched.foreseer.at_work():
        _two_scenes(watched)
    assert watched.unforeseen == ["collecting what forecasts need"] * 2
    assert watched.written == []


def test_a_ledger_that_does_not_answer_costs_a_scene_and_the_next_tick_says_so() -> None:
    answers: list[tuple[Measurement, ...] | None] = [None, ()]

    def measurements(_job: str) -> tuple[Measurement, ...]:
        found = answers.pop(0)
        if found is None:
            raise Transient("the server is away")
        return found

    watched = Watched(measurements=measurements)
    watched.happen(*running())
    with watched.foreseer.at_work():
        _two_scenes(watched)
        wait_until(lambda: watched.written, "a forecast")
    assert watched.unforeseen == []


def test_a_run_that_cannot_be_measured_hides_no_other() -> None:
    watched = Watched()
    watched.happen(*running())
    watched.train(30)
    huge = replace(watched.record, run="huge", job=replace(watched.record.job, work=Work(10**9, 10**400)))
    for step in range(10):
        watched.clock.advance(1.0)
        status = AgentStatus("aaaa", 1, watched.clock.now(), "training", step=step)
        watched.foreseer.reading(huge, Observation(Sighting.RUNNING, ("aaaa",), status), watched.clock.now())
    found = watched.foreseer.scene(Case(), (huge, watched.record), ()).watched
    assert found["huge"].pace is None
    assert found[RUN].pace is not None
    assert watched.unforeseen == ["measuring how fast huge trains"]


def test_steps_beyond_the_jobs_total_count_as_its_total() -> None:
    watched = Watched()
    watched.happen(*running())
    watched.train(30)
    watched.clock.advance(1.0)
    watched.read(2**62)
    found = watched.scene().watched[RUN].pace
    assert found is not None
    assert found.step == 1000
