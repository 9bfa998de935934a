"""What an ended session left is waited for: while it is saved, past its limit, and when it cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.core.action import Collect, Done, Failed, Stop, Trouble
from orchestrator.core.claims import claims
from orchestrator.core.decide import AWAITED_AGAIN_SECONDS, decide
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import Ended, Faulted, Regained, Released, Requeued, Wished
from orchestrator.core.lifecycle import Awaited, Phase, Wish
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import Outcome, Result
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import ABSENT, Observation, Sighting, StopReply
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, TRAITS, accept, accepted, assigned, ended, launched, record, running, seen

HOUR = 3600.0
FAR = replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE, absence_seconds=1800.0)
PAGE = "look at https://kaggle.example/code/me/session"
SAVING = Observation(Sighting.SAVING, detail=PAGE)
WEDGED = Observation(Sighting.RUNNING)
RESULT = Result("aaaa", Outcome.STOPPED, 75, 500, "its deadline came")
DONE = Observation(Sighting.ENDED, ("aaaa",), result=RESULT)


def far(traits: Traits = FAR) -> RunRecord:
    return record(assigned(traits=traits), *running()[1:])


def watched(readings: Sequence[Observation], every: float = 4.0, before: Watch | None = None) -> Watch:
    watch = before or Watch(0.0)
    for reading in readings:
        watch = watch.see(reading, watch.at + every, every)
    return watch


def after(seconds: float, reading: Observation, before: Watch | None = None) -> Watch:
    """A session that was seen like this for so long."""
    return watched([reading] * int(seconds / 60.0 + 2), every=60.0, before=before)


def seen_by(found: RunRecord, watch: Watch, now: float = NOW) -> Decision:
    return decide(found, Inputs(now, watch.at, watch=watch))


def held(reading: Observation = SAVING) -> RunRecord:
    """A run that is held because of its session, which was seen like this for too long."""
    found = seen_by(far(), after(2 * HOUR, reading), NOW + 2 * HOUR).record
    assert (found.standing, found.phase) == (Phase.HELD, Phase.RUNNING)
    return found


# --- Saving ---------------------------------------------------------------------------------------------


def test_the_time_of_saving_is_neither_running_nor_silence_nor_absence() -> None:
    watch = after(2 * HOUR, SAVING, watched([seen(1)]))
    assert watch.saving_seconds > 2 * HOUR
    assert (watch.running_seconds, watch.silent_seconds, watch.absent_seconds) == (0.0, 0.0, 0.0)


def test_who_only_seemed_to_save_is_not_blamed_for_it_at_the_end() -> None:
    glitch = after(HOUR - 300.0, SAVING)
    assert after(HOUR - 300.0, SAVING, watched([seen(2)], before=glitch)).saving_seconds < HOUR


@pytest.mark.parametrize(("seconds", "waits"), [(HOUR - 120.0, True), (HOUR + 120.0, False)])
def test_saving_takes_as_long_as_its_platform_promises_before_a_person_is_asked(
    seconds: float, waits: bool
) -> None:
    found = seen_by(far(), after(seconds, SAVING))
    assert (found.events == ()) is waits
    longer = far(replace(FAR, saving_seconds_max=2 * HOUR))
    assert seen_by(longer, after(seconds, SAVING)).events == ()


def test_a_person_is_told_where_to_look_and_what_to_do() -> None:
    reason = held().standing_reason
    assert PAGE in reason
    assert (
        "when it appears, the run goes on by itself; `orchestrator release --discard` goes on without"
        in reason
    )
    assert "`orchestrator cancel --discard` ends the run" in reason


def test_the_run_goes_on_by_itself_when_its_output_appears() -> None:
    found = seen_by(held(), watched([SAVING, DONE]))
    assert [type(event) for event in found.events] == [Regained, Ended]
    assert (found.record.standing, found.record.session and found.record.session.outcome) == (
        Phase.COLLECTING, Outcome.STOPPED,
    )  # fmt: skip
    assert any(isinstance(action, Collect) for action in found.actions)


def test_a_session_that_only_seemed_to_have_ended_goes_on() -> None:
    found = seen_by(held(), watched([SAVING, seen(7)]))
    assert [type(event) for event in found.events] == [Regained]
    assert found.record.standing is Phase.RUNNING


def test_a_run_that_waits_says_so_once() -> None:
    watch = after(2 * HOUR, SAVING)
    assert seen_by(held(), watch, NOW + 2 * HOUR).events == ()
    assert seen_by(held(), watched([SAVING], before=watch), NOW + 2 * HOUR).events == ()


# --- Absent, or beyond its limit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("started", "seconds", "outcome"),
    [
        (True, 1700.0, None),
        (True, 1900.0, Outcome.LOST),
        (False, 100.0, Outcome.NO_CAPACITY),
    ],
    ids=["an hour's quarter proves nothing", "half an hour does", "never seen"],
)
def test_the_absence_of_a_session_that_was_seen_needs_longer(
    started: bool, seconds: float, outcome: Outcome | None
) -> None:
    found = far() if started else record(assigned(traits=FAR), *launched()[1:])
    session = seen_by(found, after(seconds, ABSENT)).record.session
    assert session is not None
    assert session.outcome is outcome


def test_a_session_beyond_its_limit_is_never_given_up_if_its_work_is_only_there() -> None:
    found, watch = held(WEDGED), after(2 * HOUR, WEDGED)
    for hours in range(2, 100):
        watch = after(HOUR, WEDGED, watch)
        found = seen_by(found, watch, NOW + hours * HOUR).record
    assert (found.phase, found.awaits) == (Phase.RUNNING, Awaited.END)
    assert "runs past its session limit, according to its platform" in found.standing_reason
    assert seen_by(found, watched([DONE]), NOW + 100 * HOUR).record.standing is Phase.COLLECTING


def test_a_session_beyond_its_limit_that_saves_now_is_awaited_on() -> None:
    late = NOW + 3 * HOUR
    saves = seen_by(held(WEDGED), watched([SAVING]), late)
    assert saves.events == ()
    still = seen_by(saves.record, after(2 * HOUR, SAVING), late).record
    assert (still.awaits, PAGE in still.standing_reason) == (Awaited.OUTPUT, True)


def test_after_a_restart_of_the_controller_it_is_awaited_on() -> None:
    """The new controller has no readings from before."""
    assert seen_by(held(WEDGED), watched([WEDGED]), NOW + 3 * HOUR).events == ()


def test_a_clock_that_was_set_back_makes_no_noise() -> None:
    wedged = after(2 * HOUR, WEDGED)
    assert seen_by(held(WEDGED), wedged, NOW).events == ()


# --- Slots and quota ------------------------------------------------------------------------------------


def test_who_awaits_only_output_uses_no_slot_and_no_quota() -> None:
    assert claims([held(SAVING)], [], {"here": NOW}, NOW) == ()
    (claim,) = claims([held(WEDGED)], [], {"here": NOW}, NOW)
    assert claim.slot, "it may still run"


def test_a_session_that_was_given_up_unseen_keeps_its_slot() -> None:
    shipped = replace(TRAITS, uplink=Uplink.STORE)
    unread = Faulted(NOW, "the store is silent", awaits=Awaited.OUTPUT)
    lost = record(assigned(traits=shipped), *running()[1:], ended(Outcome.LOST, confirmed=False), unread)
    (claim,) = claims([lost], [], {"here": NOW}, NOW)
    assert claim.slot


# --- An outbox that cannot be collected -----------------------------------------------------------------


def uncollected() -> tuple[RunRecord, float]:
    """A run whose last outbox could not be found for hours, although its agent was seen; and the time."""
    found, now = record(assigned(traits=FAR), *running()[1:], ended(Outcome.STOPPED, step=500)), NOW
    while not found.fault:
        assert found.phase is Phase.COLLECTING
        actions = decide(found, Inputs(now)).actions
        gone = tuple(Failed(action, Trouble.NOT_FOUND, "no output") for action in actions)
        found = decide(found, Inputs(now, reports=gone)).record
        now += 300.0
    return found, now


def test_an_outbox_that_must_be_there_is_asked_for_every_hour() -> None:
    found, now = uncollected()
    assert now - NOW >= HOUR
    assert (found.standing, found.awaits) == (Phase.HELD, Awaited.OUTPUT)
    watch, asked = Watch(0.0), []
    for second in range(0, 5 * 3600, 60):
        inputs = Inputs(now + second, float(second), watch=watch)
        decision = decide(found, inputs)
        found = decision.record
        for action in decision.actions:
            asked.append(second)
            watch = replace(watch, collected_at=float(second))
            gone = Failed(action, Trouble.NOT_FOUND, "no output")
            found = decide(found, replace(inputs, reports=(gone,), watch=watch)).record
    assert asked == [0, *range(int(AWAITED_AGAIN_SECONDS), 5 * 3600, int(AWAITED_AGAIN_SECONDS))]
    assert found.awaits is Awaited.OUTPUT


def test_an_outbox_that_appears_is_collected_and_the_run_goes_on() -> None:
    found, now = uncollected()
    (collect,) = decide(found, Inputs(now, watch=Watch(0.0))).actions
    came = decide(found, Inputs(now, reports=(Done(collect, checkpoints=(accepted(500),)),)))
    assert [type(event) for event in came.events][-2:] == [Regained, Requeued]
    assert (came.record.standing, came.record.fruitless) == (Phase.QUEUED, 0)
    part = decide(found, Inputs(now, reports=(Done(collect, more=True),))).record
    assert (part.standing, part.awaits) == (Phase.COLLECTING, None)


# --- What a person can do -------------------------------------------------------------------------------


@pytest.mark.parametrize(("reading", "confirmed"), [(SAVING, True), (WEDGED, False)])
def test_release_discard_goes_on_without_what_a_session_left(reading: Observation, confirmed: bool) -> None:
    found = apply(held(reading), Wished(NOW, Wish.RELEASE, discard=True))
    assert (found.standing, found.forgone) == (Phase.RUNNING, True)
    over = seen_by(found, watched([reading]), NOW + 2 * HOUR).record
    assert (over.phase, over.session and over.session.end_confirmed) == (Phase.COLLECTING, confirmed)
    (collect,) = decide(over, Inputs(NOW)).actions
    assert isinstance(collect, Collect)
    assert collect.forgone
    queued = decide(over, Inputs(NOW, reports=(Failed(collect, Trouble.TRANSIENT, "no output"),))).record
    assert (queued.phase, queued.fruitless, queued.forgone) == (Phase.QUEUED, 0, False)
    (stray,) = queued.strays
    assert stray.ended is confirmed, "what may run keeps its slot and is stopped"


def test_release_discard_of_an_outbox_that_cannot_be_collected() -> None:
    found, now = uncollected()
    forgone = apply(found, Wished(now, Wish.RELEASE, discard=True))
    (collect,) = decide(forgone, Inputs(now)).actions
    closed = decide(forgone, Inputs(now, reports=(Failed(collect, Trouble.NOT_FOUND, "no output"),))).record
    assert closed.standing is Phase.QUEUED


def test_a_release_without_discard_waits_again() -> None:
    again = apply(held(), Wished(NOW, Wish.RELEASE))
    assert (again.standing, again.forgone) == (Phase.HELD, False)
    assert seen_by(again, watched([SAVING])).events == (), "also after a restart, which knows no times"
    assert apply(again, Wished(NOW, Wish.RELEASE, discard=True)).forgone, "the way out stays open"


def test_a_run_whose_output_turns_out_to_be_nothing_is_free_again() -> None:
    """Once the run was left held for ever, and consent given then was taken for its next session."""
    found, now = uncollected()
    found = replace(found, session=found.session and replace(found.session, incarnation=None, failures=9))
    (collect,) = decide(found, Inputs(now + HOUR)).actions
    gone = decide(found, Inputs(now + HOUR, reports=(Failed(collect, Trouble.NOT_FOUND, "nothing"),))).record
    assert (gone.standing, gone.awaits, gone.fault) == (Phase.QUEUED, None, "")
    assert not apply(gone, Wished(now, Wish.RELEASE, discard=True)).forgone


def test_a_hold_is_kept_for_when_the_output_comes() -> None:
    waits = apply(held(), Wished(NOW, Wish.HOLD))
    assert (waits.standing, waits.wish) == (Phase.HELD, Wish.HOLD)
    over = seen_by(waits, watched([DONE])).record
    (collect,) = decide(over, Inputs(NOW)).actions
    assert decide(over, Inputs(NOW, reports=(Done(collect),))).record.phase is Phase.HELD


def test_a_platform_that_answers_no_more_holds_a_run_whose_work_only_it_has() -> None:
    silent = Inputs(NOW + 9 * HOUR, 9 * HOUR, watch=watched([WEDGED]))
    assert decide(far(), silent).record.awaits is Awaited.END
    near = record(*running())
    assert decide(near, silent).record.phase is Phase.COLLECTING


def test_a_silent_platform_changes_nothing_of_what_is_awaited() -> None:
    for reading in (SAVING, WEDGED):
        silent = Inputs(NOW + 9 * HOUR, 9 * HOUR, watch=watched([reading]))
        assert decide(held(reading), silent).events == ()


def test_a_cancel_takes_back_the_release_of_a_failed_run() -> None:
    failed = replace(record(), phase=Phase.FAILED)
    released = apply(failed, Wished(NOW, Wish.RELEASE))
    assert released.wish is Wish.RELEASE
    assert apply(released, Wished(NOW, Wish.CANCEL)).wish is None


def test_consent_given_to_a_run_that_awaits_nothing_gives_nothing_up() -> None:
    assert not apply(far(), Wished(NOW, Wish.RELEASE, discard=True)).forgone


@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.HOLD])
@pytest.mark.parametrize("trouble", [Trouble.NOT_FOUND, Trouble.TRANSIENT])
def test_with_discard_nothing_is_awaited_of_a_session_that_is_over(wish: Wish, trouble: Trouble) -> None:
    found = seen_by(apply(held(), Wished(NOW, wish, discard=True)), watched([SAVING])).record
    assert (found.phase, found.standing) == (Phase.COLLECTING, Phase.COLLECTING)
    for _ in range(2):
        (collect,) = decide(found, Inputs(NOW + HOUR)).actions
        assert isinstance(collect, Collect)
        found = decide(found, Inputs(NOW + HOUR, reports=(Failed(collect, trouble, "no output"),))).record
        found = replace(found, session=found.session and replace(found.session, retry_at=0.0))
        if found.phase is not Phase.COLLECTING:
            break
    assert found.phase is {Wish.CANCEL: Phase.CANCELLED, Wish.HOLD: Phase.HELD}[wish]
    assert (found.fault, found.awaits) == ("", None)


@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.HOLD])
def test_with_discard_a_session_that_may_run_is_stopped(wish: Wish) -> None:
    found = apply(held(WEDGED), Wished(NOW, wish, discard=True))
    stopping = seen_by(found, watched([WEDGED]))
    assert (stopping.record.standing, stopping.record.awaits) == (Phase.STOPPING, None)
    assert stopping.record.phase is Phase.STOPPING
    (stop,) = stopping.actions
    assert isinstance(stop, Stop)
    over = decide(stopping.record, Inputs(NOW, reports=(Done(stop, reply=StopReply.ENDED),))).record
    (collect,) = decide(over, Inputs(NOW)).actions
    closed = decide(over, Inputs(NOW, reports=(Failed(collect, Trouble.NOT_FOUND, "no output"),))).record
    assert closed.phase is {Wish.CANCEL: Phase.CANCELLED, Wish.HOLD: Phase.HELD}[wish]
    assert not closed.fault


@pytest.mark.parametrize("reading", [SAVING, WEDGED])
def test_a_session_that_cannot_be_stopped_is_given_up_with_discard(reading: Observation) -> None:
    found = apply(held(reading), Wished(NOW, Wish.CANCEL, discard=True))
    over = seen_by(found, after(2 * HOUR, reading)).record
    assert (over.phase, over.fault) == (Phase.COLLECTING, "")


def test_a_plain_cancel_waits_for_what_the_session_left() -> None:
    found = apply(held(), Wished(NOW, Wish.CANCEL))
    waits = seen_by(found, after(2 * HOUR, SAVING)).record
    assert (waits.standing, waits.wish) == (Phase.HELD, Wish.CANCEL)
    over = seen_by(waits, watched([DONE])).record
    (collect,) = decide(over, Inputs(NOW)).actions
    came = Done(collect, checkpoints=(accepted(500),))
    assert decide(over, Inputs(NOW, reports=(came,))).record.phase is Phase.CANCELLED


# --- What a platform loses ------------------------------------------------------------------------------


def lost_often(outcome: Outcome, *, times: int = 3) -> RunRecord:
    found = record()
    for generation in range(1, times + 1):
        for event in (assigned(generation), *running()[1:], ended(outcome, message="it is gone")):
            found = apply(found, event)
        (collect,) = decide(found, Inputs(NOW)).actions
        found = replace(decide(found, Inputs(NOW, reports=(Done(collect),))).record, strays=())
    return found


def test_sessions_that_platforms_lose_hold_the_run_and_do_not_fail_it() -> None:
    found = lost_often(Outcome.LOST)
    assert found.phase is Phase.HELD
    assert "no newer checkpoint in 3 sessions in a row" in found.reason
    assert "`orchestrator release` tries again" in found.reason
    assert lost_often(Outcome.LOST, times=2).phase is Phase.QUEUED
    assert lost_often(Outcome.CRASHED).phase is Phase.FAILED


def test_a_release_forgets_the_losses() -> None:
    found = apply(lost_often(Outcome.LOST), Wished(NOW, Wish.RELEASE))
    again = decide(found, Inputs(NOW))
    assert (again.record.phase, again.record.fruitless) == (Phase.QUEUED, 0)


def test_a_release_revives_a_failed_run() -> None:
    """Which one may be revived is the client's decision; old ledgers have runs that their platform failed."""
    found = apply(lost_often(Outcome.CRASHED), Wished(NOW, Wish.RELEASE))
    again = decide(found, Inputs(NOW))
    assert [type(event) for event in again.events] == [Released]
    assert (again.record.phase, again.record.fruitless, again.record.ended_at) == (Phase.QUEUED, 0, None)


def test_without_what_it_left_a_session_with_a_checkpoint_made_progress() -> None:
    found = apply(far(), accept(10))
    found = replace(found, fruitless=2, forgone=True)
    over = seen_by(found, watched([SAVING])).record
    (collect,) = decide(over, Inputs(NOW)).actions
    assert decide(over, Inputs(NOW, reports=(Done(collect),))).record.fruitless == 0
