"""Decisions made again from a journal: the same, others, and what cannot be judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestrator.core import wire
from orchestrator.core.action import Done, Prepare
from orchestrator.core.decide import conclude
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import (
    Assigned,
    Deferred,
    Event,
    Faulted,
    Noted,
    Prepared,
    Regained,
    Retired,
    Slept,
    Slice,
    Submitted,
    Unscheduled,
    Wished,
    Woken,
)
from orchestrator.core.lifecycle import Wish
from orchestrator.core.offer import Route
from orchestrator.core.replay import Answer, Step, replay
from orchestrator.core.route import Case, judge
from orchestrator.core.run import RunRecord, submit
from tests.core.runs import NOW, OFFER, RUN, job

CLOUD = replace(OFFER, platform="cloud", accelerator="T4")
CASE = Case((OFFER, CLOUD), usage=(("here", "cpu", 0), ("cloud", "T4", 0)))


@dataclass(frozen=True)
class Line:
    """An entry of a journal, as a ledger gives it."""

    seq: int
    event: Event
    inputs: Any | None = None
    trouble: str = ""
    inputs_trouble: str = ""


class Journal:
    """Decides like the engine, and keeps what that journals."""

    def __init__(self, case: Case = CASE) -> None:
        submitted = Submitted(RUN, job(), NOW, store="home")
        self.lines = [Line(1, submitted)]
        self.record = submit(submitted)
        self.decide(10.0, route=judge(self.record, case, NOW + 10.0), case=case)

    def decide(self, later: float, **inputs: Any) -> None:
        given = Inputs(NOW + later, later, **inputs)
        decision = conclude(self.record, given)
        told = json.loads(json.dumps(wire.to_json(given)), parse_constant=wire.NotFinite)
        for number, event in enumerate(decision.events):
            self.lines.append(Line(len(self.lines) + 1, event, None if number else told))
        self.record = decision.record

    def prepared(self) -> Journal:
        assert self.record.session is not None
        prepare = Prepare(self.record.session.order, frozenset(), frozenset(), "home")
        self.decide(20.0, reports=(Done(prepare, notes=("the image is large",)),))
        return self

    def append(self, *events: Event) -> Journal:
        for event in events:
            self.lines.append(Line(len(self.lines) + 1, event))
        return self


def answers(lines: Sequence[Line], **versions: Any) -> list[Step]:
    return list(replay(lines, **versions))


def kinds(lines: Sequence[Line], **versions: Any) -> list[str]:
    return [step.answer.value for step in replay(lines, **versions)]


def test_the_version_that_decided_decides_the_same_again() -> None:
    steps = answers(Journal().prepared().lines)
    assert [(step.first, step.last, step.answer.value, step.routed) for step in steps] == [
        (1, 1, "given", False), (2, 2, "same", True), (3, 4, "same", False),
    ]  # fmt: skip
    assert [type(event) for event in steps[-1].decided] == [Prepared, Noted]


def slower(record: RunRecord, case: Case, now: float) -> Route:
    """Another version of the router: it knows nothing of the cloud."""
    return judge(record, replace(case, offers=(OFFER,)), now)


def test_another_router_is_found_out_and_what_it_does_is_told() -> None:
    lines = Journal().lines
    chosen = answers(lines)[1].decided[0]
    assert isinstance(chosen, Assigned)
    assert chosen.order.platform == "cloud"
    step = answers(lines, judge=slower)[1]
    assert step.answer is Answer.DIFFERS
    assert "route: cloud/T4 was chosen, now not offered" in step.differences
    assert "assigned.order.platform: recorded 'cloud', now 'here'" in step.differences


def hasty(record: RunRecord, inputs: Inputs) -> Decision:
    """Another version of decide: it notes nothing."""
    decision = conclude(record, inputs)
    return replace(decision, events=tuple(e for e in decision.events if not isinstance(e, Noted)))


def test_another_decide_is_found_out_and_costs_no_later_decision() -> None:
    journal = Journal().prepared()
    journal.decide(60.0, met="unexpected error while reading tiny-abcdefgh (KeyError)")
    steps = answers(journal.lines, conclude=hasty)
    assert [step.answer.value for step in steps] == ["given", "same", "differs", "given"]
    assert steps[2].differences == ("recorded prepared + noted, now prepared",)


def test_a_version_that_fails_on_a_decision_differs_from_one_that_did_not() -> None:
    def broken(_record: RunRecord, _inputs: Inputs) -> Decision:
        raise OverflowError("int too large to convert to float")

    step = answers(Journal().lines, conclude=broken)[1]
    assert step.answer is Answer.DIFFERS
    assert step.differences == ("this version fails on it: OverflowError: int too large to convert to float",)


def test_a_date_that_differs_is_told_as_a_date() -> None:
    case = replace(CASE, usage=(("here", "cpu", 1), ("cloud", "T4", 1)))
    journal = Journal(case)
    [first, second] = journal.lines
    assert isinstance(second.event, Deferred)
    [_, step] = answers([first, replace(second, event=replace(second.event, until=NOW))])
    assert step.differences == ("deferred.until: recorded 2026-09-21 14:13Z, now nothing",)


def test_what_others_did_is_listed_as_given() -> None:
    journal = Journal().append(Wished(NOW + 11.0, Wish.HOLD), Regained(NOW + 12.0, ("store 'home'",)))
    journal.append(Retired(NOW + 13.0, ("0000000010-g01-aaaa",)))
    steps = answers(journal.lines)
    assert [step.answer.value for step in steps] == ["given", "same", "given", "given", "given"]
    assert steps[-1].reason == "`orchestrator prune` removed these checkpoints"


def test_what_a_schedule_did_is_listed_as_given() -> None:
    """Two fires may wake a run at the same instant."""
    journal = Journal().append(Woken(NOW + 11.0, Slice(NOW)), Woken(NOW + 11.0, Slice(NOW + 1.0)))
    journal.append(Unscheduled(NOW + 12.0), Slept(NOW + 13.0, "schedule nightly", told=True))
    steps = answers(journal.lines)
    assert [step.answer.value for step in steps] == ["given", "same", *["given"] * 4]
    assert {step.reason for step in steps[2:4]} == {"its schedule gives it a slice"}


def test_what_the_config_lacks_is_decided_again() -> None:
    journal = Journal()
    journal.decide(30.0, lacking=("platform 'cloud'",))
    assert isinstance(journal.lines[-1].event, Faulted)
    assert kinds(journal.lines) == ["given", "same", "same"]
    assert kinds(journal.lines, conclude=lambda record, inputs: conclude(record, Inputs(inputs.now)))[2] == (
        "differs"
    )


@pytest.mark.parametrize("missing", [(), ("store 'home'",)])
def test_what_an_older_version_did_not_journal_is_taken_for_given(missing: tuple[str, ...]) -> None:
    journal = Journal()
    told = wire.to_json(Inputs(NOW + 30.0))
    del told["met"], told["lacking"]
    held = Faulted(NOW + 30.0, "it needs the store 'home'", missing)
    steps = answers([*journal.lines, Line(3, held, told)])
    assert steps[-1].answer is Answer.GIVEN
    assert steps[-1].reason


# --- What cannot be judged ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (None, "what it was decided from was not journalled"),
        ([], "what it was decided from cannot be read: Inputs: expected an object, found []"),
        ({"now": "soon"}, "what it was decided from cannot be read: Inputs.now: expected a finite number"),
        ({"now": 10**400}, "what it was decided from cannot be read: Inputs.now: expected a finite number"),
        ({"now": NOW, "case": {"offers": [3]}}, "Inputs.case.offers[0]: expected an object, found 3"),
        (
            {"now": NOW, "reports": [{"kind": "dreamt"}]},
            "Inputs.reports[0].kind: expected one of done, failed",
        ),
    ],
)
def test_damaged_inputs_cost_one_judgement(inputs: Any, said: str) -> None:
    lines = Journal().prepared().lines
    lines[1] = replace(lines[1], inputs=inputs)
    steps = answers(lines)
    assert [step.answer.value for step in steps] == ["given", "unjudged", "same"]
    assert said in steps[1].reason


def test_after_an_event_that_is_missing_or_damaged_nothing_is_judged() -> None:
    lines = Journal().prepared().lines
    for damaged in (
        [lines[0], *lines[2:]],
        [lines[0], replace(lines[1], trouble="event 2, 'assigned', cannot be read"), *lines[2:]],
        [lines[0], replace(lines[1], event=Prepared(NOW)), *lines[2:]],
        lines[1:],
    ):
        steps = answers(damaged)
        assert steps[-1].answer is Answer.UNJUDGED
        assert steps[-1].reason
        assert not any(step.answer is Answer.DIFFERS for step in steps[2:])


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1e308, -1e308, 5e-324])
def test_huge_numbers_from_a_platform_are_judged_like_others(value: float) -> None:
    offers = (OFFER, replace(CLOUD, memory_gb=value, disk_gb=value))
    assert kinds(Journal(replace(CASE, offers=offers)).lines) == ["given", "same"]


def test_differences_without_end_are_cut() -> None:
    lines = Journal().lines
    event = lines[1].event
    assert isinstance(event, Assigned)
    order = replace(event.order, env=tuple((f"A{number}", "x" * 10_000) for number in range(1000)))
    step = answers([lines[0], replace(lines[1], event=replace(event, order=order))])[1]
    assert step.answer is Answer.DIFFERS
    assert len(step.differences) == 21
    assert step.differences[-1] == "and 980 more differences"
    assert max(map(len, step.differences)) < 300
