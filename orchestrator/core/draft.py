"""The input and output of one decision: its inputs, the changing record, events and actions.

Pure values. Decides nothing; `orchestrator.core.decide` and `orchestrator.core.reports` fill the draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.action import Action, Report
from orchestrator.core.event import Event, Faulted, Noted
from orchestrator.core.lifecycle import Awaited
from orchestrator.core.notes import Notes, Tallies, Tally, kind_of, met
from orchestrator.core.offer import Route
from orchestrator.core.route import Case
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import Session
from orchestrator.core.watch import Watch


@dataclass(frozen=True)
class Inputs:
    """Everything decide may look at besides the record.

    `now` is the wall clock; `monotonic` is the controller's monotonic clock, which the watches use. `reports`
    are those of this run's actions since its last decision. `watch` is of its current session, `strays` of
    closed ones. `route` is given only while the run is queued, and `case` is what it was judged by.
    `launch_unknown`: the ledger has an intended launch, and this controller does not know whether it
    happened. `beyond`: the host of the machine that the session is bound to, if this controller does not
    reach it. `tallies`: the counts of notes, including those that were not journalled. `lacking`: what the
    config lacks for the run. `elsewhere`: why the run's store, which it then lacks, is another ledger's.
    `met`: an unexpected error, in a sentence; the run is held for it.
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
    beyond: str = ""
    lacking: tuple[str, ...] = ()
    elsewhere: str = ""
    met: str = ""


@dataclass(frozen=True)
class Decision:
    """The result of one decision.

    `events` are to be journalled, in order; then the `actions` are to be performed. `due_at`: when to decide
    a queued run again (0: at once; None: when a slot is free or an offer changes). It may be later than the
    record's `until`, which is journalled only if it moves by much. `record` is the one after the events;
    `tallies` are for the next decision.
    """

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
        self.gone: set[str] = set()  # sessions that a stop has just reported as ended
        self.tallies: dict[str, Tally] = dict(inputs.tallies)
        self.look_again_at: float | None = None  # when the route may change

    def emit(self, event: Event) -> None:
        self.record = apply(self.record, event)
        self.events.append(event)

    def note(self, text: str) -> None:
        """Notes something that a user should know; repeated notes are counted."""
        found = met(Notes(self.record.notes, self.record.note_times), self.tallies, text)
        if found is None:
            return
        text, tally, worth_an_event = found
        self.tallies[kind_of(text)] = tally
        if worth_an_event:
            self.emit(Noted(self.now, text, tally.times))

    def fault(self, reason: str, missing: tuple[str, ...] = (), *, awaits: Awaited | None = None) -> None:
        """Holds the run for a person in its phase; `missing` and `awaits` as in Faulted. A run that awaits
        the same already keeps its first reason."""
        if self.record.fault != reason and (awaits is None or awaits is not self.record.awaits):
            self.emit(Faulted(self.now, reason, missing, awaits))

    @property
    def session(self) -> Session:
        assert self.record.session is not None
        return self.record.session
