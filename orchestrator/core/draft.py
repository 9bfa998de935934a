"""What one decision is made from and into: its inputs, the record as it changes, events and actions.

Pure values. Decides nothing; `orchestrator.core.decide` and `orchestrator.core.reports` fill the draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.action import Action, Report
from orchestrator.core.event import Event, Faulted, Noted
from orchestrator.core.notes import Notes, Tallies, Tally, kind_of, met
from orchestrator.core.offer import Route
from orchestrator.core.route import Case
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import Session
from orchestrator.core.watch import Watch


@dataclass(frozen=True)
class Inputs:
    """Everything decide may look at besides the record. `now` is the wall clock, `monotonic` the controller's
    own, of which the watches' times are. `reports` are those of this run's actions since it was last decided;
    `watch` is of its current session, `strays` of closed ones; `route` only while it is queued, and `case`
    what it was judged by; `launch_unknown`: this controller found a launch intended and does not know whether
    it happened; `tallies`: how often notes were met that were not worth an event.
    """

    now: float
    monotonic: float = 0.0
    reports: tuple[Report, ...] = ()
    watch: Watch | None = None
    strays: Mapping[str, Watch] = field(default_factory=dict)
    route: Route | None = None
    case: Case | None = None
    launch_unknown: bool = False
    tallies: Tallies = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """`events` to journal, in order; `actions` wanted once they are; `due_at`: when a queued run wants to
    be decided again (0: at once; None: when a slot frees or an offer changes). It may be later than the
    record's `until`, which is journalled only when it has moved by much. `record` is after the events;
    `tallies` are the next decision's."""

    record: RunRecord
    events: tuple[Event, ...]
    actions: tuple[Action, ...]
    due_at: float | None = None
    tallies: Tallies = field(default_factory=dict)


class Draft:
    """The record as it changes while one decision is made."""

    def __init__(self, record: RunRecord, inputs: Inputs) -> None:
        self.before = record
        self.record = record
        self.now = inputs.now
        self.monotonic = inputs.monotonic
        self.inputs = inputs
        self.events: list[Event] = []
        self.actions: list[Action] = []
        self.gone: set[str] = set()  # sessions of which a stop has just said that nothing runs any more
        self.tallies: dict[str, Tally] = dict(inputs.tallies)
        self.look_again_at: float | None = None  # when a route that was looked at may be another

    def emit(self, event: Event) -> None:
        self.record = apply(self.record, event)
        self.events.append(event)

    def note(self, text: str) -> None:
        """Something a user should know; what is met again and again is counted."""
        found = met(Notes(self.record.notes, self.record.note_times), self.tallies, text)
        if found is None:
            return
        text, tally, worth_an_event = found
        self.tallies[kind_of(text)] = tally
        if worth_an_event:
            self.emit(Noted(self.now, text, tally.times))

    def fault(self, reason: str, missing: tuple[str, ...] = ()) -> None:
        """The run waits for a person, where it stands; for want of what in the config."""
        if self.record.fault != reason:
            self.emit(Faulted(self.now, reason, missing))

    @property
    def session(self) -> Session:
        assert self.record.session is not None
        return self.record.session
