"""When a waiting run is checked again, and what is never requested in a tight loop."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.action import Discard, Failed, Launch, Prepare, Stop, Trouble
from orchestrator.core.decide import LOOK_AGAIN_SECONDS, decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import Held, Noted, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import SLOT, UNDATED, Rejection, Route, until_time
from orchestrator.core.run import apply
from orchestrator.core.session import Stray
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, RUN, launched, record, routed, running

STRAY = Stray(f"{RUN}-s01", "here", "cpu", ended=False, until=None)


def no_offer(*rejections: Rejection) -> Route:
    return Route(None, (), rejections, ())


# --- Queued ---------------------------------------------------------------------------------------------


def test_an_offer_that_comes_before_its_time_is_taken() -> None:
    quota = Rejection("there", "T4", "no quota", until_time(NOW + 6 * 86400))
    full = Rejection("here", "cpu", "full", SLOT)
    waiting = decide(record(), Inputs(NOW, route=no_offer(full, quota))).record
    freed = decide(waiting, Inputs(NOW + 10, route=routed()))
    assert freed.record.phase is Phase.PREPARING


def test_a_pause_after_a_failure_is_waited_out_whatever_is_on_offer() -> None:
    paused = replace(record(), until=NOW + 5)
    assert decide(paused, Inputs(NOW + 1, route=routed())).events == ()
    assert decide(paused, Inputs(NOW + 6, route=routed())).record.phase is Phase.PREPARING


def test_a_wait_with_a_known_end_beside_one_without_tells_the_date() -> None:
    unknown, known = Rejection("a", "T4", "-", UNDATED), Rejection("b", "T4", "-", until_time(NOW + 86400))
    waiting = decide(record(), Inputs(NOW, route=no_offer(unknown, known)))
    assert (waiting.record.until, waiting.due_at) == (NOW + 86400, NOW + LOOK_AGAIN_SECONDS)


def test_a_wait_without_a_known_end_tells_no_date_and_is_looked_at_again() -> None:
    unknown = no_offer(Rejection("a", "T4", "no units left", UNDATED))
    waiting = decide(record(), Inputs(NOW, route=unknown))
    assert (waiting.record.until, waiting.due_at) == (None, NOW + LOOK_AGAIN_SECONDS)
    again = decide(waiting.record, Inputs(NOW + LOOK_AGAIN_SECONDS, route=unknown))
    assert again.events == ()
    assert again.due_at == NOW + 2 * LOOK_AGAIN_SECONDS


def test_a_run_whose_time_moved_a_little_is_due_at_the_new_time_without_another_event() -> None:
    waiting = decide(record(), Inputs(NOW, route=no_offer(Rejection("a", "T4", "-", until_time(NOW + 100)))))
    moved = Inputs(NOW + 100, route=no_offer(Rejection("a", "T4", "-", until_time(NOW + 130))))
    again = decide(waiting.record, moved)
    assert again.events == ()
    assert again.due_at == NOW + 130


def test_a_rejection_whose_time_is_over_is_not_asked_about_at_once() -> None:
    stale = no_offer(Rejection("a", "T4", "-", until_time(NOW)))
    decision = decide(decide(record(), Inputs(NOW - 100, route=stale)).record, Inputs(NOW + 1, route=stale))
    assert decision.due_at is not None
    assert decision.due_at > NOW + 1


def test_a_queued_run_is_due_when_offers_come_if_there_is_no_answer_yet() -> None:
    assert decide(record(), Inputs(NOW)).due_at is None


def test_a_run_that_comes_back_to_the_queue_is_due_at_once() -> None:
    held = record(Held(NOW, "held on request"))
    assert decide(apply(held, Wished(NOW, Wish.RELEASE)), Inputs(NOW)).due_at == 0.0


# --- Strays ---------------------------------------------------------------------------------------------


def test_a_stray_is_told_to_stop_again_only_after_a_while() -> None:
    found = replace(record(), strays=(STRAY,))
    asked = {STRAY.session: Watch(500.0, stop_asked_at=500.0)}
    assert decide(found, Inputs(NOW, 510.0, strays=asked)).actions == ()
    (stop,) = decide(found, Inputs(NOW, 540.0, strays=asked)).actions
    assert isinstance(stop, Stop)


def test_what_cannot_be_discarded_is_tried_again_only_after_a_while() -> None:
    found = replace(record(), strays=(replace(STRAY, ended=True),))
    (discard,) = decide(found, Inputs(NOW, 500.0)).actions
    assert isinstance(discard, Discard)
    tried = {STRAY.session: Watch(500.0, discard_asked_at=500.0)}
    failed = Failed(discard, Trouble.DENIED, "no")
    assert decide(found, Inputs(NOW, 501.0, reports=(failed,), strays=tried)).actions == ()
    assert decide(found, Inputs(NOW, 540.0, strays=tried)).actions == (discard,)


# --- Stops ----------------------------------------------------------------------------------------------


def test_a_stop_waits_until_it_is_known_whether_the_launch_took_effect() -> None:
    launching = record(*launched()[:2], Wished(NOW, Wish.CANCEL))
    before = decide(launching, Inputs(NOW))
    assert before.record.phase is Phase.LAUNCHING
    (launch,) = before.actions
    assert isinstance(launch, Launch)
    after = decide(launching, Inputs(NOW, reports=(Failed(launch, Trouble.TRANSIENT, "time-out"),)))
    assert after.record.phase is Phase.STOPPING
    assert after.record.session is not None
    assert after.record.session.launched_at is not None, "else nobody would check how it ends"


# --- Consent --------------------------------------------------------------------------------------------


def test_consent_to_lose_work_ends_with_the_wish_it_came_with() -> None:
    held = decide(record(Wished(NOW, Wish.HOLD, discard=True)), Inputs(NOW)).record
    assert held.phase is Phase.HELD
    again = decide(apply(held, Wished(NOW, Wish.RELEASE)), Inputs(NOW)).record
    assert not again.discard
    taken_back = record(*running(), Wished(NOW, Wish.HOLD, discard=True), Wished(NOW, Wish.RELEASE))
    assert not taken_back.discard


# --- Preparing ------------------------------------------------------------------------------------------


def test_a_corrupt_checkpoint_that_is_not_the_resume_point_is_a_failure_like_others() -> None:
    found = decide(record(), Inputs(NOW, route=routed())).record
    prepare = next(a for a in decide(found, Inputs(NOW)).actions if isinstance(a, Prepare))
    strange = Failed(prepare, Trouble.CORRUPT, "altered", checkpoint="another")
    decision = decide(found, Inputs(NOW, reports=(strange,)))
    assert [event.kind.value for event in decision.events] == ["action_failed"]
    assert decision.actions == ()


# --- What a record may grow to --------------------------------------------------------------------------


def test_a_record_keeps_only_the_newest_notes() -> None:
    found = record(*(Noted(NOW, f"refused {number}") for number in range(5000)))
    assert len(found.notes) <= 100
    assert found.notes[-1] == "refused 4999"
