"""What is expected of every run: in one calendar, in the router's order, with a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from orchestrator.core.calendar import Calendar
from orchestrator.core.event import Slice
from orchestrator.core.job import Claim, Job, Mode, Overlap, Precision, Profile, Recurrence, Work
from orchestrator.core.layout import Standing
from orchestrator.core.lifecycle import Wish
from orchestrator.core.offer import Offer, Quota, Traits, Unavailable, until_human, until_time
from orchestrator.core.outlook import Expected, foresee, outlook
from orchestrator.core.pace import Pace
from orchestrator.core.queueing import Waiting, lay_out
from orchestrator.core.route import Case, judge, ways
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Coming, Scene, Watched
from tests.core.runs import NOW, accepted, job, record, running

HOUR = 3600.0
KAGGLE = Offer(
    "kaggle", "T4x2",
    Traits(session_seconds=12 * HOUR, wall_margin_seconds=600.0, setup_seconds=180.0, poll_seconds=60.0,
           owned=False, metered=True, durable_mid_run=False, hands_over=True),
    quota=Quota(30 * HOUR, NOW + 40 * HOUR, 168 * HOUR, 30 * HOUR),
)  # fmt: skip
BOX = Offer("box", "RTX3050", Traits(poll_seconds=2.0))


def claiming(hours: float, name: str = "tiny") -> Job:
    """A job of so many hours on any accelerator, by its claim."""
    claim = Claim((1.0, 1.0), 16, "any", "a test", "2026-11-25")
    profile = Profile(8, Precision.FP32, claim=claim)
    work = Work(total=int(hours * 3600), global_batch=16)
    return job(name=name, work=work, profiles=(("default", profile),))


def waiting(name: str, hours: float, **changes: object) -> RunRecord:
    return replace(RunRecord(name, claiming(hours, name), NOW), **changes)  # type: ignore[arg-type]


def alive(name: str, hours: float, offer: Offer, *, since: float = 0.0, step: int = 0) -> RunRecord:
    """A run whose session on the offer began `since` seconds ago."""
    found = record(*running())
    assert found.session is not None
    order = replace(
        found.session.order, run=name, session=f"{name}-s01", platform=offer.platform,
        accelerator=offer.accelerator, resume_step=step, expected_steps_per_second=1.0,
        budget_seconds=offer.traits.session_seconds,
    )  # fmt: skip
    began = NOW - since
    session = replace(
        found.session,
        order=order,
        traits=offer.traits,
        launched_at=began,
        started_at=began,
        assigned_at=began,
    )
    return replace(found, run=name, job=claiming(hours, name), session=session)


def seen(record: RunRecord, step: int) -> Watched:
    """It trains at one step a second."""
    assert record.session is not None
    pace = Pace(16.0, 0.02, 600.0, NOW, step, NOW - step)
    return Watched(record.run, record.session.name, pace)


def by_run(scene: Scene) -> dict[str, Expected]:
    return {each.run: each for each in outlook(scene)}


def hours_of(found: Expected) -> list[tuple[str, float, float]]:
    return [
        (hop.platform, round((hop.start - NOW) / HOUR, 1), round((hop.end - NOW) / HOUR, 1))
        for hop in found.hops
    ]


def test_one_slot_is_taken_by_one_run_after_the_other_the_shortest_first() -> None:
    scene = Scene(NOW, Case((BOX,)), waiting=(waiting("long", 10.0), waiting("short", 1.0)))
    found = outlook(scene)
    assert [each.run for each in found] == ["short", "long"]
    assert hours_of(found[0]) == [("box", 0.0, 1.0)]
    assert hours_of(found[1]) == [("box", 1.0, 11.0)]
    assert all(each.standing is Standing.WAITING for each in found)


def test_a_queued_run_waits_for_what_runs_now_and_both_have_an_end() -> None:
    runs = alive("first", 5.0, BOX, since=HOUR)
    scene = Scene(NOW, Case((BOX,)), (runs,), (waiting("second", 1.0),), watched={"first": seen(runs, 3600)})
    found = by_run(scene)
    assert hours_of(found["first"]) == [("box", -1.0, 4.0)]
    assert hours_of(found["second"]) == [("box", 4.0, 5.0)]
    first, second = found["first"].forecast, found["second"].forecast
    assert first is not None
    assert second is not None
    assert first.end == pytest.approx(NOW + 4 * HOUR, abs=30.0)
    assert second.low < second.end < (second.high or 0.0)
    assert found["second"].hops[0].to_step == 3600
    assert found["first"].standing is Standing.RUNNING


def test_a_run_at_its_session_limit_goes_on_with_further_sessions() -> None:
    runs = alive("first", 20.0, KAGGLE, since=HOUR)
    scene = Scene(NOW, Case((KAGGLE,)), (runs,), watched={"first": seen(runs, 3600)})
    found = by_run(scene)["first"]
    assert len(found.hops) == 2
    assert found.hops[0].why_it_ends == "session limit"
    assert found.hops[1].from_step == found.hops[0].to_step
    assert found.hops[1].to_step == 20 * 3600
    assert found.quota_seconds == pytest.approx(21 * HOUR, rel=0.05)


def test_a_run_that_outlives_its_quota_moves_to_what_is_free() -> None:
    """30 hours a week on Kaggle, then the own GPU."""
    fast = replace(KAGGLE, quota=replace(KAGGLE.quota, left_seconds=11 * HOUR))  # type: ignore[type-var]
    runs = waiting("first", 30.0)
    found = by_run(Scene(NOW, Case((fast, BOX)), (), (runs,)))["first"]
    assert {hop.platform for hop in found.hops} <= {"kaggle", "box"}
    assert found.forecast is not None
    assert found.forecast.end < NOW + 40 * HOUR


def test_a_closed_offer_is_used_from_the_time_at_which_it_opens() -> None:
    closed = replace(BOX, unavailable=Unavailable("down for repair", until_time(NOW + 6 * HOUR)))
    found = by_run(Scene(NOW, Case((closed,)), waiting=(waiting("first", 1.0),)))["first"]
    assert hours_of(found) == [("box", 6.0, 7.0)]


def test_an_offer_that_needs_a_person_has_no_date() -> None:
    closed = replace(BOX, unavailable=Unavailable("log in first", until_human("orchestrator doctor")))
    found = by_run(Scene(NOW, Case((closed,)), waiting=(waiting("first", 1.0),)))["first"]
    assert found.hops == ()
    assert found.forecast is None
    assert found.reason == "no offer is expected to open for it"


def test_a_paused_run_starts_no_earlier_than_its_pause_ends() -> None:
    paused = waiting("first", 1.0, until=NOW + 2 * HOUR, reason="cooling down")
    assert hours_of(by_run(Scene(NOW, Case((BOX,)), waiting=(paused,)))["first"]) == [("box", 2.0, 3.0)]


@pytest.mark.parametrize("changed", [{"fault": "its store is gone"}, {"wish": Wish.CANCEL}])
def test_a_run_that_a_person_holds_up_takes_no_place(changed: dict[str, object]) -> None:
    scene = Scene(NOW, Case((BOX,)), waiting=(waiting("held", 1.0, **changed), waiting("next", 2.0)))
    found = by_run(scene)
    assert hours_of(found["next"]) == [("box", 0.0, 2.0)]
    assert "held" not in found


def test_a_job_that_is_asked_about_is_laid_out_beside_the_others_with_each_offer_alone() -> None:
    asked = waiting("asked", 3.0, deadline=NOW + 4 * HOUR)
    scene = Scene(NOW, Case((KAGGLE, BOX)), waiting=(waiting("first", 1.0),), asked=(asked,))
    found = by_run(scene)["asked"]
    assert found.standing is Standing.ASKED
    assert found.meets_deadline is True
    ends = {each.platform: round((each.end - NOW) / HOUR, 1) for each in found.alone}
    assert ends == {"box": 3.0, "kaggle": 3.1}, "its deadline is near, so it goes first"
    assert all(each.low <= each.end <= each.high for each in found.alone)


def test_a_fire_to_come_takes_its_place_when_it_is_planned() -> None:
    coming = Coming("nightly", claiming(1.0, "nightly"), NOW + 5 * HOUR)
    found = by_run(Scene(NOW, Case((BOX,)), coming=(coming,)))[coming.name]
    assert found.standing is Standing.SCHEDULED
    assert hours_of(found) == [("box", 5.0, 6.0)]


def test_before_a_fire_a_waiting_run_makes_room_unless_no_place_is_kept() -> None:
    coming = Coming("nightly", claiming(1.0, "nightly"), NOW + 5 * HOUR)
    kept = Scene(NOW, Case((BOX,)), waiting=(waiting("first", 8.0),), coming=(coming,))
    first, second = hours_of(by_run(kept)["first"])
    assert first == ("box", 0.0, 5.0)
    assert second[1] >= 6.0
    found = by_run(replace(kept, unkept=frozenset({"nightly"})))
    assert hours_of(found["first"]) == [("box", 0.0, 8.0)]
    assert hours_of(found[coming.name]) == [("box", 8.0, 9.0)]


def test_without_offers_or_runs_nothing_is_expected() -> None:
    assert outlook(Scene(NOW, Case())) == ()
    [found] = outlook(Scene(NOW, Case(), waiting=(waiting("first", 1.0),)))
    assert found.forecast is None
    assert foresee(Scene(NOW, Case(), waiting=(waiting("first", 1.0),))) == {}


def test_a_speed_that_nobody_knows_makes_no_end() -> None:
    unknown = RunRecord("first", job(profiles=(("default", Profile(8, Precision.FP32)),)), NOW)
    [found] = outlook(Scene(NOW, Case((BOX,)), waiting=(unknown,)))
    assert found.forecast is None


# --- The router ---------------------------------------------------------------------------------------------


def drawn(random: Random) -> tuple[tuple[Offer, ...], tuple[RunRecord, ...]]:
    kaggle = replace(
        KAGGLE, slots=random.randint(1, 2),
        quota=replace(KAGGLE.quota, left_seconds=random.uniform(0.0, 30.0) * HOUR),  # type: ignore[type-var]
    )  # fmt: skip
    colab = Offer("colab", "T4", Traits(session_seconds=8 * HOUR, owned=False, setup_seconds=120.0),
                  quota=Quota.of_units(random.uniform(0.0, 60.0), 1.5))  # fmt: skip
    cpu = Offer("here", "cpu", Traits())
    offers = random.sample(
        [kaggle, colab, replace(BOX, slots=random.randint(1, 2)), cpu], random.randint(2, 4)
    )
    runs = [
        waiting(f"run{number}", random.choice((0.2, 2.0, 15.0, 60.0)), submitted_at=NOW - number * 60.0)
        for number in range(random.randint(1, 8))
    ]
    return tuple(offers), tuple(runs)


def decided(offers: Sequence[Offer], runs: Sequence[RunRecord]) -> dict[str, str]:
    """Where the router starts runs now, run by run in its order."""
    queue = [Waiting(run, ways(run, Case(tuple(offers)), NOW)) for run in runs]
    places = list(lay_out(queue, Calendar(offers, (), NOW)))
    found = {}
    for number, place in enumerate(places):
        case = Case(tuple(offers), openings=place.openings, others=len(places) - number - 1)
        chosen = judge(place.waiting.record, case, NOW).chosen
        if chosen is not None:
            found[place.waiting.record.run] = f"{chosen.offer.platform}/{chosen.offer.accelerator}"
    return found


def test_the_first_hop_of_a_plan_is_what_the_router_decides_now() -> None:
    differ = []
    for seed in range(60):
        offers, runs = drawn(Random(seed))
        router = decided(offers, runs)
        scene = Scene(NOW, Case(offers), waiting=runs)
        planned = {
            each.run: f"{each.hops[0].platform}/{each.hops[0].accelerator}"
            for each in outlook(scene)
            if each.hops and each.hops[0].start <= NOW + 1.0
        }
        differ += [(seed, run) for run in planned.keys() | router if planned.get(run) != router.get(run)]
    assert differ == []


def test_a_range_holds_the_end_and_never_lies_in_the_past() -> None:
    for seed in range(60):
        offers, runs = drawn(Random(seed))
        for each in outlook(Scene(NOW, Case(offers), waiting=runs)):
            told = each.forecast
            if told is not None:
                assert NOW <= told.low <= told.end <= (told.high or math.inf), (seed, each.run)
                assert told.end >= each.hops[-1].end - 1.0


# --- Schedules ----------------------------------------------------------------------------------------------


def nightly(hours: float, mode: Mode) -> Job:
    return replace(claiming(hours, "nightly"), schedule=Recurrence("0 1 * * *", mode=mode))


def fires(job: Job, window: float | None, days: int = 3) -> tuple[Coming, ...]:
    return tuple(
        Coming("nightly", job, at, None if window is None else at + window * HOUR)
        for at in (NOW + (5.0 + 24.0 * day) * HOUR for day in range(days))
    )


def test_each_fire_of_a_fresh_schedule_is_a_run_of_its_own() -> None:
    found = outlook(Scene(NOW, Case((BOX,)), coming=fires(nightly(2.0, Mode.FRESH), None)))
    assert [hours_of(each) for each in found] == [[("box", at, at + 2.0)] for at in (5.0, 29.0, 53.0)]
    assert all(each.hops[0].to_step == 2 * 3600 for each in found)
    assert len({each.run for each in found}) == 3


def test_a_schedule_that_continues_trains_a_slice_in_each_window_until_it_is_done() -> None:
    """Nine hours in windows of four: the third slice is shorter, and the fourth fire has nothing to do."""
    found = outlook(Scene(NOW, Case((BOX,)), coming=fires(nightly(9.0, Mode.CONTINUE), 4.0, days=4)))
    assert [hours_of(each)[0][:2] for each in found] == [("box", 5.0), ("box", 29.0), ("box", 53.0)]
    ends = [each.hops[-1].end - (NOW + at * HOUR) for each, at in zip(found, (5.0, 29.0, 53.0), strict=True)]
    assert all(end <= 4 * HOUR + 1.0 for end in ends[:2])
    assert ends[2] < 2 * HOUR
    steps = [each.hops[-1].to_step for each in found]
    assert steps[0] < steps[1] < steps[2] == 9 * 3600
    assert [each.hops[-1].why_it_ends for each in found] == ["its window closes", "its window closes", "done"]


def test_a_sleeping_run_goes_on_where_it_is() -> None:
    sleeper = _slept(waiting("nightly-abcdefgh", 9.0, schedule="nightly", asleep=True), step=7 * 3600)
    scene = Scene(
        NOW, Case((BOX,)), waiting=(sleeper,), coming=fires(nightly(9.0, Mode.CONTINUE), 4.0, days=3)
    )
    [found] = outlook(scene)
    assert found.hops[0].from_step == 7 * 3600
    assert found.hops[-1].to_step == 9 * 3600


def _slept(record: RunRecord, step: int) -> RunRecord:
    return replace(record, accepted=(accepted(step),))


def test_a_fire_takes_its_place_from_runs_that_wait() -> None:
    """A run of ten hours is submitted now; the fire's run of two hours needs the only slot in five."""
    scene = Scene(
        NOW, Case((BOX,)), waiting=(waiting("long", 10.0),), coming=fires(nightly(2.0, Mode.FRESH), None, 1)
    )
    found = by_run(scene)
    assert found["long"].forecast is not None
    assert len({hop.start for each in found.values() for hop in each.hops}) >= 2
    spans = sorted((hop.start, hop.end) for each in found.values() for hop in each.hops)
    assert all(before[1] <= after[0] + 60.0 for before, after in pairwise(spans)), spans


