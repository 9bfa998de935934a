"""Makes the decisions of a journal again: a run's history → for each decision, whether this version decides
the same.

Pure. Each decision is made on the record as it was then, so one that differs changes no later one. Only what
was journalled can be judged: a decision without events left nothing, and its actions are not in the journal.
Must never know where the journal comes from; anything in it may be damaged, older or newer than this version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from orchestrator.core import wire
from orchestrator.core.decide import conclude
from orchestrator.core.differing import between_events, between_routes, told
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import (
    Adopted,
    Amended,
    Event,
    Faulted,
    Moved,
    Regained,
    Retired,
    Slept,
    Submitted,
    Unscheduled,
    Wished,
    Woken,
)
from orchestrator.core.offer import Route
from orchestrator.core.route import Case, judge
from orchestrator.core.run import RunRecord, apply, submit

Decide = Callable[[RunRecord, Inputs], Decision]
Judge = Callable[[RunRecord, Case, float], Route]


class Answer(StrEnum):
    SAME = "same"  # this version decides the same
    DIFFERS = "differs"
    GIVEN = "given"  # no decision on a run: a user's wish, a schedule, another ledger, an unexpected error
    UNJUDGED = "unjudged"  # what it was decided from is not there, or cannot be read


class Entry(Protocol):
    """One event of a journal, as `orchestrator.ledger.Stored` has it."""

    @property
    def seq(self) -> int: ...
    @property
    def event(self) -> Event: ...
    @property
    def inputs(self) -> Any | None: ...
    @property
    def trouble(self) -> str: ...
    @property
    def inputs_trouble(self) -> str: ...


@dataclass(frozen=True)
class Step:
    """The events from seq `first` to `last`, appended together, and what this version says of them.

    `decided` are the events that it decides instead, and `differences` says how they differ. `reason`: whose
    doing they are, or why they cannot be judged. `routed`: the router judged again, too.
    """

    first: int
    last: int
    at: float
    answer: Answer
    recorded: tuple[Event, ...]
    decided: tuple[Event, ...] = ()
    differences: tuple[str, ...] = ()
    reason: str = ""
    routed: bool = False


def replay(
    history: Iterable[Entry], *, store: str = "", conclude: Decide = conclude, judge: Judge = judge
) -> Iterator[Step]:
    """Goes through a run's whole history, from its submission on. Raises nothing for any history.

    `store`: the home store of a run whose submission names none. `conclude` and `judge` are of the version to
    compare with.
    """
    place = _Place(store, conclude, judge)
    return (place.step(group) for group in _groups(history))


def _groups(history: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The events that were appended together. Only the first has inputs, and all have the same time."""
    group: list[Entry] = []
    for each in history:
        if group and not _belongs(each, group):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _belongs(each: Entry, group: list[Entry]) -> bool:
    first, last = group[0], group[-1]
    if each.inputs is not None or each.inputs_trouble or each.trouble or last.trouble:
        return False
    return each.seq == last.seq + 1 and each.event.at == first.event.at and not _giver(each.event)


def _giver(event: Event) -> str:
    """Whose doing an event without inputs is, if it can begin a group."""
    match event:
        case Submitted(schedule=schedule):
            return "its schedule submitted the run" if schedule else "the user submitted the run"
        case Wished():
            return "the user's wish"
        case Adopted():
            return "the run comes from another ledger"
        case Amended():
            return "the user changed its job"
        case Moved():
            return "the user copied the run to another store"
        case Woken():
            return "its schedule gives it a slice"
        case Slept(told=True):
            return "its schedule says when it is woken"
        case Unscheduled():
            return "its schedule was removed"
        case Regained(found=found) if found:
            return "the config has everything again"
        case _:
            return ""


