"""What a rehearsal says about what it saw: never more than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.checkpoint import CheckpointRef, Manifest
from orchestrator.core.job import CheckpointPolicy
from orchestrator.core.order import Outcome, Result
from orchestrator.rehearsal.comparing import Lost, Resumption, Seen
from orchestrator.rehearsal.contents import Difference
from orchestrator.rehearsal.judging import Compared, Evidence, Exactness, Finding, is_over, unseen
from orchestrator.rehearsal.legs import Leg
from tests.core.runs import job


def steps(count: int, begin: int = 0, *, weights: int = 100, data: int = 200) -> tuple[Seen, ...]:
    """A training with 8 batches in a pass."""
    return tuple(
        Seen(number, weights + begin + number, 7, data + begin + number, {"torch": begin + number},
             passes=1 + (begin + number) // 8, batches=8)
        for number in range(count)
    )  # fmt: skip


def leg(trace: Sequence[Seen], *, opened: bool = False) -> Leg:
    return Leg("any", "rehearsal-s01", Path(), None, (), tuple(trace), (), 1.0, opened=opened)


WEIGHTS = Difference("5.pt: weights", 1e-7)
NOTE = Difference("5.pt: best", 0.5, is_state=False)
CLEAN = Evidence(
    whole=leg(steps(30)),
    resumed=(leg(steps(10, 10)),),
    compared=Compared(20),
    unseeded=(),
    drifts=False,
    found=(Resumption(10, ()),),
    starts_over=False,
    torn=(),
    crashed=(),
)
UNWATCHED = replace(CLEAN, whole=leg(()), resumed=(leg((), opened=True),), found=())
DRIFTING = replace(CLEAN, compared=Compared(20, (WEIGHTS,)), drifts=True)


@pytest.mark.parametrize(
    ("evidence", "grade"),
    [
        (CLEAN, Exactness.BITWISE),
        (UNWATCHED, Exactness.BITWISE),
        (replace(UNWATCHED, resumed=(leg(()),)), Exactness.UNKNOWN),  # perhaps it never read its checkpoint
        (
            replace(UNWATCHED, compared=Compared(20, (NOTE,), (NOTE,))),
            Exactness.UNKNOWN,
        ),  # a time?
        (replace(CLEAN, compared=Compared(20, (NOTE,), (NOTE,))), Exactness.BITWISE),
        (replace(CLEAN, compared=Compared(20, (NOTE,))), Exactness.UNKNOWN),  # a log, or its state
        (replace(CLEAN, compared=Compared(20, (NOTE, WEIGHTS), (NOTE,))), Exactness.NOT_EXACT),
        (replace(CLEAN, compared=Compared(None)), Exactness.UNKNOWN),
        (replace(CLEAN, found=(Resumption(10, (Lost.RANDOM,)),)), Exactness.UNKNOWN),  # nothing was drawn yet
        (replace(CLEAN, found=(Resumption(10, (Lost.STATE,)),)), Exactness.NOT_EXACT),  # such as an average
        (replace(CLEAN, found=(Resumption(0, (Lost.EVERYTHING,)),)), Exactness.NOT_EXACT),  # alike by chance
        (replace(UNWATCHED, starts_over=True), Exactness.NOT_EXACT),
        (
            replace(CLEAN, compared=Compared(20, (WEIGHTS,))),
            Exactness.NOT_EXACT,
        ),  # a scheduler, anew
        (DRIFTING, Exactness.STATE_EXACT),
        (replace(DRIFTING, resumed=(leg(steps(10, 10, data=900)),)), Exactness.NOT_EXACT),
        (replace(DRIFTING, found=()), Exactness.NOT_EXACT),
        (replace(CLEAN, unseeded=("weights",)), Exactness.NOT_EXACT),
        (replace(CLEAN, torn=(Finding("torn files", ""),)), Exactness.NOT_EXACT),
        (replace(CLEAN, crashed=(Finding("crash", ""),)), Exactness.NOT_EXACT),
    ],
)
def test_a_grade_is_no_better_than_its_evidence(evidence: Evidence, grade: Exactness) -> None:
    assert evidence.grade is grade


@pytest.mark.parametrize(
    ("saved", "completed", "numbered", "over"),
    [
        ((5,), False, True, False),
        ((5,), True, True, False),  # after it was asked to stop, it trained to its end and saved no more
        ((5, 20), True, True, True),
        ((20,), False, True, True),  # a quick one, of which not every save was taken
        ((20,), False, False, False),
        ((1, 2), True, False, True),
        ((), False, True, False),
    ],
)
def test_what_has_done_all_steps_was_not_interrupted(
    saved: tuple[int, ...], completed: bool, numbered: bool, over: bool
) -> None:
    watch = "ckpt_{step}.pt" if numbered else "last.pt"
    given = job(checkpoint=CheckpointPolicy(watch=watch))
    whole = replace(leg(()), manifests=(manifest(5), manifest(20)))
    result = Result("aaaa", Outcome.COMPLETED if completed else Outcome.LOST, 0, None, "")
    assert (
        is_over(given, replace(leg(()), manifests=tuple(map(manifest, saved)), result=result), whole) is over
    )


def manifest(step: int) -> Manifest:
    return Manifest("run-aaaaaaaa", CheckpointRef(step, 1, "aaaa"), 16, ())


def test_a_resume_in_the_first_pass_says_nothing_about_the_next(  # its order may be that of the first again
) -> None:
    assert list(unseen(CLEAN, Exactness.BITWISE)) == []
    early = replace(CLEAN, found=(Resumption(5, ()),))
    [finding] = unseen(early, Exactness.BITWISE)
    assert "it resumed in its first pass of 8 batches over the data" in finding.text
    assert "--steps" in finding.advice
