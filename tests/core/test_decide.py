"""Decide as a table: a record and observations go in, events and actions come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.core import wire
from orchestrator.core.action import (
    Collect,
    Done,
    Failed,
    Launch,
    Prepare,
    Report,
    Retire,
    Stop,
    Trouble,
)
from orchestrator.core.closing import CAPACITY_SECONDS, CAPACITY_SECONDS_MAX
from orchestrator.core.decide import decide
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import Began, Ended, Event, Retired, StopRequested, Wished
from orchestrator.core.job import CheckpointPolicy, Keep
from orchestrator.core.lifecycle import Awaited, Phase, Wish
from orchestrator.core.offer import NEVER, SLOT, Rejection, Route, Traits, Uplink, until_human, until_time
from orchestrator.core.order import Outcome, Result
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import ABSENT, Observation, Sighting
from orchestrator.core.watch import Watch
from tests.core.runs import (
    NOW,
    RUN,
    TRAITS,
    accept,
    accepted,
    assigned,
    ended,
    launched,
    record,
    routed,
    running,
    seen,
)


def watched(*observations: Observation, every: float = 2.0) -> Watch:
    watch = Watch(0.0)
    for number, observation in enumerate(observations):
        watch = watch.see(observation, number * every, TRAITS.poll_seconds)
    return watch


def decided(found: RunRecord, *reports: Report, watch: Watch | None = None, **inputs: object) -> Decision:
    monotonic = watch.at if watch else 0.0
    given = Inputs(NOW, monotonic, reports=reports, watch=watch, **inputs)  # type: ignore[arg-type]
    return decide(found, given)


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind.value for event in events]


# --- Queued ---------------------------------------------------------------------------------------------


def test_a_chosen_offer_becomes_a_complete_order() -> None:
    decision = decided(record(), route=routed())
    assert kinds(decision.events) == ["assigned"]
    (action,) = decision.actions
    assert isinstance(action, Prepare)
    assert action.order.session == f"{RUN}-s01"
    assert action.order.command == ("train", "--steps", "1000", "--micro-batch=8", "--acc", "2")
    assert action.order.budget_seconds == 3540.0
    assert action.order.resume is None


def test_the_next_session_resumes_at_the_newest_accepted_checkpoint() -> None:
    found = replace(record(), generation=2, accepted=(accepted(300, 2), accepted(200, 1)))
    order = decided(found, route=routed()).record.session
    assert order is not None
    assert (order.order.generation, order.order.resume, order.order.resume_step) == (
        3,
        accepted(300, 2).name,
        300,
    )


@pytest.mark.parametrize(
    ("rejections", "phase", "due_at"),
    [
        ((Rejection("a", "T4", "full", SLOT),), Phase.QUEUED, None),
        ((Rejection("a", "T4", "no quota", until_time(NOW + 500)),), Phase.QUEUED, NOW + 500),
        (
            (Rejection("a", "T4", "full", SLOT), Rejection("b", "T4", "no quota", until_time(NOW + 500))),
            Phase.QUEUED,
            NOW + 500,
        ),
        ((Rejection("a", "T4", "too small", NEVER),), Phase.HELD, None),
        ((Rejection("a", "T4", "no consent", until_human("orchestrator release x")),), Phase.HELD, None),
        ((), Phase.HELD, None),
    ],
)
def test_a_run_no_offer_takes_waits_or_is_held(
    rejections: tuple[Rejection, ...], phase: Phase, due_at: float | None
) -> None:
    decision = decided(record(), route=Route(None, (), rejections, ()))
    assert decision.record.phase is phase
    assert decision.due_at == due_at
    assert all(rejection.reason in decision.record.reason for rejection in rejections)


def test_waiting_is_journalled_once() -> None:
    full = Route(None, (), (Rejection("a", "T4", "full", SLOT),), ())
    waiting = decided(record(), route=full).record
    again = decided(waiting, route=full)
    assert again.events == ()
    assert again.due_at is None


# --- Preparing and launching ----------------------------------------------------------------------------


def test_prepare_then_launch_then_wait() -> None:
    found = record(assigned())
    (prepare,) = decided(found).actions
    decision = decided(found, Done(prepare))
    assert decision.record.phase is Phase.LAUNCHING
    (launch,) = decision.actions
    assert isinstance(launch, Launch)
    decision = decided(decision.record, Done(launch))
    assert decision.record.phase is Phase.LAUNCHING
    assert decision.actions == ()


def test_a_launch_that_may_have_happened_is_looked_for_before_anything_else() -> None:
    found = record(*launched()[:2])
    decision = decided(found, launch_unknown=True)
    assert kinds(decision.events) == ["launched"]
    assert decision.actions == ()


def test_an_ambiguous_launch_is_not_repeated() -> None:
    found = record(*launched()[:2])
    (launch,) = decided(found).actions
    decision = decided(found, Failed(launch, Trouble.TRANSIENT, "time-out"))
    assert decision.record.phase is Phase.LAUNCHING
    assert decision.actions == ()


def test_a_launch_is_given_up_only_after_it_could_have_become_visible() -> None:
    found = record(*launched())
    early = decided(found, watch=watched(ABSENT, ABSENT, ABSENT))
    assert early.events == ()
    late = decided(found, watch=watched(*[ABSENT] * 8))
    assert late.record.phase is Phase.COLLECTING
    assert late.record.session is not None
    assert late.record.session.outcome is Outcome.NO_CAPACITY


def test_a_refused_launch_cools_the_offer_down_and_counts_nothing() -> None:
    found = record(*launched()[:2])
    (launch,) = decided(found).actions
    refused = decided(found, Failed(launch, Trouble.QUOTA, "weekly quota reached", until=NOW + 7000))
    assert refused.record.phase is Phase.QUEUED
    assert refused.record.fruitless == 0
    (cooldown,) = refused.record.cooldowns
    assert (cooldown.platform, cooldown.until) == ("here", NOW + 7000)


def test_a_corrupt_resume_point_falls_back_to_the_one_before() -> None:
    newest, before = accepted(300), accepted(200)
    found = replace(record(), accepted=(before, newest))
    preparing = decided(found, route=routed())
    (prepare,) = preparing.actions
    decision = decided(
        preparing.record, Failed(prepare, Trouble.CORRUPT, "blob altered", checkpoint=newest.name)
    )
    (again,) = decision.actions
    assert isinstance(again, Prepare)
    assert again.order.resume == before.name
    assert newest.name not in [c.name for c in decision.record.accepted]
    [note] = [note for note in decision.record.notes if newest.name in note]
    assert "blob altered" in note
    assert "falling back to step 200" in note


def test_failing_to_prepare_backs_off_and_then_leaves_the_offer_alone() -> None:
    found = record(assigned())
    retries = []
    for _ in range(10):
        (prepare,) = decide(found, Inputs(NOW + 10_000)).actions
        found = decided(found, Failed(prepare, Trouble.TRANSIENT, "no route to host")).record
        if found.session is None:
            break
        retries.append(found.session.retry_at - NOW)
    assert retries == sorted(retries)
    assert found.phase is Phase.QUEUED
    assert found.cooldowns[0].until is not None


def test_who_found_every_gpu_taken_asks_again_soon_and_ever_later() -> None:
    found, pauses = record(assigned()), []
    for generation in range(2, 12):
        prepare = next(action for action in decided(found).actions if isinstance(action, Prepare))
        found = decided(found, Failed(prepare, Trouble.QUOTA, "1 GPU wanted; none is free")).record
        pauses.append((found.cooldowns[0].until or 0.0) - NOW)
        found = replace(apply(found, assigned(generation)), until=None)
    assert pauses[0] == CAPACITY_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == CAPACITY_SECONDS_MAX


# --- Running --------------------------------------------------------------------------------------------


def test_the_first_incarnation_is_the_only_one() -> None:
    decision = decided(record(*launched()), watch=watched(seen()))
    assert decision.record.phase is Phase.RUNNING
    twice = decided(decision.record, watch=watched(seen(2, incarnations=("aaaa", "bbbb"))))
    assert any("bbbb" in note for note in twice.record.notes)
    (collect,) = twice.actions
    other = decided(twice.record, Done(collect, checkpoints=(accepted(50, incarnation="bbbb"),)))
    assert other.record.accepted == ()


def test_a_new_checkpoint_is_collected_and_accepted_once() -> None:
    found = record(*running())
    watch = watched(seen(1, checkpoint="c1"))
    (collect,) = decided(found, watch=watch).actions
    assert isinstance(collect, Collect)
    decision = decided(found, Done(collect, checkpoints=(accepted(50),)), watch=watch)
    assert kinds(decision.events) == ["accepted"]
    again = decided(decision.record, Done(collect, checkpoints=(accepted(50),)), watch=watch)
    assert again.events == ()


@pytest.mark.parametrize("failed", [False, True])
def test_a_look_from_before_the_end_is_not_the_last_one(failed: bool) -> None:
    found = record(*running())
    (early,) = decided(found, watch=watched(seen(checkpoint="c"))).actions
    found = apply(found, ended(Outcome.COMPLETED, step=1000))
    report = Failed(early, Trouble.NOT_FOUND, "nothing") if failed else Done(early, (accepted(50),))
    decision = decided(found, report)
    assert decision.record.phase is Phase.COLLECTING
    (last,) = decision.actions
    assert isinstance(last, Collect)
    assert last.last
    assert decided(decision.record, Done(last, (accepted(1000),))).record.phase is Phase.DONE


def test_a_checkpoint_of_a_closed_generation_is_never_accepted() -> None:
    found = record(*running())
    (collect,) = decided(found, watch=watched(seen(checkpoint="c"))).actions
    decision = decided(found, Done(collect, checkpoints=(accepted(50, generation=0 + 2),)))
    assert decision.record.accepted == ()


@pytest.mark.parametrize(
    ("readings", "lost"),
    [
        ([seen(1), *[seen(1)] * 10], False),  # silent, but not for long enough
        ([seen(1), *[seen(1)] * 30], True),
        ([seen(1), *[seen(n) for n in range(2, 60)]], False),
        ([seen(1), *[ABSENT] * 2], False),
        ([seen(1), *[ABSENT] * 8], True),
        ([seen(1), *[ABSENT] * 8, seen(2)], False),
    ],
)
def test_lost_needs_several_readings(readings: list[Observation], lost: bool) -> None:
    decision = decided(record(*running()), watch=watched(*readings))
    assert (decision.record.phase is Phase.COLLECTING) == lost


def test_what_only_its_end_brings_home_is_waited_for_in_silence_beyond_its_limit() -> None:
    traits = replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE)
    found = record(assigned(traits=traits), *running()[1:])
    silent = watched(seen(1), *[seen(1)] * 300)
    assert decided(found, watch=silent).events == ()
    wedged = replace(silent, running_seconds=3600.0 + 60.0 + 1.0)
    waits = decided(found, watch=wedged).record
    assert (waits.phase, waits.awaits) == (Phase.RUNNING, Awaited.END)


def test_a_session_given_up_in_silence_carries_the_platforms_word_on_why() -> None:
    paused = replace(seen(1), detail="the container is paused")
    events = decided(record(*running()), watch=watched(*[paused] * 31)).events
    (lost,) = (event for event in events if isinstance(event, Ended))
    assert lost.message == "the heartbeat stopped: the container is paused"


def test_an_hour_of_sleep_between_readings_fences_nothing() -> None:
    watch = watched(seen(1)).see(seen(1), 3600.0, TRAITS.poll_seconds)
    assert decided(record(*running()), watch=watch).record.phase is Phase.RUNNING


def test_running_past_its_wall_is_given_up_only_after_it_was_watched_for_so_long() -> None:
    found = record(*running())
    beating = [
        seen(n) for n in range(1840)
    ]  # one every two seconds; the wall is an hour plus a minute's slack
    watch = watched(*beating[:100])
    assert decide(found, Inputs(NOW + 1e6, watch.at, watch=watch)).record.phase is Phase.RUNNING, "clock set"
    wedged = decided(found, watch=watched(*beating)).record
    assert wedged.phase is Phase.COLLECTING
    assert wedged.session is not None
    assert wedged.session.outcome is Outcome.LOST


@pytest.mark.parametrize(("began", "outcome"), [(False, Outcome.NO_CAPACITY), (True, Outcome.LOST)])
def test_what_vanishes_before_its_agent_spoke_is_lost_only_if_it_was_seen_to_run(
    began: bool, outcome: Outcome
) -> None:
    events = (*launched(), *([Began(NOW)] if began else []))
    gone = decided(record(*events), watch=watched(*[Observation(Sighting.ABSENT)] * 600)).record
    assert gone.session is not None
    assert gone.session.outcome is outcome


def test_a_session_that_never_starts_is_given_up_after_as_long_as_it_might_have_run() -> None:
    pending = [Observation(Sighting.PENDING)]
    waits = watched(*pending * 1800)
    assert decided(record(*launched()), watch=waits).events == ()
    late = decided(record(*launched()), watch=watched(*pending * 1840)).record
    assert late.session is not None
    assert (late.phase, late.session.outcome) == (Phase.COLLECTING, Outcome.NO_CAPACITY)
    assert "did not start within 61 min" in late.session.message


def test_a_platforms_complete_without_our_marker_is_no_success() -> None:
    observation = Observation(Sighting.ENDED, ("aaaa",), ending=Outcome.COMPLETED)
    session = decided(record(*running()), watch=watched(observation)).record.session
    assert session is not None
    assert session.outcome is Outcome.CRASHED


def test_a_nan_loss_is_noted_once() -> None:
    found = record(*running())
    observation = seen(warnings=("loss is nan at step 7",))
    noted = decided(found, watch=watched(observation)).record
    assert any("nan" in note for note in noted.notes)
    assert decided(noted, watch=watched(observation)).events == ()


# --- Ends -----------------------------------------------------------------------------------------------


def closing(outcome: Outcome, *, step: int | None = None, checkpoints: tuple[int, ...] = ()) -> RunRecord:
    found = record(*running(), *map(accept, checkpoints), ended(outcome, step=step))
    (collect,) = decided(found).actions
    return decided(found, Done(collect)).record


@pytest.mark.parametrize(
    ("outcome", "step", "checkpoints", "phase", "fruitless"),
    [
        (Outcome.COMPLETED, 1000, (1000,), Phase.DONE, 0),
        (Outcome.COMPLETED, 1000, (500,), Phase.QUEUED, 0),  # the final checkpoint never arrived
        (Outcome.COMPLETED, 1000, (), Phase.QUEUED, 1),
        (Outcome.STOPPED, 500, (500,), Phase.QUEUED, 0),
        (Outcome.LOST, None, (), Phase.QUEUED, 1),
        (Outcome.CRASHED, None, (500,), Phase.QUEUED, 0),
        (Outcome.STALLED, None, (), Phase.QUEUED, 1),
        (Outcome.QUOTA_EXHAUSTED, None, (), Phase.QUEUED, 0),
        (Outcome.NO_CAPACITY, None, (), Phase.QUEUED, 0),
    ],
)
def test_what_follows_the_end(
    outcome: Outcome, step: int | None, checkpoints: tuple[int, ...], phase: Phase, fruitless: int
) -> None:
    found = closing(outcome, step=step, checkpoints=checkpoints)
    assert (found.phase, found.fruitless) == (phase, fruitless)


def test_sessions_without_progress_fail_the_run_with_the_tail() -> None:
    found = record(*running(), replace(ended(Outcome.CRASHED), tail="ValueError: no such file"))
    found = replace(found, fruitless=2)
    (collect,) = decided(found).actions
    failed = decided(found, Done(collect)).record
    assert failed.phase is Phase.FAILED
    assert "ValueError: no such file" in failed.reason


def test_out_of_memory_goes_on_with_the_next_valid_micro_batch() -> None:
    found = closing(Outcome.OUT_OF_MEMORY)
    assert found.micro_batch_caps == (("cpu", 4),)
    assert found.fruitless == 0


def test_an_outbox_that_does_not_come_is_asked_for_again() -> None:
    found = record(*running(), ended(Outcome.COMPLETED, step=1000))
    (collect,) = decided(found).actions
    decision = decided(found, Failed(collect, Trouble.TRANSIENT, "time-out"))
    assert decision.record.phase is Phase.COLLECTING
    assert decision.actions == ()  # not before retry_at
    assert decide(decision.record, Inputs(NOW + 60)).actions == (collect,)


@pytest.mark.parametrize(("durable", "looks"), [(True, 1), (False, 3)])
def test_an_end_that_alone_brings_the_work_home_is_not_given_up_at_one_answer(
    durable: bool, looks: int
) -> None:
    traits = replace(TRAITS, durable_mid_run=durable)
    found = record(assigned(traits=traits), *launched()[1:], ended(Outcome.STOPPED, step=50))
    for look in range(looks):
        assert found.phase is Phase.COLLECTING, look
        (collect,) = decide(found, Inputs(NOW + 60.0 * look)).actions
        report = Failed(collect, Trouble.NOT_FOUND, "nothing")
        found = decide(found, Inputs(NOW + 60.0 * look, reports=(report,))).record
    assert found.phase is Phase.QUEUED


# --- Wishes ---------------------------------------------------------------------------------------------


def test_cancelling_a_queued_run_is_immediate() -> None:
    assert decided(record(Wished(NOW, Wish.CANCEL))).record.phase is Phase.CANCELLED


def test_cancelling_a_running_session_lets_it_save_first() -> None:
    found = record(*running(), accept(10), Wished(NOW, Wish.CANCEL))
    decision = decided(found, watch=watched(seen(checkpoint=None)))
    assert decision.record.phase is Phase.STOPPING
    assert [a for a in decision.actions if isinstance(a, Stop)]
    result = Result("aaaa", Outcome.STOPPED, 75, 20, "stopped on request")
    stopped = decided(decision.record, watch=watched(seen(2, result=result))).record
    (collect,) = decided(stopped).actions
    cancelled = decided(stopped, Done(collect, checkpoints=(accepted(20),))).record
    assert cancelled.phase is Phase.CANCELLED
    assert accepted(20).name in cancelled.reason


def test_a_session_that_would_lose_its_work_is_stopped_only_on_discard() -> None:
    traits = replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE)
    first = assigned(traits=traits)
    found = record(first, *running()[1:], Wished(NOW, Wish.CANCEL))
    assert decided(found, watch=watched(seen())).record.phase is Phase.RUNNING
    found = record(first, *running()[1:], Wished(NOW, Wish.CANCEL, discard=True))
    assert decided(found, watch=watched(seen())).record.phase is Phase.STOPPING


def test_hold_keeps_the_run_and_release_queues_it_again() -> None:
    held = decided(record(Wished(NOW, Wish.HOLD))).record
    assert held.phase is Phase.HELD
    released = decided(apply(held, Wished(NOW, Wish.RELEASE)))
    assert released.record.phase is Phase.QUEUED
    assert released.due_at == 0.0


def test_release_during_a_hold_that_is_still_stopping_goes_on() -> None:
    found = record(
        *running(), StopRequested(NOW, Wish.HOLD), Wished(NOW, Wish.RELEASE), ended(Outcome.STOPPED)
    )
    (collect,) = decided(found).actions
    queued = decided(found, Done(collect, checkpoints=(accepted(5),))).record
    assert queued.phase is Phase.QUEUED
    assert queued.wish is None, "nothing keeps it from being routed"


# --- Retention ------------------------------------------------------------------------------------------


def test_retention_keeps_the_newest_and_the_resume_point() -> None:
    found = record(*running(), *map(accept, (10, 20, 30)), checkpoint=CheckpointPolicy(keep=Keep(last=2)))
    watch = watched(seen(checkpoint="new"))
    collect = next(a for a in decided(found, watch=watch).actions if isinstance(a, Collect))
    decision = decided(found, Done(collect, checkpoints=(accepted(40),)), watch=watch)
    assert {c.ref.step for c in decision.record.accepted} == {30, 40}
    (retire,) = [a for a in decision.actions if isinstance(a, Retire)]
    assert retire.keep == {accepted(30).name, accepted(40).name}


def test_a_collect_knows_what_was_retired_of_its_session() -> None:
    before = replace(record(*running()), accepted=(accepted(5, 0, "zzzz"),))
    found = apply(before, accept(10))
    found = apply(apply(found, accept(20)), Retired(NOW, (accepted(5, 0, "zzzz").name, accepted(10).name)))
    assert [c.ref.step for c in found.accepted] == [20]
    (collect,) = decided(found, watch=watched(seen())).actions
    assert isinstance(collect, Collect)
    assert collect.known == {accepted(10).name, accepted(20).name}, "only its own are in its outbox"


@pytest.mark.parametrize("every", [10.0, 300.0])
def test_how_often_an_outbox_is_collected_is_the_platforms_own(every: float) -> None:
    found = record(assigned(traits=replace(TRAITS, collect_seconds=every)), *running()[1:])
    watch = replace(watched(seen()), collected_at=-every + 1.0)
    assert decided(found, watch=watch).actions == ()
    [due] = decided(found, watch=replace(watch, collected_at=-every)).actions
    assert isinstance(due, Collect)
    [news] = decided(found, watch=replace(watched(seen(checkpoint="new")), collected_at=0.0)).actions
    assert isinstance(news, Collect)


def test_traits_of_an_older_ledger_keep_their_rhythm() -> None:
    older = {key: value for key, value in wire.to_json(TRAITS).items() if key != "collect_seconds"}
    assert wire.decode(Traits, older).collect_seconds == 10.0