def test_a_slice_that_runs_now_ends_with_its_session_and_a_fire_after_it_goes_on_from_there() -> None:
    """The first fire comes while the run is awake, and begins no slice of its own."""
    job = nightly(20.0, Mode.CONTINUE)
    runs = replace(
        alive("nightly-abcdefgh", 20.0, KAGGLE, since=HOUR),
        job=job,
        schedule="nightly",
        slice=Slice(NOW - HOUR),
    )
    scene = Scene(NOW, Case((KAGGLE,)), (runs,), watched={runs.run: seen(runs, 3600)},
                  coming=fires(job, None, days=2))  # fmt: skip
    now, later = outlook(scene)
    assert len(now.hops) == 1
    assert now.forecast is not None
    assert later.forecast is not None
    assert now.forecast.end == later.forecast.end, "the sleep until the fire counts"
    assert now.forecast.sessions == 2
    assert now.reason == "it goes on when its schedule wakes it"
    assert later.hops[0].from_step == now.hops[0].to_step > 3600
    assert later.run.startswith("nightly 2026-")
    assert later.hops[0].start >= fires(job, None, days=2)[1].planned


def test_a_slice_without_a_window_is_one_session() -> None:
    """25 hours in sessions of 12: three nights, of which the last one ends the run."""
    found = outlook(Scene(NOW, Case((KAGGLE,)), coming=fires(nightly(25.0, Mode.CONTINUE), None, days=4)))
    assert [len(each.hops) for each in found] == [1, 1, 1]
    assert [each.hops[0].why_it_ends for each in found] == ["session limit", "session limit", "done"]
    assert [each.reason for each in found][:2] == ["it goes on when its schedule wakes it"] * 2
    steps = [each.hops[0].to_step for each in found]
    assert steps[0] < steps[1] < steps[2] == 25 * 3600
    for before, after in pairwise(found):
        assert before.hops[0].to_step == pytest.approx(after.hops[0].from_step, rel=0.01)


