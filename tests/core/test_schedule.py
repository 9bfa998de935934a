"""Which fires of a schedule take place, and what they do to its runs."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from orchestrator.core.edits import clash, differences
from orchestrator.core.event import (
    Cancelled,
    Completed,
    Event,
    GaveUp,
    Held,
    Slept,
    Slice,
    Submitted,
    Unscheduled,
    Wished,
    Woken,
)
from orchestrator.core.job import (
    CatchUp,
    CheckpointPolicy,
    Input,
    Job,
    Mode,
    Needs,
    NoticeKind,
    Notify,
    OnNan,
    Overlap,
    Prefer,
    Python,
    Recurrence,
    Requirements,
    RouteWish,
    Window,
    Work,
)
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.schedule import (
    CATCH_UP_MAX,
    WAITING_MAX,
    Agenda,
    Fire,
    FireOutcome,
    Planned,
    Schedule,
    Steps,
    decide,
    run_name,
)
from tests.core import runs

NOW = runs.NOW
DAY, HOUR = 86400.0, 3600.0
NIGHT = Window(22 * 60, 7 * 60)


def schedule(mode: Mode = Mode.FRESH, *, run: str = "", **changes: object) -> Schedule:
    """One that was last handled a day ago. `changes` are of its recurrence."""
    given = Recurrence("0 1 * * *", mode=mode, **changes)  # type: ignore[arg-type]
    job = runs.job(name="nightly", schedule=given)
    return Schedule("nightly", job, "home", NOW - 9 * DAY, NOW - DAY, run=run)


def run(name: str = "nightly-1", *events: Event, **changes: object) -> RunRecord:
    """A run of the schedule, after these events."""
    record = submit(Submitted(name, runs.job(name="nightly"), NOW - DAY, "home", schedule="nightly"))
    for event in events:
        record = apply(record, event)
    return replace(record, **changes)  # type: ignore[arg-type]


DONE = (*runs.running(), runs.accept(1000), runs.ended(Outcome.COMPLETED, step=1000), Completed(NOW))


def due(*seconds_ago: float, closes: float | None = None, older: int = 0) -> Agenda:
    planned = tuple(Planned(NOW - s, NOW - s, closes) for s in sorted(seconds_ago, reverse=True))
    oldest = None if not older else planned[0].planned - older * DAY
    return Agenda(planned, older, oldest, Planned(NOW + DAY, NOW + DAY + 5.0))


def outcomes(steps: Steps) -> list[tuple[FireOutcome, int]]:
    return [(fire.outcome, fire.count) for fire in steps.fires]


# --- What is due ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "ago", "older", "expected"),
    [
        (CatchUp.ONE, [], 0, []),
        (CatchUp.NONE, [5.0], 0, [(FireOutcome.SUBMITTED, 1)]),
        (CatchUp.NONE, [7200.0], 0, [(FireOutcome.MISSED, 1)]),
        (CatchUp.NONE, [7200.0, 5.0], 0, [(FireOutcome.MISSED, 1), (FireOutcome.SUBMITTED, 1)]),
        (CatchUp.ONE, [7200.0], 0, [(FireOutcome.SUBMITTED, 1)]),
        (CatchUp.ONE, [9000.0, 7200.0, 6000.0], 0, [(FireOutcome.MISSED, 2), (FireOutcome.SUBMITTED, 1)]),
        (CatchUp.ONE, [9000.0, 7200.0, 5.0], 0, [(FireOutcome.MISSED, 2), (FireOutcome.SUBMITTED, 1)]),
        (CatchUp.ALL, [9000.0, 7200.0], 0, [(FireOutcome.SUBMITTED, 1), (FireOutcome.WAITING, 1)]),
        (CatchUp.ALL, [7200.0], 500_000, [(FireOutcome.MISSED, 500_000), (FireOutcome.SUBMITTED, 1)]),
        (CatchUp.ONE, [9000.0, 7200.0], 40, [(FireOutcome.MISSED, 41), (FireOutcome.SUBMITTED, 1)]),
    ],
)
def test_missed_fires_are_made_up_for_as_the_job_says(
    catch_up: CatchUp, ago: list[float], older: int, expected: list[tuple[FireOutcome, int]]
) -> None:
    steps = decide(schedule(catch_up=catch_up, overlap=Overlap.QUEUE), due(*ago, older=older), [], NOW)
    assert outcomes(steps) == expected
    planned = [fire.planned for fire in steps.fires]
    assert len(set(planned)) == len(planned), "a fire's key is its planned instant"
    assert steps.schedule.last == (NOW - min(ago) if ago else NOW - DAY)
    assert steps.next_at == NOW + DAY + 5.0


def test_missed_fires_that_nobody_counted_are_said_to_be_more() -> None:
    agenda = due(7200.0, 5.0, older=9000)
    [counted, _] = decide(schedule(), agenda, [], NOW).fires
    [uncounted, _] = decide(schedule(), replace(agenda, uncounted=True), [], NOW).fires
    assert counted.reason.startswith("9,001 fires from ")
    assert uncounted.reason.startswith("more than 9,001 fires from ")


def test_a_fire_is_late_only_after_a_while_or_once_its_window_is_closed() -> None:
    never = schedule(catch_up=CatchUp.NONE)
    assert outcomes(decide(never, due(59.0), [], NOW)) == [(FireOutcome.SUBMITTED, 1)]
    assert outcomes(decide(never, due(61.0), [], NOW)) == [(FireOutcome.MISSED, 1)]
    assert outcomes(decide(never, due(61.0, closes=NOW + 1), [], NOW)) == [(FireOutcome.SUBMITTED, 1)]


def test_a_run_carries_where_it_comes_from_and_always_the_same_name() -> None:
    steps = decide(schedule(), due(5.0), [], NOW)
    [event] = steps.submissions
    assert event.schedule == "nightly"
    assert event.origin == "2026-09-21T14:13:15Z"
    assert event.slice is None
    assert event.run == run_name(schedule(), NOW - 5.0) == steps.schedule.run == steps.fires[0].run
    assert event.run != run_name(schedule(), NOW - 6.0)


def test_what_was_fired_before_the_clock_was_set_back_is_not_fired_again() -> None:
    ahead = replace(schedule(), last=NOW + 30 * DAY)
    agenda = replace(due(5.0), fired=frozenset([NOW - 5.0]))
    assert ahead.counts_from(NOW) == NOW
    steps = decide(ahead, Agenda(following=agenda.following), [], NOW)
    assert (steps.schedule.last, steps.fires) == (NOW, ())
    steps = decide(schedule(), agenda, [], NOW)
    assert (steps.schedule.last, steps.fires) == (NOW - 5.0, ())


def test_a_paused_schedule_fires_only_when_a_person_asks() -> None:
    paused = replace(schedule(), paused_at=NOW - HOUR)
    steps = decide(paused, due(5.0), [], NOW)
    assert (steps.fires, steps.next_at) == ((), None)
    asked = decide(paused, due(5.0), [], NOW, Planned(NOW, NOW))
    assert outcomes(asked) == [(FireOutcome.SUBMITTED, 1)]
    assert asked.next_at is None


# --- A new run each time --------------------------------------------------------------------------------


def test_overlap_skip_says_what_was_under_way() -> None:
    steps = decide(schedule(run="nightly-1"), due(5.0), [run()], NOW)
    assert steps.fires == (
        Fire(NOW - 5.0, NOW, FireOutcome.SKIPPED, "nightly-1", "nightly-1 is still queued"),
    )
    assert not steps.submissions


def test_overlap_queue_keeps_the_fire_until_the_earlier_run_is_over() -> None:
    queued = schedule(run="nightly-1", overlap=Overlap.QUEUE)
    first = decide(queued, due(5.0), [run()], NOW)
    assert outcomes(first) == [(FireOutcome.WAITING, 1)]
    assert first.schedule.waiting == (NOW - 5.0,)
    still = decide(first.schedule, Agenda(), [run()], NOW)
    assert (still.settled, still.submissions) == ((), ())
    then = decide(first.schedule, Agenda(), [run("nightly-1", *DONE)], NOW + HOUR)
    [fire] = then.settled
    assert (fire.planned, fire.outcome, fire.run) == (
        NOW - 5.0,
        FireOutcome.SUBMITTED,
        then.submissions[0].run,
    )
    assert then.schedule.waiting == ()


def test_the_queue_of_fires_is_bounded() -> None:
    full = replace(schedule(run="nightly-1", overlap=Overlap.QUEUE), waiting=(1.0,) * WAITING_MAX)
    [fire] = decide(full, due(5.0), [run()], NOW).fires
    assert (fire.outcome, fire.reason) == (FireOutcome.SKIPPED, "100 fires wait already")


def test_overlap_replace_cancels_the_earlier_run_without_discarding_its_work() -> None:
    steps = decide(schedule(run="nightly-1", overlap=Overlap.REPLACE), due(5.0), [run()], NOW)
    assert steps.changes == ((run(), (Wished(NOW, Wish.CANCEL),)),)
    assert outcomes(steps) == [(FireOutcome.SUBMITTED, 1)]
    again = run("nightly-1", Wished(NOW, Wish.CANCEL))
    assert decide(schedule(run="nightly-1", overlap=Overlap.REPLACE), due(5.0), [again], NOW).changes == ()


def test_of_several_fires_at_once_only_the_last_replaces_the_earlier_run() -> None:
    given = schedule(run="nightly-1", overlap=Overlap.REPLACE, catch_up=CatchUp.ALL)
    steps = decide(given, due(9000.0, 7200.0, 5.0), [run()], NOW)
    assert [fire.outcome for fire in steps.fires] == [FireOutcome.SKIPPED] * 2 + [FireOutcome.SUBMITTED]
    assert len(steps.submissions) == 1
    [(changed, (wished,))] = steps.changes
    assert changed.run == "nightly-1"
    assert isinstance(wished, Wished)


def test_a_fresh_run_with_a_window_sleeps_outside_it_and_wakes_at_each_opening() -> None:
    given = schedule(window=NIGHT)
    open_now = replace(due(5.0, closes=NOW + HOUR), closes=NOW + HOUR, opens=NOW + 20 * HOUR)
    steps = decide(given, open_now, [], NOW)
    [event] = steps.submissions
    assert event.slice == Slice(NOW - 5.0, NOW + HOUR, NOW + 20 * HOUR)
    assert steps.next_at == NOW + 20 * HOUR
    asleep = apply(submit(event), Slept(NOW + HOUR, "asleep", NOW + 20 * HOUR))
    later = NOW + 20 * HOUR
    opened = decide(steps.schedule, Agenda(closes=later + 9 * HOUR, opens=later + DAY), [asleep], later)
    assert opened.changes == ((asleep, (Woken(later, Slice(NOW - 5.0, later + 9 * HOUR, later + DAY)),)),)


# --- One growing run ------------------------------------------------------------------------------------


def test_the_first_fire_submits_the_run_and_later_ones_wake_it() -> None:
    first = decide(schedule(Mode.CONTINUE), due(5.0, closes=NOW + HOUR), [], NOW)
    [event] = first.submissions
    given = Slice(NOW - 5.0, NOW + HOUR, NOW + DAY + 5.0)
    assert event.slice == given
    asleep = apply(submit(event), Slept(NOW, "asleep", NOW + DAY))
    second = decide(first.schedule, due(3.0, closes=NOW + HOUR), [asleep], NOW)
    assert second.changes == ((asleep, (Woken(NOW, replace(given, planned=NOW - 3.0)),)),)
    assert outcomes(second) == [(FireOutcome.WOKEN, 1)]


def test_a_growing_run_that_is_still_awake_goes_on_with_the_new_slice() -> None:
    awake = run("nightly-1", *runs.running(), slice=Slice(NOW - DAY))
    [fire] = decide(schedule(Mode.CONTINUE, run="nightly-1"), due(5.0), [awake], NOW).fires
    assert (fire.outcome, fire.reason) == (FireOutcome.WOKEN, "it was still awake, and goes on")


def test_several_slices_that_are_due_are_one_and_none_begins_outside_its_window() -> None:
    asleep = run("nightly-1", Slept(NOW, "asleep"), slice=Slice(NOW - DAY, NOW - HOUR))
    given = schedule(Mode.CONTINUE, run="nightly-1", window=NIGHT, catch_up=CatchUp.ALL)
    closed = decide(given, due(7200.0, 9000.0, closes=NOW - 10.0), [asleep], NOW)
    assert outcomes(closed) == [(FireOutcome.MISSED, 2)]
    still_open = decide(given, due(7200.0, 9000.0, closes=NOW + 10.0), [asleep], NOW)
    assert outcomes(still_open) == [(FireOutcome.MISSED, 1), (FireOutcome.WOKEN, 1)]


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((Held(NOW, "look at it"),), "nightly-1 is held: look at it"),
        ((Wished(NOW, Wish.HOLD),), "nightly-1 is asked to hold"),
    ],
)
def test_a_run_that_waits_for_a_person_is_not_woken(events: tuple[Event, ...], reason: str) -> None:
    record = run("nightly-1", *events, slice=Slice(NOW - DAY))
    steps = decide(schedule(Mode.CONTINUE, run="nightly-1"), due(5.0), [record], NOW)
    assert [(fire.outcome, fire.reason) for fire in steps.fires] == [(FireOutcome.SKIPPED, reason)]
    assert steps.changes == ()


FAILED = (*runs.running(), runs.ended(Outcome.CRASHED), GaveUp(NOW, "no"))


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        (DONE, "finished: nightly-1 is done"),
        (FAILED, "its run nightly-1 failed"),
        ((Cancelled(NOW),), "its run nightly-1 was cancelled"),
    ],
)
def test_a_growing_run_that_is_over_ends_its_schedule(events: tuple[Event, ...], ended: str) -> None:
    steps = decide(schedule(Mode.CONTINUE, run="nightly-1"), due(5.0), [run("nightly-1", *events)], NOW)
    assert (steps.schedule.ended, steps.fires, steps.next_at) == (ended, (), None)


def test_more_steps_revive_a_finished_run_and_nothing_is_made_up_for() -> None:
    more = runs.job(name="nightly", work=Work(total=2000, global_batch=16), schedule=Recurrence("0 1 * * *"))
    given = replace(
        schedule(Mode.CONTINUE, run="nightly-1"), job=more, edition=1, ended="finished: nightly-1 is done"
    )
    record = run("nightly-1", *DONE)
    steps = decide(given, due(9000.0), [record], NOW)
    assert (steps.schedule.ended, steps.fires, steps.schedule.last) == ("", (), NOW)
    woken = decide(steps.schedule, due(closes=None), [record], NOW + DAY, Planned(NOW + DAY, NOW + DAY))
    [(before, [event])] = woken.changes
    assert isinstance(event, Woken)
    assert event.job == more
    after = apply(before, event)
    assert (after.phase, after.job.work.total, after.ended_at) == (Phase.QUEUED, 2000, None)
    assert woken.schedule.given == 1


def test_an_edit_reaches_the_growing_run_between_two_sessions_only() -> None:
    edited = replace(schedule(Mode.CONTINUE, run="nightly-1"), edition=1)
    for events, job in ((runs.running(), None), ((), edited.job)):
        record = run("nightly-1", *events, slice=Slice(NOW - DAY))
        [(_, [event])] = decide(edited, due(5.0), [record], NOW).changes
        assert isinstance(event, Woken)
        assert event.job == job


def test_a_sleeping_run_learns_when_its_next_slice_is() -> None:
    asleep = run("nightly-1", Slept(NOW, "asleep", NOW + 60), slice=Slice(NOW - DAY))
    given = schedule(Mode.CONTINUE, run="nightly-1")
    agenda = Agenda(following=Planned(NOW + DAY, NOW + DAY))
    [(_, [event])] = decide(given, agenda, [asleep], NOW).changes
    assert event == Slept(NOW, "asleep until 2026-09-22 14:13Z: schedule nightly", NOW + DAY, told=True)
    assert decide(given, agenda, [apply(asleep, event)], NOW).changes == ()
    [(_, [paused])] = decide(replace(given, paused_at=NOW), agenda, [asleep], NOW).changes
    assert paused == Slept(NOW, "asleep: schedule nightly is paused", None, told=True)


def test_a_run_whose_schedule_is_gone_is_left_alone() -> None:
    gone = run("nightly-1", Slept(NOW, "asleep"), Unscheduled(NOW), slice=Slice(NOW - DAY, gone=True))
    given = schedule(window=NIGHT)
    assert decide(given, Agenda(closes=NOW + HOUR, opens=NOW + DAY), [gone], NOW).changes == ()


@pytest.mark.parametrize("overlap", Overlap)
def test_a_fire_whose_run_the_ledger_has_took_place(overlap: Overlap) -> None:
    """It came back from a store, after the schedule came out of a backup."""
    given = schedule(overlap=overlap, catch_up=CatchUp.NONE, run="nightly-1")
    name = run_name(given, NOW - HOUR)
    records = [run("nightly-1", *DONE), run(name)]
    steps = decide(given, due(2 * HOUR, HOUR), records, NOW, existing=frozenset([name]))
    assert [(each.outcome, each.run) for each in steps.fires] == [
        (FireOutcome.SUBMITTED, name),
        (FireOutcome.MISSED, ""),
    ]
    assert steps.submissions == ()
    assert steps.schedule.run == name, "the next fire waits for it"


def test_a_fire_that_waited_and_whose_run_the_ledger_has_is_settled() -> None:
    given = replace(schedule(overlap=Overlap.QUEUE, run="nightly-1"), waiting=(NOW - DAY,))
    name = run_name(given, NOW - DAY)
    records = [run("nightly-1", *DONE), run(name)]
    steps = decide(given, Agenda(), records, NOW, existing=frozenset([name]))
    assert [(each.outcome, each.run) for each in steps.settled] == [(FireOutcome.SUBMITTED, name)]
    assert (steps.submissions, steps.schedule.run) == ((), name)


# --- Edits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"bundle": "c" * 64}, ""),
        ({"work": Work(total=2000, global_batch=16)}, ""),
        ({"work": Work(total=1000, global_batch=32)}, "work.global_batch was 16 and would be 32"),
        ({"seed": 7}, "seed was 0 and would be 7"),
        (
            {"work": Work(total=10, global_batch=16)},
            "work.total would be 10, and step 500 is",
        ),
    ],
)
def test_an_edit_never_changes_what_a_growing_run_computes(changes: dict[str, object], told: str) -> None:
    record = run("nightly-1", *runs.running(), runs.accept(500))
    found = clash(record, runs.job(name="nightly", **changes))
    assert found.startswith(told)
    assert bool(found) is bool(told)


def test_an_edit_names_what_it_changes() -> None:
    given = schedule()

    def edited(**changes: object) -> tuple[str, ...]:
        job: Job = replace(given.job, **changes)  # type: ignore[arg-type]
        return differences(given, job, "home")

    assert edited() == ()
    assert edited(bundle="c" * 64, command=("x",)) == ("source", "command")
    assert edited(schedule=Recurrence("0 2 * * *", mode=Mode.FRESH, jitter_seconds=5.0)) == (
        "schedule.cron", "schedule.jitter",
    )  # fmt: skip
    assert edited(without_progress=9) == ("retry",)
    assert differences(given, given.job, "other") == ("the home store",)


JOB_EDITS = {
    "command": ("x",), "work": Work(2000, 16), "profiles": (), "bundle": "c" * 64, "image": "x",
    "requirements": "other.txt", "seed": 7, "tags": ("x",), "inputs": (Input("x", "y"),),
    "needs": Needs(disk_gb=1.0), "checkpoint": CheckpointPolicy(60.0), "route": RouteWish(Prefer.CHEAPEST),
    "without_progress": 9, "env": (("A", "1"),), "secrets": ("A",), "requirements_lock": "x.lock",
    "variants": (("gpu", Requirements("gpu.txt")),), "schedule": Recurrence("0 2 * * *", mode=Mode.FRESH),
    "notify": Notify((NoticeKind.DONE,), "env:HOOK"),  "outputs": ("x",), "shell": True, "on_nan": OnNan.FAIL,
    "python": Python("/opt/python"),
}  # fmt: skip
RECURRENCE_EDITS = {
    "cron": "0 2 * * *", "timezone": "Europe/Berlin", "mode": Mode.CONTINUE, "overlap": Overlap.QUEUE,
    "catch_up": CatchUp.ALL, "jitter_seconds": 5.0, "window": NIGHT,
}  # fmt: skip


def test_an_edit_of_any_field_is_named() -> None:
    """Also beside another one, when it would not be missed."""
    assert set(JOB_EDITS) == {each.name for each in fields(Job)} - {"name"}
    assert set(RECURRENCE_EDITS) == {each.name for each in fields(Recurrence)}
    given = schedule()
    given = replace(given, job=replace(given.job, requirements="requirements.txt"))
    jobs = [replace(given.job, **{name: value}) for name, value in JOB_EDITS.items()]  # type: ignore[arg-type]
    for name, value in RECURRENCE_EDITS.items():
        jobs.append(replace(given.job, schedule=replace(given.recurrence, **{name: value})))  # type: ignore[arg-type]
    for job in jobs:
        found = differences(given, job, "home")
        assert len(found) == 1, job
        assert found != ("the job",), job


def test_the_figures_of_the_page() -> None:
    assert (CATCH_UP_MAX, WAITING_MAX) == (1000, 100)
