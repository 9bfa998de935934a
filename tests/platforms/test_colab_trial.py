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

from orchestrator.client import trying
from orchestrator.client.home import Home
from orchestrator.client.trial_store import HomeStoreOfTrials
from orchestrator.clock import SystemClock
from orchestrator.core.order import session_name
from orchestrator.errors import AccessDenied, InputError
from orchestrator.files.hashing import digest_file
from orchestrator.platforms.colab.options import ColabOptions
from orchestrator.platforms.colab.trial import assumptions, evidence
from orchestrator.platforms.colab.trial.course import Course
from orchestrator.platforms.colab.trial.ground import SESSION, Ground, Scale
from orchestrator.platforms.colab.trial.trial import ColabTrial
from orchestrator.platforms.colab.values import Reading, Units
from orchestrator.platforms.platform import Check, Supplies, Verdict
from orchestrator.platforms.trials.assumption import Assumption, Judgement, rows
from orchestrator.platforms.trials.conducting import Ending, cleared
from orchestrator.platforms.trials.record import Record
from orchestrator.platforms.trials.waiting import Waiting
from orchestrator.session.staging import Shipping
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.portable import Portable
from orchestrator.uplink import archive
from orchestrator.uplink.registers import Fence, fence_of
from tests.conformance.test_platforms import agent
from tests.platforms.colab_box import Box, Boxes, boxes

__all__ = ["agent", "boxes"]

ROOT = Path(__file__).parents[2]
SCALE = Scale(step=0.05, queue=8.0, gone=1.0, linger=0.0, late=30.0, alive=1.0, large=100_000)
RUN, DEAD = "colab-trial-7f3kq2vd", "colab-trial-00000000"


class Elsewhere(FolderStore):
    """A store that sessions do not find where it is."""

    def portable(self) -> Portable:
        given = super().portable()
        return replace(given, options={"path": f"{given.options['path']}-elsewhere"})


