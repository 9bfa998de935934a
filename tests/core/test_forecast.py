"""When a run with a session will end, against sessions lived through step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

import pytest

from orchestrator.agent import plan
from orchestrator.agent.settings import Settings
from orchestrator.core import forecast as forecasting
from orchestrator.core.event import StopRequested, Wished
from orchestrator.core.forecast import forecast, leaves_at, margin, view
from orchestrator.core.foreseen import Forecast
from orchestrator.core.job import CostPhase, Job, Work
from orchestrator.core.lifecycle import Wish
from orchestrator.core.offer import Offer, Quota, Traits
from orchestrator.core.order import AgentStatus
from orchestrator.core.pace import Reading, pace, seen
from orchestrator.core.run import RunRecord
from tests.core.runs import NOW, RUN, job, record, running

HOUR = 3600.0
AGENT = Settings()
AFTER = 60.0  # when the forecast is made


@dataclass(frozen=True)
class Nature:
    """How a job's sessions really go, in seconds; `slow`: its first steps take `slower` times as long."""

    step: float
    jitter: float = 0.0
    setup: float = 5.0
    slow: float = 0.0
    slower: float = 3.0
    save: float = 1.0
    turn: float = 4.0


def lived(work: Work, nature: Nature, budget: float, random: Random) -> tuple[float, tuple[Reading, ...]]:
    """(seconds from the first launch until the run is done, the readings of the first AFTER seconds)."""
    at, step, first = 0.0, 0, True
    readings: tuple[Reading, ...] = ()
    leaves = plan.stop_at(budget, plan.Costs(saves=(nature.save,) * 3), nature.step, AGENT)
    assert leaves is not None
    while True:
        launched, warm_at = at, at + nature.setup + nature.slow
        at += nature.setup
        while step < work.total and at < launched + leaves:
            cost = 1.0 if not work.phases else work.phases[step >= work.phases[-1].start].flops_per_step
            slow = nature.slower if at < warm_at else 1.0
            at += nature.step * cost * slow * random.lognormvariate(-(nature.jitter**2) / 2, nature.jitter)
            step += 1
            if first and at <= AFTER:
                readings = seen(readings, step, NOW + math.ceil(at))  # read every second
        at, first = at + nature.save + nature.turn, False
        if step >= work.total:
            return at, readings


def foreseen(
    work: Work, readings: tuple[Reading, ...], budget: float, nature: Nature, **changes: object
) -> Forecast | None:
    traits = Traits(session_seconds=budget, setup_seconds=5.0, poll_seconds=1.0)
    found = started(work, traits, budget)
    status = AgentStatus("aaaa", 9, NOW + AFTER, "training", save_seconds=nature.save, deadline=NOW + budget)
    offer = Offer("here", "cpu", traits)
    speed = pace(work, readings, 0)
    return forecast(view(found, offer, (), NOW + AFTER, pace=speed, status=status, **changes))  # type: ignore[arg-type]


def started(work: Work, traits: Traits, budget: float | None, **changes: object) -> RunRecord:
    found = record(*running(), work=work, **changes)
    assert found.session is not None
    order = replace(found.session.order, budget_seconds=budget, steps_total=work.total)
    return replace(found, session=replace(found.session, order=order, traits=traits))