def test_fires_within_one_window_are_one_slice() -> None:
    often = tuple(replace(each, planned=each.planned + 600.0 * n) for each in
                  fires(nightly(9.0, Mode.CONTINUE), 4.0) for n in range(3))  # fmt: skip
    found = outlook(Scene(NOW, Case((BOX,)), coming=often))
    assert len(found) == 3
    assert found[0].reason == "its window closes before it is done"


def test_a_window_is_kept_over_more_sessions_than_are_planned_one_by_one() -> None:
    box = replace(BOX, traits=replace(BOX.traits, session_seconds=120.0, setup_seconds=20.0))
    [found] = outlook(Scene(NOW, Case((box,)), coming=fires(nightly(9.0, Mode.CONTINUE), 1.0, days=1)))
    assert found.forecast is None
    assert found.hops[-1].end <= NOW + 6.0 * HOUR
    assert found.reason == "its window closes before it is done"


@pytest.mark.parametrize(
    ("overlap", "spans"),
    [
        (Overlap.SKIP, [(5.0, 41.0), (53.0, 89.0)]),
        (Overlap.QUEUE, [(5.0, 41.0), (41.0, 77.0), (77.0, 113.0)]),
        (Overlap.REPLACE, [(5.0, 29.0), (29.0, 53.0), (53.0, 89.0)]),
    ],
)
def test_a_run_that_outlasts_the_next_fire_overlaps_as_its_schedule_says(
    overlap: Overlap, spans: list[tuple[float, float]]
) -> None:
    """A run of 36 hours, each day."""
    each_day = nightly(36.0, Mode.FRESH)
    assert each_day.schedule is not None
    each_day = replace(each_day, schedule=replace(each_day.schedule, overlap=overlap))
    found = outlook(Scene(NOW, Case((replace(BOX, slots=3),)), coming=fires(each_day, None)))
    assert [hours_of(each)[0][1:] for each in found] == [pytest.approx(span, abs=0.2) for span in spans]


