"""What the engine keeps in memory about one run with a session, or remains of one, on a platform.

Readings, reports not yet decided on, actions under way. All of it is lost with the controller and found
again by looking. Decides nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable
from dataclasses import replace

from orchestrator.core.action import Action, Collect, Discard, Done, Launch, Prepare, Report, Stop
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.lifecycle import Phase
from orchestrator.core.notes import Tallies
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Observation, StopReply
from orchestrator.core.watch import Watch

DECIDE_SECONDS = 1.0  # a tracked run is decided at least this often: retries, repeated stops
AGAIN_MAX = 500  # runs without news that are decided again in one tick; more take turns
_OBSERVED = frozenset({Phase.LAUNCHING, Phase.RUNNING, Phase.STOPPING})


class Tracked:
    """One run in the engine's memory. `launch_unknown`: its record has an intended launch, but this
    controller does not have the answer."""

    def __init__(self, record: RunRecord, monotonic: float, launch_unknown: bool = False) -> None:
        self.record = record
        self.watches: dict[str, Watch] = {}
        self.reports: list[Report] = []
        self._launch_unknown = launch_unknown
        self._tallies: Tallies = {}
        self._since = monotonic
        self._decided_at = monotonic - DECIDE_SECONDS
        self._touched = True
        self._waiting: list[Action] = []
        self._under_way: list[Action] = []
        self._looks: dict[str, tuple[str, float]] = {}
        self._looks_of: RunRecord | None = None

    # --- Deciding ---------------------------------------------------------------------------------------

    @property
    def fresh(self) -> bool:
        """Whether there is news to decide on. A run that stands waits for a person; a wish clears the
        fault."""
        return self._touched and not self.record.stands

    def undecided_seconds(self, monotonic: float) -> float:
        """How long ago it was decided; 0 if it need not be decided again."""
        return 0.0 if self.record.stands else monotonic - self._decided_at

    def inputs(self, now: float, monotonic: float, beyond: str = "") -> Inputs:
        session = self.record.session
        return Inputs(
            now=now,
            monotonic=monotonic,
            reports=tuple(self.reports),
            watch=self.watches.get(session.name, Watch(self._since)) if session else None,
            strays={name: self.watches[name] for name in self._strays() if name in self.watches},
            launch_unknown=self._launch_unknown,
            tallies=self._tallies,
            beyond=beyond,
        )

    def _strays(self) -> list[str]:
        return [stray.session for stray in self.record.strays]

    def decided(self, decision: Decision, inputs: Inputs) -> None:
        """A decision made on these inputs was journalled, or had nothing to journal."""
        record = self.record = decision.record
        self._tallies = decision.tallies
        self.reports = self.reports[len(inputs.reports) :]
        # A fault was decided without the reports, which may have contained the launch's answer.
        self._launch_unknown = record.stands and record.phase is Phase.LAUNCHING
        self._decided_at = inputs.monotonic
        self._touched = bool(self.reports)
        current = record.session.name if record.session else None
        alive = {current, *self._strays()}
        self._waiting = [a for a in self._waiting if not record.stands and _wanted_still(a, current, alive)]
        self.watches = {name: watch for name, watch in self.watches.items() if name in alive}

    def refresh(self, record: RunRecord, monotonic: float) -> None:
        """The run's record has changed: decide again, with the same reports. Silence counts from a session's
        launch. While the run waited for a person, nobody read its sessions, so that silence means nothing."""
        if self.record.fault and not record.fault:
            self.watches, self._since = {}, monotonic
        elif _launched(record) != _launched(self.record):
            self._since = monotonic
        self.record = record
        self._touched = True

    # --- Readings ---------------------------------------------------------------------------------------

    def observed(self) -> dict[str, tuple[str, float]]:
        """For each session to observe: its platform and its poll interval in seconds. Worked out once for
        each record, because every tick asks every run."""
        if self._looks_of is not self.record:
            self._looks, self._looks_of = self._observed(), self.record
        return self._looks

    def _observed(self) -> dict[str, tuple[str, float]]:
        session = self.record.session
        if self.record.stands:
            return {}
        looks = {s.session: (s.platform, s.poll_seconds) for s in self.record.strays if not s.ended}
        if session is not None and session.launched_at is not None and self.record.phase in _OBSERVED:
            looks[session.name] = (session.order.platform, session.traits.poll_seconds)
        return looks

    def see(self, name: str, observation: Observation, monotonic: float) -> None:
        _, poll_seconds = self.observed()[name]
        watch = self.watches.get(name) or Watch(monotonic)
        self.watches[name] = watch.see(observation, monotonic, poll_seconds)
        self._touched = True

    # --- Actions ----------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether actions are under way or waiting."""
        return bool(self._under_way or self._waiting)

    def want(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if action not in self._waiting and action not in self._under_way:
                self._waiting.append(action)

    def startable(self, monotonic: float) -> list[Action]:
        """The actions to start now, in order, except those that must wait for one under way."""
        started: list[Action] = []
        for action in list(self._waiting):
            if not any(_waits_for(action, other) for other in self._under_way):
                self._waiting.remove(action)
                self._under_way.append(action)
                started.append(action)
                self._mark(action, monotonic)
        return started

    def _mark(self, action: Action, monotonic: float) -> None:
        name = action.session
        watch = self.watches.get(name) or Watch(monotonic)
        if isinstance(action, Stop):
            self.watches[name] = replace(watch, stop_asked_at=monotonic)
        elif isinstance(action, Discard):
            self.watches[name] = replace(watch, discard_asked_at=monotonic)
        elif isinstance(action, Collect):
            status = watch.observation.status if watch.observation else None
            self.watches[name] = replace(
                watch, collected_at=monotonic, collected=status.checkpoint if status else None
            )

    def finished(self, report: Report) -> None:
        """An action came back: decide on it."""
        action = report.action
        self._under_way.remove(action)
        if isinstance(action, Collect):  # the record has what it knew; do not journal it again
            report = replace(report, action=replace(action, known=frozenset(), kept=frozenset()))
        self.reports.append(report)
        self._touched = True
        watch = self.watches.get(action.session)
        if watch is None or not isinstance(report, Done):
            return
        if report.reply is StopReply.IMPOSSIBLE:
            self.watches[action.session] = replace(watch, stop_impossible=True)
        if report.more:
            self.watches[action.session] = replace(watch, collected_at=None)


def to_decide(several: Iterable[Tracked], monotonic: float, faults: Container[str]) -> list[Tracked]:
    """Those with news or a fault, and the longest undecided of the others, so that a tick's work has a
    limit."""
    found, others = [], []
    for each in several:
        if each.fresh or each.record.run in faults:
            found.append(each)
        elif each.undecided_seconds(monotonic) >= DECIDE_SECONDS:
            others.append(each)
    if len(others) > AGAIN_MAX:
        others = heapq.nlargest(AGAIN_MAX, others, key=lambda each: each.undecided_seconds(monotonic))
    return found + others


def _launched(record: RunRecord) -> str | None:
    """The session that was launched and not closed yet, if any."""
    session = record.session
    return None if session is None or session.launched_at is None else session.name


def _waits_for(action: Action, other: Action) -> bool:
    """Whether an action must not begin before one under way has come back.

    A stop waits only for a prepare, a launch or another stop: before a launch is done, it would come too
    early. Stopping or discarding one session does not delay another session.
    """
    if isinstance(action, Stop | Discard) or isinstance(other, Stop | Discard):
        if action.session != other.session:
            return False
        return (
            isinstance(other, Prepare | Launch | Stop)
            if isinstance(action, Stop)
            else not isinstance(other, Stop)
        )
    return True


def _wanted_still(action: Action, current: str | None, alive: set[str | None]) -> bool:
    match action:
        case Prepare() | Launch():
            return action.session == current
        case Collect():
            return False  # more may be known by now: decide asks again
        case Stop() | Discard():
            return action.session in alive
        case _:
            return True
