"""Which failures are repeated, and what is kept of a session that is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.action import Collect, Done, Retire
from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.decide import decide, unasked
from orchestrator.core.deposit import decode, deposit_of
from orchestrator.core.draft import Inputs
from orchestrator.core.event import Amended, Ended, Event, GaveUp, OutputsKept, Submitted
from orchestrator.core.lifecycle import IllegalTransition, Phase
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.wire import encode
from tests.core.runs import NOW, RUN, accept, accepted, assigned, ended, job, record, running


def closed(found: RunRecord, *brought: Accepted) -> RunRecord:
    """The record after the last collect has brought this."""
    (collect,) = (each for each in decide(found, Inputs(NOW)).actions if isinstance(each, Collect))
    return decide(found, Inputs(NOW, reports=(Done(collect, brought),))).record


def crash(error: str, reached: int | None = None, *, hopeless: bool = False) -> Ended:
    over = replace(ended(Outcome.CRASHED), message=f"exit code 1: {error}")
    return replace(over, error=error, reached=reached, hopeless=hopeless)


def outputs(generation: int, step: int = 5, incarnation: str = "aaaa") -> Accepted:
    return Accepted(CheckpointRef(step, generation, incarnation, outputs=True), 7, sha256="0" * 64)


def next_session(found: RunRecord, *events: Event) -> RunRecord:
    for event in (assigned(found.generation + 1, found.accepted[-1] if found.accepted else None),
                  *running()[1:], *events):  # fmt: skip
        found = apply(found, event)
    return found


def test_what_would_fail_again_is_not_repeated() -> None:
    found = closed(record(*running(), crash("ModuleNotFoundError: x", hopeless=True)))
    assert found.phase is Phase.FAILED
    assert "it would fail again" in found.reason


def test_what_trained_elsewhere_is_tried_elsewhere() -> None:
    """A package that is missing here need not be missing there."""
    found = closed(record(*running(), accept(500), ended(Outcome.STOPPED)))
    found = closed(next_session(found, crash("ModuleNotFoundError: x", hopeless=True)))
    assert found.phase is Phase.QUEUED
    assert [each.until for each in found.cooldowns] == [None]


@pytest.mark.parametrize(
    ("second", "phase"),
    [
        (crash("ValueError: x", 7), Phase.FAILED),
        (crash("ValueError: x", 8), Phase.QUEUED),
        (crash("ValueError: y", 7), Phase.QUEUED),
        (ended(Outcome.CRASHED), Phase.QUEUED),
        (ended(Outcome.LOST), Phase.QUEUED),
    ],
)
def test_the_same_error_at_the_same_step_is_not_repeated(second: Ended, phase: Phase) -> None:
    first = closed(record(*running(), crash("ValueError: x", 7)))
    assert first.phase is Phase.QUEUED
    assert closed(next_session(first, second)).phase is phase


def test_a_repeated_error_is_known_after_a_session_with_progress_too() -> None:
    """A script that reports no steps fails after the same checkpoint."""
    error = replace(crash("ValueError: bad sample"), step=500)
    first = closed(record(*running(), accept(500), error))
    assert (first.phase, first.crash) == (Phase.QUEUED, ("ValueError: bad sample", 500))
    second = closed(next_session(first, crash("ValueError: bad sample")))
    assert second.phase is Phase.FAILED
    assert "the same error at step 500 as in the session before" in second.reason


def test_a_diverged_run_fails_whatever_it_has_saved() -> None:
    lost = replace(ended(Outcome.DIVERGED), message="loss is nan at step 40 (on_nan: fail)")
    found = closed(record(*running(), accept(30), lost))
    assert found.phase is Phase.FAILED
    assert found.reason.startswith("diverged: loss is nan at step 40")


@pytest.mark.parametrize("step", [None, 0, 5])
def test_a_session_that_is_done_without_a_checkpoint_is_done(step: int | None) -> None:
    found = closed(record(*running(), replace(ended(Outcome.COMPLETED, step=step), message="completed")))
    assert (found.phase is Phase.DONE) is (step is None), "a checkpoint that is named must be there"


def test_outputs_are_kept_beside_the_checkpoints_and_resumed_by_nobody() -> None:
    found = closed(record(*running(), accept(3), ended(Outcome.STOPPED)), outputs(1))
    assert found.outputs == (outputs(1),)
    assert [each.ref.step for each in found.accepted] == [3]
    assert found.stored == (*found.accepted, *found.outputs)
    assert decode(RUN, encode(deposit_of(found))).accepted == found.stored


def test_outputs_of_another_incarnation_are_ignored() -> None:
    found = closed(record(*running(), ended(Outcome.STOPPED)), outputs(1, incarnation="bbbb"), outputs(2))
    assert found.outputs == ()


@pytest.mark.parametrize(("asked", "kept"), [(None, [3, 4, 5]), (("*.csv",), [1, 2, 3, 4, 5])])
def test_outputs_that_nobody_asked_for_are_kept_of_three_sessions(
    asked: tuple[str, ...] | None, kept: list[int]
) -> None:
    found = record(*running(), OutputsKept(NOW, outputs(1)), ended(Outcome.LOST), outputs=asked)
    found = closed(found)
    for number in (2, 3, 4, 5):
        found = next_session(found, OutputsKept(NOW, outputs(number)), accept(number, number),
                             ended(Outcome.STOPPED))  # fmt: skip
        (collect,) = (each for each in decide(found, Inputs(NOW)).actions if isinstance(each, Collect))
        decision = decide(found, Inputs(NOW, reports=(Done(collect),)))
        found = decision.record
    assert [each.ref.generation for each in found.outputs] == kept
    (retire,) = (each for each in decision.actions if isinstance(each, Retire))
    assert {each.name for each in found.stored} == retire.keep


def test_a_fixed_job_is_taken_only_while_the_run_rests() -> None:
    fixed = job(bundle="c" * 64)
    failed = record(*running(), ended(Outcome.CRASHED))
    failed = apply(failed, GaveUp(NOW, "crashed"))
    after = apply(failed, Amended(NOW, fixed, ("source",)))
    assert (after.job, after.phase) == (fixed, Phase.FAILED)
    with pytest.raises(IllegalTransition):
        apply(record(*running()), Amended(NOW, fixed, ("source",)))


@pytest.mark.parametrize(("asked", "gone"), [(("*.csv",), []), (None, [1])])
def test_outputs_that_were_asked_for_stay_after_a_retry_that_asks_for_none(
    asked: tuple[str, ...] | None, gone: list[int]
) -> None:
    found = record(*running(), *(OutputsKept(NOW, outputs(number)) for number in (1, 2, 3, 4)),
                   ended(Outcome.CRASHED), outputs=asked)  # fmt: skip
    found = apply(found, GaveUp(NOW, "crashed"))
    after = apply(apply(found, Amended(NOW, job(), ("outputs",))), Amended(NOW, job(seed=2), ("seed",)))
    assert [each.ref.generation for each in unasked(after)] == gone


def test_no_session_can_have_its_own_outputs_deleted_and_collected_again() -> None:
    """An agent leaves one set, but nobody can trust what an outbox holds."""
    many = tuple(replace(outputs(3), ref=replace(outputs(3).ref, step=step)) for step in range(9))
    found = record(*running(), *(OutputsKept(NOW, each) for each in (outputs(1), outputs(2), *many)))
    assert unasked(found) == ()
    found = apply(found, OutputsKept(NOW, outputs(4)))
    assert unasked(found) == (outputs(1),)


def test_a_run_may_begin_with_the_checkpoint_of_another() -> None:
    start = accepted(500, 0, "feed")
    found = submit(Submitted(RUN, job(), NOW, start=start))
    assert found.accepted == (start,)
