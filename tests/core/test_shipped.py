"""Checkpoints that an uplink ships: what is late is waited for, and what the uplink deletes is retired."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import wire
from orchestrator.core.action import Collect, Done, Failed, Retire, Stop, Trouble
from orchestrator.core.checkpoint import Accepted, superseded_while_open
from orchestrator.core.decide import decide
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import ActionFailed, Event, Retired, Wished
from orchestrator.core.job import Best, CheckpointPolicy, Keep
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Outcome
from orchestrator.core.patience import LATE_ATTEMPTS, LATE_PATIENCE_SECONDS
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import StopReply
from orchestrator.core.watch import READINGS_MIN, Watch
from tests.core.runs import NOW, TRAITS, accept, accepted, assigned, ended, record, running, seen

SHIPPED = replace(TRAITS, uplink=Uplink.STORE)
LATE = ((accepted(40).name, "blob 0123… is missing"),)


def shipping(*events: Event, keep: Keep | None = None, parent: Accepted | None = None) -> RunRecord:
    start = assigned(traits=SHIPPED, resume=parent)
    order = replace(start.order, keep=keep or Keep(last=2))
    policy = CheckpointPolicy(keep=order.keep)
    first = replace(record(checkpoint=policy), accepted=(parent,) if parent else ())
    for event in (replace(start, order=order), *running()[1:], *events):
        first = apply(first, event)
    return first


def collected(found: RunRecord, now: float = NOW, **report: object) -> Decision:
    watch = Watch(0.0).see(seen(checkpoint="new"), 0.0, 2.0)
    assert found.session is not None
    due = replace(found, session=replace(found.session, retry_at=0.0))
    asked = decide(due, Inputs(now, 0.0, watch=watch))
    collect = next(each for each in asked.actions if isinstance(each, Collect))
    return decide(found, Inputs(now, 0.0, (Done(collect, **report),), watch))  # type: ignore[arg-type]


def over(*events: Event) -> RunRecord:
    found = shipping(*events, ended(Outcome.STOPPED))
    assert found.phase is Phase.COLLECTING
    return found


# --- What does not get through --------------------------------------------------------------------------


def test_a_collect_says_what_the_store_must_have_heard_of() -> None:
    """By the agent's clock: its last status, less the silence that means lost. At first the uplink may not
    have begun."""
    found = shipping()
    watch = Watch(0.0).see(seen(checkpoint="new"), 0.0, 2.0)
    [asked] = [
        each for each in decide(found, Inputs(NOW, 0.0, watch=watch)).actions if isinstance(each, Collect)
    ]
    assert asked.stale_before is None
    watch = replace(watch, running_seconds=SHIPPED.silence_seconds)
    [asked] = [
        each for each in decide(found, Inputs(NOW, 0.0, watch=watch)).actions if isinstance(each, Collect)
    ]
    assert watch.observation is not None
    assert watch.observation.status is not None
    assert asked.stale_before == watch.observation.status.written_at - SHIPPED.silence_seconds
    assert asked == replace(asked, stale_before=None), "a new reading is no new wish"


def test_a_session_whose_work_is_nowhere_is_looked_for_a_minute() -> None:
    """Its agent was seen, so it may have claimed the store, and the store may be late."""
    found, now = over(accept(30)), NOW
    while found.phase is Phase.COLLECTING:
        assert found.session is not None
        [asked] = [each for each in decide(found, Inputs(now, 0.0)).actions if isinstance(each, Collect)]
        report = Failed(asked, Trouble.NOT_FOUND, "it left nothing")
        found = decide(found, Inputs(now, 0.0, (report,))).record
        now = found.session.retry_at + 0.1 if found.session is not None else now
    assert 30.0 < now - NOW < 120.0
    assert found.phase is Phase.QUEUED
    assert [each.ref.step for each in found.accepted] == [30]


def test_a_machine_that_does_not_answer_keeps_what_it_did_not_ship() -> None:
    """After several attempts. If its end was seen, the machine is there, and is asked on."""
    for confirmed, forgone in ((False, True), (True, False)):
        end = replace(ended(Outcome.LOST), confirmed=confirmed)
        found, now, asked = shipping(accept(30), end), NOW, []
        for _ in range(READINGS_MIN + 1):
            [collect] = [
                each for each in decide(found, Inputs(now, 0.0)).actions if isinstance(each, Collect)
            ]
            asked.append(collect.forgone)
            report = Failed(collect, Trouble.TRANSIENT, "its platform does not answer")
            found = decide(found, Inputs(now, 0.0, (report,))).record
            assert found.session is not None
            now = found.session.retry_at + 0.1
        assert asked == [False] * READINGS_MIN + [forgone]


# --- What is late ---------------------------------------------------------------------------------------


def test_the_last_look_waits_for_what_is_late() -> None:
    found, now, waited = over(accept(30)), NOW, 0
    while found.phase is Phase.COLLECTING:
        decision = collected(found, now, late=LATE)
        found, waited = decision.record, waited + 1
        if found.phase is Phase.COLLECTING:
            [failed] = [each for each in decision.events if isinstance(each, ActionFailed)]
            assert failed.retry_at > now
            now = failed.retry_at
        assert waited < 100
    assert LATE_PATIENCE_SECONDS < now - NOW < 2 * LATE_PATIENCE_SECONDS
    assert waited > LATE_ATTEMPTS
    assert any("was not accepted: blob 0123… is missing" in note for note in found.notes)


def test_what_appears_after_all_is_accepted() -> None:
    found = collected(over(accept(30)), late=LATE).record
    found = collected(found, NOW + 10.0, checkpoints=(accepted(40),)).record
    assert found.phase is Phase.QUEUED
    assert [each.ref.step for each in found.accepted] == [30, 40]


@pytest.mark.parametrize("change", [{"forgone": True}, {"discard": True}])
def test_what_the_user_gave_up_is_not_waited_for(change: dict[str, bool]) -> None:
    assert collected(replace(over(accept(30)), **change), late=LATE).record.phase is not Phase.COLLECTING  # type: ignore[arg-type]


def test_what_the_run_would_not_go_on_from_is_not_waited_for() -> None:
    assert collected(over(accept(50)), late=LATE).record.phase is Phase.QUEUED


def test_a_clock_that_was_set_back_does_not_make_the_wait_endless() -> None:
    found = over(accept(30))
    for _ in range(LATE_ATTEMPTS + 1):
        if found.phase is Phase.COLLECTING:
            found = collected(found, NOW - 1e6, late=LATE).record
    assert found.phase is Phase.QUEUED


# --- Durable while it runs ------------------------------------------------------------------------------


def test_a_cancelled_session_keeps_what_was_shipped() -> None:
    """Its platform may stop it without a chance to save. What it had shipped is accepted all the same."""
    found = shipping(accept(30), Wished(NOW, Wish.CANCEL))
    watch = Watch(0.0).see(seen(), 0.0, 2.0)
    stopping = decide(found, Inputs(NOW, 0.0, watch=watch))
    [stop] = [each for each in stopping.actions if isinstance(each, Stop)]
    after = decide(stopping.record, Inputs(NOW, 0.0, (Done(stop, reply=StopReply.ENDED),), watch))
    assert after.record.phase is Phase.COLLECTING
    done = collected(after.record, checkpoints=(accepted(40),)).record
    assert done.phase is Phase.CANCELLED
    assert [each.ref.step for each in done.accepted] == [30, 40]


# --- What the uplink deletes ----------------------------------------------------------------------------


def test_what_its_uplink_deleted_is_retired_by_it() -> None:
    found = shipping(*map(accept, (10, 20, 30, 40)))
    gone = (accepted(10).name, accepted(20).name)
    decision = collected(found, gone=gone)
    [retired] = [each for each in decision.events if isinstance(each, Retired)]
    assert (retired.names, retired.by) == (gone, found.session.name)  # type: ignore[union-attr]
    assert [each.ref.step for each in decision.record.accepted] == [30, 40]
    assert not any(isinstance(each, Retire) for each in decision.actions), "its generation is open"
    again = collected(decision.record)
    collect = next(each for each in again.actions + decision.actions if isinstance(each, Collect))
    assert set(gone) <= collect.known


def test_an_absence_that_newer_ones_do_not_explain_proves_nothing() -> None:
    parent = accepted(5, 0, "zzzz")
    found = shipping(*map(accept, (10, 20)), parent=parent)
    gone = (parent.name, accepted(10).name, accepted(20).name)
    assert collected(found, gone=gone).record.accepted == found.accepted


def test_the_best_one_stays_on_the_record() -> None:
    keep = Keep(last=1, best=Best("loss", "min"))
    scores = ((10, 1.0), (20, 2.0), (30, 3.0), (40, 3.0))
    scored = [replace(accept(step), checkpoint=accepted(step, loss=loss)) for step, loss in scores]
    decision = collected(shipping(*scored, keep=keep), gone=(accepted(10).name, accepted(20).name))
    assert [each.ref.step for each in decision.record.accepted] == [10, 30, 40]


def test_at_the_close_retention_reconciles() -> None:
    found = over(*map(accept, (10, 20, 30, 40)))
    decision = collected(found, gone=(accepted(10).name,))
    assert [each.by != "" for each in decision.events if isinstance(each, Retired)] == [True, False]
    [retire] = [each for each in decision.actions if isinstance(each, Retire)]
    assert retire.keep == {accepted(30).name, accepted(40).name}


def test_the_rule_keeps_the_newest_two_the_best_and_the_pinned() -> None:
    published = [accepted(step, loss=float(step)) for step in range(1, 8)]
    pinned = frozenset({published[2].name})
    gone = superseded_while_open(published, last=1, best=("loss", "min"), pinned=pinned)
    assert sorted(each.ref.step for each in gone) == [2, 4, 5]


def test_a_retirement_of_an_older_ledger_is_the_controllers() -> None:
    older = {"at": NOW, "names": ["a"], "kind": "retired"}
    assert wire.decode(Retired, older) == Retired(NOW, ("a",))