def test_two_fires_in_one_minute_are_two_runs() -> None:
    job = replace(nightly(1.0, Mode.FRESH), schedule=Recurrence("x", mode=Mode.FRESH, overlap=Overlap.QUEUE))
    coming = tuple(Coming("nightly", job, NOW + at) for at in (0.0, 20.0, 40.0))
    found = outlook(Scene(NOW, Case((replace(BOX, slots=3),)), coming=coming))
    assert len({each.run for each in found}) == 3
    assert [each.planned for each in found] == [NOW, NOW + 20.0, NOW + 40.0]


def test_a_wait_counts_once_in_what_is_extrapolated() -> None:
    """More sessions than are planned one by one, after a wait of a day."""
    box = replace(BOX, traits=replace(BOX.traits, session_seconds=HOUR))
    later = replace(box, unavailable=Unavailable("away", until_time(NOW + 24 * HOUR)))
    at_once, waits = (
        outlook(Scene(NOW, Case((offer,)), waiting=(waiting("long", 60.0),)))[0].forecast
        for offer in (box, later)
    )
    assert at_once is not None
    assert waits is not None
    assert waits.end - at_once.end == pytest.approx(24 * HOUR, abs=600.0)


# --- Growing runs: the sleep between slices counts ---------------------------------------------------------


