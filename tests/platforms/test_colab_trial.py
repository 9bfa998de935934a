"""`doctor --live` on a local Colab: with each wart turned the other way, exactly its assumption fails.

Each call of the command line is a process, so a trial has as many warts as do not disturb each other.
tests/cli/test_colab_live.py has the whole trial, which holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import AccessDenied
from orchestrator.platforms.colab.options import ColabOptions
from orchestrator.platforms.colab.trial import assumptions, course
from orchestrator.platforms.colab.trial.course import Course
from orchestrator.platforms.colab.trial.ground import SESSION, Ground, Scale
from orchestrator.platforms.colab.trial.trial import ColabTrial
from orchestrator.platforms.colab.values import Reading, Units
from orchestrator.platforms.platform import Check, Verdict
from orchestrator.platforms.trials.assumption import Assumption, Judgement, rows
from orchestrator.platforms.trials.conducting import Ending, cleared
from orchestrator.platforms.trials.record import Record
from orchestrator.platforms.trials.waiting import Late, Waiting
from tests.conformance.test_platforms import agent
from tests.platforms.colab_box import Box, Boxes, boxes

__all__ = ["agent", "boxes"]

ROOT = Path(__file__).parents[2]
SCALE = Scale(step=0.05, queue=5.0, gone=1.0, linger=0.0, late=30.0, alive=1.0, large=100_000)
RUN = "colab-trial-7f3kq2vd"


class Trying:
    """A trial whose parts are taken one by one."""

    def __init__(self, box: Box, **changes: float) -> None:
        scratch = box.folder / "scratch"
        scratch.mkdir()
        self.said: list[str] = []
        self.record = Record(assumptions.CHECKED)
        clock = SystemClock()
        self.waiting = Waiting(clock, 1.0, self.say)
        self.on: dict[str, Callable[[], None]] = {}
        options = ColabOptions.model_validate(box.options)
        self.ground = Ground(
            "here", RUN, options, box.folder / "sessions" / "trials", scratch, box.agent, clock,
            replace(SCALE, **changes), box.platform._cli, self.waiting,  # type: ignore[arg-type]
        )  # fmt: skip
        self.course = Course(self.ground, self.record)

    def say(self, text: str) -> None:
        self.said.append(text)
        for start, act in self.on.items():
            if text.startswith(start):
                act()

    def checks(self) -> dict[str, Check]:
        return {each.id: each for each in self.record.checks(long=True, why="")}

    def failures(self) -> set[str]:
        return {each.id for each in self.checks().values() if each.verdict is Verdict.FAILS}


def ids(*given: Assumption) -> set[str]:
    return {each.id for each in given}


def nothing_is_left(box: Box, tried: Trying) -> bool:
    return box.machines() == [] and tried.course.left() == () and tried.ground.memory.sessions() == ()


def test_what_keeps_no_trial_from_its_end_is_named_together(boxes: Boxes) -> None:
    box = boxes(
        units_are_bare=True, rates={"NONE": 0.5}, listed_after_seconds=5.0, gone_after_seconds=4.0,
        cells_need_clients=True,
    )  # fmt: skip
    tried = Trying(box)
    part = cleared(lambda: tried.course.cells(long=False), tried.course, tried.waiting)
    assert part == Ending(), tried.said
    named = ids(
        assumptions.UNITS, assumptions.COST, assumptions.LISTED, assumptions.STOPPED, assumptions.DETACHED
    )
    assert tried.failures() == named, tried.checks()
    assert nothing_is_left(box, tried)


def test_a_second_machine_for_the_same_notebook_is_named_and_not_left(boxes: Boxes) -> None:
    """Also an upload that is too large, another accelerator, and a machine that was left alone."""
    box = boxes(notebooks_are_forgotten=True, substitute="T4", upload_bytes_max=50_000)
    tried = Trying(box)
    tried.on["leaving the machine alone"] = lambda: box.colab.vanish(box.machines()[-1].endpoint)
    ending = cleared(lambda: tried.course.cells(long=True), tried.course, tried.waiting)
    assert "the machine is gone" in str(ending.trouble), tried.said
    named = ids(
        assumptions.EXACT, assumptions.FOUND, assumptions.SAME, assumptions.LARGE, assumptions.ALIVE
    )  # fmt: skip
    assert tried.failures() == named, tried.checks()
    assert len(box.colab.account.allocated) == 2
    assert nothing_is_left(box, tried)


@pytest.mark.parametrize(
    ("wart", "named"),
    [({"files_root": "elsewhere"}, assumptions.FOLDER), ({"files_wait_for_cells": True}, assumptions.BUSY)],
    ids=["files-elsewhere", "files-wait"],
)
def test_what_ends_a_trial_is_named_and_does_not_hang_it(
    boxes: Boxes, wart: dict[str, object], named: Assumption
) -> None:
    box = boxes(**wart)
    tried = Trying(box, late=3.0)
    ending = cleared(lambda: tried.course.cells(long=False), tried.course, tried.waiting)
    assert ending.trouble is not None
    assert tried.failures() == {named.id}, tried.checks()
    assert nothing_is_left(box, tried)


def test_a_machine_that_does_not_give_itself_back_is_named_and_not_left(boxes: Boxes) -> None:
    """Also a session that left nothing to read."""
    box = boxes()
    tried = Trying(box)
    session = tried.course._make(SESSION)
    box.platform._cli.new(session, "NONE")
    tried.course._until_absent(session, 0.0)
    with pytest.raises(Late):
        tried.course._until("to train", 0.0, lambda _: False)
    tried.course.clear()
    assert tried.failures() == ids(assumptions.GIVES_BACK, assumptions.STAYS)
    assert nothing_is_left(box, tried)


# --- Evidence that no wart gives --------------------------------------------------------------------------

UNITS = Units(balance=100.0, per_hour=2.0, assignments=1, gpus=("T4",), tpus=())


def judged(judgement: Judgement) -> Verdict:
    return judgement[0]


def test_a_machine_without_torch_or_with_an_old_python_is_named() -> None:
    assert course.python({"python": "3.12.11", "torch": "2.9.0"}) == (
        Verdict.HOLDS,
        "Python 3.12.11, torch 2.9.0",
    )
    assert judged(course.python({"python": "3.12.11", "torch": ""})) is Verdict.FAILS
    assert judged(course.python({"python": "3.10.2", "torch": "2.9.0"})) is Verdict.FAILS


def test_the_free_tier_must_say_what_is_left() -> None:
    assert course.units(UNITS) == (Verdict.HOLDS, "may use T4")
    free = replace(UNITS, balance=0.0)
    assert course.units(free) == (Verdict.FAILS, "no freeCcuQuotaInfo")
    assert judged(course.units(replace(free, free_left=3.0))) is Verdict.HOLDS


@pytest.mark.parametrize(
    ("per_hour", "assignments", "expected"),
    [
        (2.08, 2, Verdict.HOLDS),
        (2.0, 2, Verdict.FAILS),
        (4.0, 2, Verdict.FAILS),
        (4.0, 3, Verdict.NOT_SEEN),
    ],
)
def test_what_a_machine_costs_beside_others(per_hour: float, assignments: int, expected: Verdict) -> None:
    after = replace(UNITS, per_hour=per_hour, assignments=assignments)
    assert judged(course.cost(UNITS, after)) is expected


def test_a_machine_that_a_question_started_is_named() -> None:
    reading = Reading((), endpoints={"a": "x"})
    assert judged(course.found("x", reading, "a", "b")) is Verdict.HOLDS
    assert judged(course.found("y", reading, "a", "b")) is Verdict.FAILS
    assert judged(course.found("x", Reading((), endpoints={"a": "x", "b": "y"}), "a", "b")) is Verdict.FAILS


def test_cells_that_run_at_the_same_time_are_named() -> None:
    assert judged(course.queued({"beside": True})) is Verdict.FAILS
    assert judged(course.queued({"beside": False})) is Verdict.NOT_SEEN


# --- What is told -----------------------------------------------------------------------------------------


def test_the_page_lists_the_assumptions_of_the_code() -> None:
    text = (ROOT / "docs" / "colab.md").read_text(encoding="utf-8").partition("## What was never tried")[2]
    assert re.findall(r"^\| C\d.*$", text, re.MULTILINE) == rows(assumptions.ALL)


def test_each_assumption_has_an_id_of_its_own() -> None:
    expected = [f"C{number}" for number in range(1, len(assumptions.ALL) + 1)]
    assert [each.id for each in assumptions.ALL] == expected


def test_a_trial_without_units_says_what_to_do(boxes: Boxes) -> None:
    """It makes nothing: what the free tier allows is for a person to decide."""
    box = boxes(balance=0.0)
    options = ColabOptions.model_validate(box.options)
    trial = ColabTrial("here", options, box.platform._cli, box.folder / "t", SystemClock(), long=False)
    with pytest.raises(AccessDenied, match="free_tier: true"):
        trial.intent()
    assert box.colab.account.allocated == []