class Trying:
    """A trial whose parts are taken one by one."""

    def __init__(self, box: Box, kind: type[FolderStore] = FolderStore, **changes: float) -> None:
        scratch, uplink = box.folder / "scratch", box.folder / "uplink.pyz"
        scratch.mkdir()
        archive.build(uplink)
        self.store = kind(box.folder / "store")
        self.shipped = HomeStoreOfTrials(lambda: self.store, uplink, box.folder / "shipped")
        self.said: list[str] = []
        self.record = Record(assumptions.CHECKED)
        clock = SystemClock()
        self.waiting = Waiting(clock, 1.0, self.say)
        self.on: dict[str, Callable[[], object]] = {}
        options = ColabOptions.model_validate(box.options)
        self.ground = Ground(
            "here", RUN, options, box.folder / "sessions" / "trials", scratch,
            Supplies(box.agent, self.shipped), clock,
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
    there = (*tried.course.left(), *tried.ground.memory.sessions(), *tried.shipped.noted())
    return box.machines() == [] and there == () and list(tried.store.list("")) == []


def test_what_keeps_no_trial_from_its_end_is_named_together(boxes: Boxes) -> None:
    box = boxes(
        units_are_bare=True, rates={"NONE": 0.5}, listed_after_seconds=5.0, gone_after_seconds=4.0,
        kernels_are_new=True, python="3.10.12",
    )  # fmt: skip
    tried = Trying(box)
    tried.ground.memory.note(session_name(DEAD, 1), asked_at=1.0)  # of a trial that was killed
    part = cleared(lambda: tried.course.cells(long=False), tried.course, tried.waiting)
    assert part == Ending(), tried.said
    named = ids(
        assumptions.UNITS, assumptions.COST, assumptions.LISTED, assumptions.STOPPED, assumptions.QUEUED,
        assumptions.PYTHON,
    )  # fmt: skip
    assert tried.failures() == named, tried.checks()
    assert nothing_is_left(box, tried)


def test_a_second_machine_for_the_same_notebook_is_named_and_not_left(boxes: Boxes) -> None:
    """Also an upload that is too large, another accelerator, and a cell that ends with its client."""
    box = boxes(
        notebooks_are_forgotten=True, substitute="T4", upload_bytes_max=50_000, cells_need_clients=True
    )
    tried = Trying(box)
    part = cleared(lambda: tried.course.cells(long=True), tried.course, tried.waiting)
    assert part == Ending(), tried.said
    named = ids(
        assumptions.EXACT, assumptions.FOUND, assumptions.SAME, assumptions.LARGE, assumptions.ALIVE,
        assumptions.DETACHED,
    )  # fmt: skip
    assert tried.failures() == named, tried.checks()
    assert len(box.colab.account.allocated) == 2
    assert nothing_is_left(box, tried)


@pytest.mark.parametrize(
    ("wart", "named"),
    [
        ({"files_root": "elsewhere"}, assumptions.FOLDER),
        ({"files_wait_for_cells": True}, assumptions.BUSY),
        pytest.param({}, assumptions.ALIVE, marks=pytest.mark.soak),
    ],
    ids=["files-elsewhere", "files-wait", "vanishes"],
)
def test_what_ends_a_trial_is_named_and_does_not_hang_it(
    boxes: Boxes, wart: dict[str, object], named: Assumption
) -> None:
    box = boxes(**wart)
    tried = Trying(box, late=3.0)
    tried.on["leaving the machine alone"] = lambda: box.colab.vanish(box.machine().endpoint)
    ending = cleared(lambda: tried.course.cells(long=True), tried.course, tried.waiting)
    assert ending.trouble is not None
    assert tried.failures() == {named.id}, tried.checks()
    assert nothing_is_left(box, tried)


def test_a_checkpoint_that_is_damaged_on_its_machine_is_named_and_the_shipped_one_is_not(
    boxes: Boxes,
) -> None:
    """Also a machine that does not give itself back."""
    box = boxes(unassign_is_ignored=True)
    tried = Trying(box)
    session = tried.ground.session(SESSION)
    tried.on["s02: ended"] = lambda: box.corrupt(session)
    part = cleared(tried.course.session, tried.course, tried.waiting)
    assert part == Ending(), tried.said
    assert tried.failures() == ids(assumptions.STAYS, assumptions.GIVES_BACK), tried.checks()
    assert tried.checks()[assumptions.REACHES.id].verdict is Verdict.HOLDS
    assert nothing_is_left(box, tried)


@pytest.mark.soak
def test_a_session_that_does_not_reach_the_home_store_is_named(boxes: Boxes) -> None:
    """It leaves when its time is over, although its uplink has shipped nothing."""
    box = boxes()
    tried = Trying(box, Elsewhere, late=8.0, linger=5.0)
    part = cleared(tried.course.session, tried.course, tried.waiting)
    assert part == Ending(), tried.said
    assert tried.failures() == ids(assumptions.REACHES), tried.checks()
    assert "cannot reach the home store" in tried.checks()[assumptions.REACHES.id].seen
    assert nothing_is_left(box, tried)


# --- Evidence that no wart gives --------------------------------------------------------------------------

UNITS = Units(balance=100.0, per_hour=2.0, assignments=1, gpus=("T4",), tpus=())


def judged(judgement: Judgement) -> Verdict:
    return judgement[0]


def test_a_machine_without_torch_or_with_an_old_python_is_named() -> None:
    assert evidence.python({"python": "3.12.11", "torch": "2.9.0"}) == (
        Verdict.HOLDS,
        "Python 3.12.11, torch 2.9.0",
    )
    assert judged(evidence.python({"python": "3.12.11", "torch": ""})) is Verdict.FAILS
    assert judged(evidence.python({"python": "3.10.2", "torch": "2.9.0"})) is Verdict.FAILS


def test_the_free_tier_must_say_what_is_left() -> None:
    assert evidence.units(UNITS) == (Verdict.HOLDS, "may use T4")
    free = replace(UNITS, balance=0.0)
    assert evidence.units(free) == (Verdict.FAILS, "no freeCcuQuotaInfo")
    assert judged(evidence.units(replace(free, free_left=3.0))) is Verdict.HOLDS


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
    assert judged(evidence.cost(UNITS, after)) is expected


def test_a_machine_that_a_question_started_is_named() -> None:
    reading = Reading((), endpoints={"a": "x"})
    assert judged(evidence.found("x", reading, "a", "b")) is Verdict.HOLDS
    assert judged(evidence.found("y", reading, "a", "b")) is Verdict.FAILS
    assert judged(evidence.found("x", Reading((), endpoints={"a": "x", "b": "y"}), "a", "b")) is Verdict.FAILS


def test_cells_that_run_at_the_same_time_are_named() -> None:
    assert judged(evidence.queued({"beside": True})) is Verdict.FAILS
    assert judged(evidence.queued({"beside": False})) is Verdict.NOT_SEEN


def test_a_home_store_that_no_session_can_open_is_not_tried() -> None:
    program = Path("uplink.pyz")
    here = Shipping(program, b"{}", this_machine=True)
    assert here.unusable(here=True) == ""
    assert "a folder" in here.unusable(here=False)
    assert Shipping(program, b"{}").unusable(here=False) == ""
    refused = Shipping(program, refusal="it has no registers")
    assert refused.unusable(here=True).endswith("it has no registers")


def test_what_trials_that_died_have_shipped_is_removed(tmp_path: Path) -> None:
    """Nothing else is: neither what a trial that is under way ships, nor anything of a run."""
    source, store = tmp_path / "source", FolderStore(tmp_path / "store")
    source.write_bytes(b"")
    shipped = HomeStoreOfTrials(lambda: store, tmp_path / "uplink.pyz", tmp_path / "notes")
    for run in (RUN, DEAD, "demo-7f3kq2vd"):
        store.put(f"runs/{run}/sessions/{session_name(run, 2)}/log/1", source, digest_file(source))
    for run in (RUN, DEAD):
        shipped.begin(session_name(run, 2), 2)
    shipped.clear_dead(lambda: {RUN})
    assert shipped.noted() == (session_name(RUN, 2),)
    assert {each.key.split("/")[1] for each in store.list("")} == {RUN, "demo-7f3kq2vd"}
    assert fence_of(store, DEAD) is None
    assert fence_of(store, RUN) == Fence(2)


# --- What is told -----------------------------------------------------------------------------------------


def test_the_page_lists_the_assumptions_of_the_code() -> None:
    text = (ROOT / "docs" / "colab.md").read_text(encoding="utf-8").partition("## What was never tried")[2]
    assert re.findall(r"^\| C\d.*$", text, re.MULTILINE) == rows(assumptions.ALL)


def test_each_assumption_has_an_id_of_its_own() -> None:
    expected = [f"C{number}" for number in range(1, len(assumptions.ALL) + 1)]
    assert [each.id for each in assumptions.ALL] == expected


def test_without_a_platform_to_try_each_kind_is_advised(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"kaggle: \{type: kaggle.*orchestrator colab login colab"):
        trying.prepared(Home(tmp_path), SystemClock(), (), long=False)


def test_a_trial_without_units_says_what_to_do(boxes: Boxes) -> None:
    """It makes nothing: what the free tier allows is for a person to decide."""
    box = boxes(balance=0.0)
    options = ColabOptions.model_validate(box.options)
    trial = ColabTrial("here", options, box.platform._cli, box.folder / "t", SystemClock(), long=False)
    with pytest.raises(AccessDenied, match="free_tier: true"):
        trial.intent()
    assert box.colab.account.allocated == []