def growing(hours: float, *, asleep: bool = False, step: int = 0) -> RunRecord:
    """A run of the nightly schedule on the box: 4 hours each night, and none of them trains it to the end."""
    job = nightly(hours, Mode.CONTINUE)
    given = Slice(NOW - HOUR, NOW + 3 * HOUR, NOW + 5 * HOUR)
    if asleep:
        return replace(
            _slept(waiting("grows", hours, schedule="nightly"), step), job=job, slice=given, asleep=True
        )
    runs = alive("grows", hours, BOX, since=HOUR)
    assert runs.session is not None
    order = replace(runs.session.order, budget_seconds=4 * HOUR)
    return replace(runs, job=job, schedule="nightly", slice=given, session=replace(runs.session, order=order))


def test_the_end_of_a_growing_run_is_that_of_the_slice_that_is_its_last() -> None:
    """Ten hours: three are left of this window, four fit into the next one, and the rest needs a third."""
    runs = growing(10.0)
    scene = Scene(
        NOW, Case((BOX,)), (runs,), coming=fires(runs.job, 4.0), watched={"grows": seen(runs, 3600)}
    )
    told = foresee(scene)["grows"]
    assert NOW + 29 * HOUR < told.end < NOW + 33 * HOUR, "not nine hours from now"
    assert told.low <= told.end <= (told.high or math.inf)
    found = by_run(scene)
    assert found["grows"].forecast == told
    assert told.sessions == sum(len(each.hops) for each in found.values())
    assert all(hop.end <= NOW + 3 * HOUR for hop in found["grows"].hops), "later slices have their own rows"