def drawn(random: Random) -> tuple[Work, Nature, float]:
    steps, later = random.choice((80, 200, 600)), random.choice((1.0, 1.6))
    phases = () if later == 1.0 else (CostPhase(0, 1.0), CostPhase(steps // 2, later))
    nature = Nature(
        step=random.uniform(180.0, 400.0) / steps / ((1 + later) / 2),
        jitter=random.choice((0.05, 0.2, 0.4)),
        setup=random.uniform(1.0, 10.0),
        slow=random.choice((0.0, 5.0, 15.0)),
        save=random.uniform(0.3, 3.0),
        turn=random.uniform(2.0, 6.0),
    )
    return Work(total=steps, global_batch=4, phases=phases), nature, random.choice((70.0, 110.0, 160.0))


def test_after_a_minute_the_end_is_known_within_15_percent_and_the_range_holds_8_times_of_10() -> None:
    """The benchmark's jobs in virtual time: jitter, slow first steps, set-up, saves, walls and phases."""
    errors, holds = [], []
    for seed in range(200):
        work, nature, budget = drawn(Random(seed))
        truth, readings = lived(work, nature, budget, Random(seed))
        found = foreseen(work, readings, budget, nature)
        assert found is not None, seed
        errors.append(abs(found.end - NOW - truth) / truth)
        holds.append(found.low <= NOW + truth <= (found.high or math.inf))
    within = sum(error <= 0.15 for error in errors) / len(errors)
    assert within >= 0.95, sorted(errors)[-20:]
    assert sum(holds) / len(holds) >= 0.8, f"{sum(holds)} of {len(holds)}"


# --- One session, to the second ---------------------------------------------------------------------------

STEADY = tuple(Reading(NOW + 10.0 + second, 2 * second) for second in range(51))  # 2 steps/s after 10 s


def steady(total: int, budget: float | None, **changes: object) -> Forecast | None:
    """A session of NOW at a steady pace, seen for a minute; a save takes 2 s."""
    work = Work(total=total, global_batch=16)
    traits = Traits(session_seconds=budget, poll_seconds=1.0)
    deadline = None if budget is None else NOW + budget
    status = AgentStatus("aaaa", 9, NOW + AFTER, "training", save_seconds=2.0, deadline=deadline)
    return forecast(
        view(
            started(work, traits, budget), Offer("here", "cpu", traits), (), NOW + AFTER,
            pace=pace(work, STEADY, 0), status=status, turn=3.0, **changes,
        )
    )  # fmt: skip


def test_without_walls_the_end_is_the_training_and_the_last_save() -> None:
    found = steady(2000, None)
    assert found is not None
    assert found.end == pytest.approx(NOW + 10.0 + 1000.0 + 2.0 + 3.0, abs=1.0)
    assert found.low < found.end < (found.high or 0.0)
    assert found.sessions == 1


def test_each_wall_adds_a_turn_a_set_up_and_what_the_agent_leaves_unused() -> None:
    """Of 1,000 s, a session trains for 10 s of set-up, 2 s of saving and 100 s of margin less."""
    found = steady(2 * 885 * 3, 1000.0)
    assert found is not None
    assert found.sessions == 3
    assert found.end == pytest.approx(NOW + 3 * (1000.0 - 100.0 + 3.0), abs=15.0)


def test_a_quota_that_is_used_up_waits_for_its_refresh() -> None:
    work, traits = Work(total=8 * 3600, global_batch=16), Traits(session_seconds=12 * HOUR)
    quota = Quota(left_seconds=0.0, refresh_at=NOW + 48 * HOUR, window_seconds=168 * HOUR,
                  allowed_seconds=30 * HOUR)  # fmt: skip
    found = forecast(
        view(
            started(work, traits, HOUR), Offer("here", "cpu", traits, quota=quota), (), NOW + AFTER,
            pace=pace(work, STEADY, 0),
        )
    )  # fmt: skip
    assert found is not None
    assert NOW + 48 * HOUR < found.end < NOW + 53 * HOUR


def test_sessions_that_are_too_short_to_train_have_no_end() -> None:
    """The platform's limit was lowered since this one began."""
    traits = Traits(session_seconds=12.0)
    found = started(Work(total=100_000, global_batch=16), traits, 1000.0)
    speed = pace(found.job.work, STEADY, 0)
    assert forecast(view(found, Offer("here", "cpu", traits), (), NOW + AFTER, pace=speed)) is None


def test_a_run_that_never_trained_and_whose_speed_is_a_guess_has_no_forecast() -> None:
    work = Work(total=1000, global_batch=16)
    unknown = started(work, Traits(), None, profiles=job_without_claim().profiles)
    assert forecast(view(unknown, None, (), NOW)) is None


def job_without_claim() -> Job:
    given = job()
    return replace(given, profiles=tuple((name, replace(each, claim=None)) for name, each in given.profiles))


def test_a_session_that_does_not_train_yet_is_forecast_from_the_claim() -> None:
    found = forecast(view(record(*running()), None, (), NOW + 5.0))
    assert found is not None
    assert found.end > NOW + 1000 / 1.5
    assert found.low < found.end - 100.0, "a claim is uncertain"


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"fault": "its platform is gone"}, id="waits for a person"),
        pytest.param({"wish": Wish.HOLD}, id="will be held"),
        pytest.param({"session": None}, id="no session"),
    ],
)
def test_a_run_whose_end_depends_on_a_person_has_no_forecast(changed: dict[str, object]) -> None:
    found = replace(record(*running()), **changed)  # type: ignore[arg-type]
    assert forecast(view(found, None, (), NOW + 5.0)) is None


def test_a_run_that_is_being_stopped_has_no_forecast() -> None:
    found = record(*running(), Wished(NOW, Wish.CANCEL), StopRequested(NOW, Wish.CANCEL))
    assert found.run == RUN
    assert forecast(view(found, None, (), NOW + 5.0)) is None


def test_an_agents_clock_that_is_wrong_by_hours_moves_no_deadline() -> None:
    session = started(Work(total=1000, global_batch=16), Traits(session_seconds=1000.0), 1000.0).session
    assert session is not None
    ahead = 7 * HOUR
    status = AgentStatus("aaaa", 1, NOW + ahead + 60, "training", deadline=NOW + ahead + 1000)
    expected = NOW + 60 + 940 - 100 - 3
    assert leaves_at(session, status, 2.0, NOW + 60) == pytest.approx(expected)
    absurd = replace(status, deadline=1e300)
    assert leaves_at(session, absurd, 2.0, NOW + 60) == pytest.approx(expected + 60)


@pytest.mark.parametrize("budget", [60.0, 600.0, 12 * HOUR])
def test_the_margin_is_the_agents_own(budget: float) -> None:
    """The core cannot import the agent, so its figures are there twice."""
    saves = plan.Costs(saves=(2.0,), publications=(0.0,))
    assert plan.stop_at(budget, saves, 0.0, AGENT) == pytest.approx(budget - margin(budget) - 2.0)
    guess = plan.stop_at(budget, plan.Costs(), 0.0, AGENT)
    saving = min(forecasting.SAVE_GUESS_SECONDS, forecasting.SAVE_GUESS_SHARE * budget)
    assert guess == pytest.approx(budget - margin(budget) - saving)
