"""An unreadable resume checkpoint costs only itself. The run is held only if the store is in doubt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import wire
from orchestrator.core.action import Done, Failed, Prepare, Trouble
from orchestrator.core.assign import assign
from orchestrator.core.checkpoint import Accepted
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import CheckpointAccepted, Held, Released
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Order
from orchestrator.core.run import RunRecord, apply
from tests.core.runs import NOW, accepted, choice, record, routed

OLD, MIDDLE, NEW = accepted(100), accepted(200), accepted(300)


def preparing(*checkpoints: Accepted) -> RunRecord:
    found = replace(record(), accepted=checkpoints)
    return decide(found, Inputs(NOW, route=routed())).record


def wanted(found: RunRecord) -> Prepare:
    (prepare,) = [a for a in decide(found, Inputs(NOW + 10_000)).actions if isinstance(a, Prepare)]
    return prepare


def fails(
    found: RunRecord,
    *left: Accepted,
    trouble: Trouble = Trouble.NOT_FOUND,
    message: str = "it is gone from the home store",
    doubtful: bool = True,
) -> RunRecord:
    prepare = wanted(found)
    names = tuple(c.name for c in left)
    failed = Failed(prepare, trouble, message, checkpoint=prepare.order.resume, left=names, doubtful=doubtful)
    return decide(found, Inputs(NOW + 10_000, reports=(failed,))).record


def test_the_sha256_of_an_accepted_manifest_travels_in_the_order() -> None:
    known, old = replace(NEW, sha256="ab" * 32), MIDDLE
    order = assign(replace(record(), accepted=(known, old)), choice())
    assert order.resume_sha256 == "ab" * 32
    assert assign(replace(record(), accepted=(old,)), choice()).resume_sha256 is None
    after = fails(preparing(known, old), old, trouble=Trouble.CORRUPT)
    assert wanted(after).order.resume_sha256 is None, "the previous one comes from an older version"


def test_ledgers_and_orders_of_before_the_sha256_are_read() -> None:
    event = wire.to_json(CheckpointAccepted(NOW, NEW))
    del event["checkpoint"]["sha256"]
    assert wire.decode(CheckpointAccepted, event).checkpoint.sha256 == ""
    order = wire.to_json(assign(replace(record(), accepted=(NEW,)), choice()))
    del order["resume_sha256"]
    assert wire.decode(Order, order).resume_sha256 is None
    assert not wire.decode(Held, {"at": NOW, "reason": "held on request", "kind": "held"}).start_over


def test_one_that_is_gone_costs_that_one() -> None:
    after = fails(preparing(OLD, MIDDLE, NEW), OLD, MIDDLE)
    assert after.phase is Phase.PREPARING
    assert wanted(after).order.resume == MIDDLE.name
    assert after.accepted == (OLD, MIDDLE)
    assert any(f"{NEW.name} cannot be used" in note and "step 200" in note for note in after.notes)


def test_all_that_are_gone_are_passed_over_at_once() -> None:
    after = fails(preparing(OLD, MIDDLE, NEW), OLD)
    assert wanted(after).order.resume == OLD.name
    assert after.accepted == (OLD,)
    [note], [times] = after.notes, after.note_times
    assert times == 2
    assert "falling back to step 100" in note


@pytest.mark.parametrize("trouble", [Trouble.NOT_FOUND, Trouble.CORRUPT])
def test_with_none_left_the_run_is_held_and_forgets_nothing(trouble: Trouble) -> None:
    held = fails(preparing(OLD, NEW), trouble=trouble, message="the store is empty: is its disk there?")
    assert held.phase is Phase.HELD
    assert held.accepted == (OLD, NEW)
    for words in (NEW.name, "is its disk there", "none of the run's 2 checkpoints", "starts over"):
        assert words in held.reason


def test_a_cancel_is_not_lost_in_a_hold() -> None:
    found = replace(preparing(NEW), wish=Wish.CANCEL)
    prepare = Prepare(found.session.order, frozenset({NEW.name}))  # type: ignore[union-attr]
    failed = Failed(prepare, Trouble.NOT_FOUND, "gone", checkpoint=NEW.name, left=(), doubtful=True)
    assert decide(found, Inputs(NOW, reports=(failed,))).record.phase is Phase.CANCELLED


@pytest.mark.parametrize("trouble", [Trouble.NOT_FOUND, Trouble.CORRUPT])
def test_with_none_left_in_a_store_that_is_there_the_run_starts_over(trouble: Trouble) -> None:
    after = fails(preparing(OLD, NEW), trouble=trouble, doubtful=False)
    assert after.phase is Phase.PREPARING
    assert wanted(after).order.resume is None
    assert any("starts over from step 0" in note for note in after.notes)


def test_once_released_a_store_that_came_back_is_used() -> None:
    released = apply(fails(preparing(OLD, NEW)), Released(NOW))
    again = decide(released, Inputs(NOW, route=routed())).record
    prepare = wanted(again)
    assert prepare.order.resume == NEW.name
    ready = decide(again, Inputs(NOW, reports=(Done(prepare),))).record
    assert ready.phase is Phase.LAUNCHING
    assert not ready.start_over, "the next loss holds the run again"


def test_once_released_without_it_the_run_starts_over_and_says_so() -> None:
    released = apply(fails(preparing(OLD, NEW)), Released(NOW))
    again = fails(decide(released, Inputs(NOW, route=routed())).record)
    assert again.phase is Phase.PREPARING, "it is not held for the same reason twice"
    order = wanted(again).order
    assert (order.resume, order.resume_step, order.resume_sha256) == (None, 0, None)
    assert again.accepted == ()
    assert any("starts over from step 0" in note for note in again.notes)


def test_a_name_that_is_taken_is_passed_over_for_the_next() -> None:
    found = preparing(NEW)
    taken = Failed(wanted(found), Trouble.NAME_TAKEN, "s01 was started with another order")
    after = decide(found, Inputs(NOW, reports=(taken,))).record
    assert after.phase is Phase.QUEUED
    [pause] = after.cooldowns
    assert pause.until is not None
    assert pause.until - NOW < 60.0
    assert any("old copy of the home" in note for note in after.notes)
    assert decide(after, Inputs(NOW + 60.0, route=routed())).record.generation == 2