def test_a_run_that_sleeps_has_an_end_too() -> None:
    sleeper = growing(9.0, asleep=True, step=7 * 3600)
    told = foresee(Scene(NOW, Case((BOX,)), waiting=(sleeper,), coming=fires(sleeper.job, 4.0)))["grows"]
    assert NOW + 7 * HOUR < told.end < NOW + 7.5 * HOUR, "two hours, from the fire in five hours on"
    assert told.sessions == 1


def test_a_growing_run_has_no_end_if_the_fires_do_not_suffice() -> None:
    runs = growing(40.0)
    scene = Scene(
        NOW, Case((BOX,)), (runs,), coming=fires(runs.job, 4.0), watched={"grows": seen(runs, 3600)}
    )
    assert "grows" not in foresee(scene)
    paused = replace(scene, coming=())
    assert "grows" not in foresee(paused)


def test_the_range_of_a_growing_run_counts_a_further_night() -> None:
    """Seven hours and a half fill two windows almost: if training is a bit slower, there is a third one."""
    sleeper = growing(7.8, asleep=True)
    claim = foresee(Scene(NOW, Case((BOX,)), waiting=(sleeper,), coming=fires(sleeper.job, 4.0)))["grows"]
    assert claim.end < NOW + 34 * HOUR
    assert claim.high is None or claim.high > NOW + 53 * HOUR


def test_a_job_with_a_schedule_that_is_asked_about_is_laid_out_in_its_slices() -> None:
    job = nightly(7.0, Mode.CONTINUE)
    asked = RunRecord("nightly", job, NOW, schedule="nightly", deadline=NOW + 20 * HOUR)
    [found] = outlook(Scene(NOW, Case((BOX,)), asked=(asked,), coming=fires(job, 4.0)))
    assert found.standing is Standing.ASKED
    assert [hop.start - NOW for hop in found.hops] == [5 * HOUR, 29 * HOUR]
    assert found.hops[-1].to_step == 7 * 3600
    assert found.forecast is not None
    assert found.meets_deadline is False
    [found] = outlook(Scene(NOW, Case((BOX,)), asked=(asked,)))
    assert (found.hops, found.reason) == ((), "its schedule does not fire")
    long = replace(asked, job=nightly(40.0, Mode.CONTINUE))
    [found] = outlook(Scene(NOW, Case((BOX,)), asked=(long,), coming=fires(long.job, 4.0)))
    assert len(found.hops) == 3
    assert found.reason == "it is not done within the fires that are laid out"


def test_a_growing_run_that_waits_for_a_slot_is_not_told_how_its_last_session_ended() -> None:
    """Its session was lost, and nothing is known of its speed: the slot is another run's."""
    unknown = replace(nightly(9.0, Mode.CONTINUE), profiles=(("default", Profile(8, Precision.FP32)),))
    lost = RunRecord("grows", unknown, NOW, generation=1, schedule="nightly", slice=Slice(NOW - 60.0),
                     reason="it is out of reach on here of vm")  # fmt: skip
    runs = alive("first", 5.0, BOX, since=HOUR)
    scene = Scene(NOW, Case((BOX,)), (runs,), (lost,), watched={"first": seen(runs, 3600)})
    slow = "its speed is unknown until its first session measures it"
    assert by_run(scene)["grows"].reason == f"it waits for a free slot; {slow}"
    assert by_run(replace(scene, running=()))["grows"].reason == slow
    assert by_run(replace(scene, case=Case()))["grows"].reason == "no offer is expected to open for it"
    known = replace(lost, job=nightly(9.0, Mode.CONTINUE))
    assert hours_of(by_run(replace(scene, waiting=(known,)))["grows"]) == [("box", 4.0, 13.0)]
    pauses = replace(lost, until=NOW + 60.0, paused_at=NOW, reason="lost (1 of 3 without progress)")
    assert by_run(replace(scene, waiting=(pauses,)))["grows"].reason.startswith("lost (1 of 3")