class _Place:
    """The record as it was at one place of the journal; None before the first event. `lost`: why it is not
    known from there on."""

    def __init__(self, store: str, conclude: Decide, judge: Judge) -> None:
        self._store = store
        self._conclude = conclude
        self._judge = judge
        self._record: RunRecord | None = None
        self._seq = 0
        self._lost = ""

    def step(self, group: list[Entry]) -> Step:
        first, last = group[0], group[-1]
        events = tuple(each.event for each in group)
        found = Step(first.seq, last.seq, first.event.at, Answer.UNJUDGED, events)
        if not self._lost and first.seq != self._seq + 1:
            self._lost = f"event {self._seq + 1:,} is missing, so the record from then on is not known"
        if not self._lost and first.trouble:
            self._lost = f"{first.trouble}; so the record from then on is not known"
        if self._lost:
            return replace(found, reason=self._lost)
        found = self._judged(found, first)
        self._go_on(group)
        return found

    def _go_on(self, group: list[Entry]) -> None:
        for each in group:
            try:
                self._record = self._after(each.event)
            except Exception as error:  # noqa: BLE001 a foreign or damaged event may break the fold anywhere
                self._lost = (
                    f"event {each.seq:,} does not follow from those before ({_sentence(error)}), so the "
                    "record from then on is not known"
                )
                return
            self._seq = each.seq

    def _after(self, event: Event) -> RunRecord:
        if self._record is not None:
            return apply(self._record, event)
        if not isinstance(event, Submitted):
            raise ValueError("the first event is not the submission")
        record = submit(event)
        return record if record.store else replace(record, store=self._store)

    def _judged(self, found: Step, first: Entry) -> Step:
        if first.inputs is None or self._record is None:
            return replace(found, **_without_inputs(first))
        try:
            inputs: Inputs = wire.decode(Inputs, first.inputs)
        except ValueError as error:
            return replace(found, reason=f"what it was decided from cannot be read: {error}")
        if inputs.met:
            return replace(found, answer=Answer.GIVEN, reason="an unexpected error holds the run")
        try:
            found = self._again(found, self._record, inputs)
        except Exception as error:  # noqa: BLE001 a version that fails here differs from the one that did not
            said = f"this version fails on it: {_sentence(error)}"
            found = replace(found, answer=Answer.DIFFERS, differences=(said,))
        if found.answer is Answer.DIFFERS and (reason := _older(found.recorded, first.inputs)):
            return replace(found, answer=Answer.GIVEN, decided=(), differences=(), reason=reason)
        return found

    def _again(self, found: Step, record: RunRecord, inputs: Inputs) -> Step:
        differences: tuple[str, ...] = ()
        routed = inputs.case is not None and inputs.route is not None
        if inputs.case is not None and inputs.route is not None:
            route = self._judge(record, inputs.case, inputs.now)
            differences = told(between_routes(inputs.route, route))
            inputs = replace(inputs, route=route)
        decided = self._conclude(record, inputs).events
        differences += told(between_events(found.recorded, decided))
        answer = Answer.DIFFERS if differences else Answer.SAME
        return replace(found, answer=answer, decided=decided, differences=differences, routed=routed)


def _without_inputs(first: Entry) -> dict[str, Any]:
    giver = _giver(first.event)
    if isinstance(first.event, Retired):
        giver = "`orchestrator prune` removed these checkpoints"
    if isinstance(first.event, Slept):  # the core decides on it as well, but with inputs
        giver = "its schedule said when its next slice is"
    if giver:
        return {"answer": Answer.GIVEN, "reason": giver}
    return {"reason": first.inputs_trouble or "what it was decided from was not journalled"}


def _older(recorded: tuple[Event, ...], inputs: Any) -> str:
    """Whose doing the events may be, if an older version wrote them, which journalled neither what the config
    lacked nor an unexpected error."""
    if not isinstance(inputs, dict) or "met" in inputs:
        return ""
    last = recorded[-1]
    if len(recorded) == 1 and isinstance(last, Faulted) and last.awaits is None:
        return "the config lacked something" if last.missing else "an unexpected error held the run"
    reasons = [getattr(event, "reason", getattr(event, "message", "")) for event in recorded]
    if any("because the config no longer has" in reason for reason in reasons):
        return "the user gave up a run that the config lacked something for"
    return ""


def _sentence(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
