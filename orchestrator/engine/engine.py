"""One tick: take what workers brought, load what is due, decide, journal, then act.

Never waits and never decides. Verbs run in workers, and their reports and readings come back in a later tick.
An unexpected exception holds its run, or closes a platform's offers for a while; other runs are not affected.
Knows platforms only through the protocol. Everything in memory can be lost at any line: the ledger and the
platforms together show what must happen next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.clock import Clock
from orchestrator.core.action import Action, Failed, Report, Trouble
from orchestrator.core.decide import conclude
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import Ended, Event, Faulted, TurnedAway
from orchestrator.core.fault import faulted
from orchestrator.core.lifecycle import Phase
from orchestrator.core.needs import missing, regained, store_text
from orchestrator.core.offer import Offer
from orchestrator.core.route import Case
from orchestrator.core.run import CLOSED_SECONDS, RunRecord
from orchestrator.core.schedule import Schedule
from orchestrator.core.session import Observation
from orchestrator.engine.barrier import Barrier
from orchestrator.engine.learning import learn
from orchestrator.engine.looking import Looking
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends, lane
from orchestrator.engine.queue import Queue, Turn, waits
from orchestrator.engine.reach import Reach
from orchestrator.engine.readings import Readings
from orchestrator.engine.reserving import Reserving
from orchestrator.engine.scheduling import Scheduling
from orchestrator.engine.surveying import Surveyed
from orchestrator.engine.tracking import Tracked, to_decide
from orchestrator.engine.workers import Workers
from orchestrator.errors import LedgerConflict, OrchestratorError, Rejected
from orchestrator.ledger import DUE_NOW, Ledger, Proposal
from orchestrator.unforeseen import Unforeseen, raise_again, sentence

IDLE_SECONDS = 1.0  # how soon a user's wish is noticed
CLOCK_SET_BACK_SECONDS = 60.0  # within a tick; then waiting runs are decided again


@dataclass(frozen=True)
class Acted:
    run: str
    report: Report


Brought = Surveyed | Readings | Acted


@dataclass(frozen=True)
class Watchers:
    """Callbacks for what happens.

    `event`: an event was journalled. `reading`: a run's current session was read. `silence`: its platform
    or its store did not answer, with the reason. `unreadable`: this version cannot read a run's record, with
    the reason; called once. `surveyed`: a platform answered with these offers. `schedule`: a sentence about a
    schedule.
    """

    event: Callable[[RunRecord, Event], None] = lambda _record, _event: None
    reading: Callable[[RunRecord, Observation, float], None] = lambda _record, _observation, _now: None
    silence: Callable[[RunRecord, str], None] = lambda _record, _trouble: None
    unreadable: Callable[[str, str], None] = lambda _run, _reason: None
    surveyed: Callable[[Sequence[Offer], float], None] = lambda _offers, _now: None
    schedule: Callable[[str], None] = lambda _text: None


class Engine:
    """The core of the controller, one per database (`fence` is its number there). Not thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        fence: int,
        backends: Backends,
        market: Market,
        workers: Workers[Brought],
        clock: Clock,
        watchers: Watchers | None = None,
        unforeseen: Unforeseen = raise_again,
    ) -> None:
        self._ledger = ledger
        self._fence = fence
        self._backends = backends
        self._market = market
        self._workers = workers
        self._clock = clock
        self._watchers = watchers or Watchers()
        self._unforeseen = unforeseen
        self._unreadable: dict[str, str] = {}  # runs already reported
        self._faults: dict[str, str] = {}  # runs that are to be held at their next decision, and why
        self._ahead: float | None = None  # wall clock less monotonic, at the last tick
        self._expectant = False  # `market.expectant` when it was last read
        self._queue_stirred = True  # offers changed or a slot is free: decide all waiting runs again
        self._due: frozenset[str] = frozenset()  # runs that are due in this tick according to the ledger
        self._waiting: dict[str, RunRecord] = {}  # records without a session, read before
        self._scheduling = Scheduling(
            ledger, fence, backends.folders, self._watchers.schedule, self._unforeseen
        )
        self._reserving = Reserving(ledger, self._unforeseen)
        self._queue = Queue(market, ledger.measurements, self._barrier)
        self._regained = False  # whether runs whose missing config entry is back were released
        self._reach = Reach(backends.platforms, clock.monotonic())
        self._looking = Looking(backends, self._reach, workers, self._unforeseen)
        market.remember(ledger.closed_since(clock.now() - CLOSED_SECONDS))
        self._tracked = {
            record.run: Tracked(record, clock.monotonic(), launch_unknown=True) for record in ledger.live()
        }

    def _regain(self, now: float) -> None:
        """Releases runs whose missing platform or store is back in the config. Retried after a conflict."""
        held = [each.run for each in self._ledger.summaries({Phase.HELD})]
        back = [
            record for record in self._ledger.records(held) if record.missing and not self._lacking(record)
        ]
        proposals = [Proposal(record, (regained(record, now),), DUE_NOW) for record in back]
        answers = self._ledger.append_many(proposals, fence=self._fence) if proposals else []
        self._regained = not any(isinstance(answer, LedgerConflict) for answer in answers)

    def _lacking(self, record: RunRecord) -> tuple[str, ...]:
        found = missing(record, self._backends.platforms, self._backends.stores)
        return found or ((store_text(record.store),) if self._backends.elsewhere(record) else ())

    def tick(self) -> float:
        """One round. Returns the seconds until the next one, unless something wakes it earlier.

        Raises `Fenced` if another controller has taken over.
        """
        now, monotonic = self._clock.now(), self._clock.monotonic()
        self._notice_clock(now - monotonic)
        self._take(now, monotonic)
        for place in self._market.losses.wanted:
            self._market.losses.learn(place, self._ledger.lifetimes(*place))
        if not self._regained:
            self._regain(now)
        stirred = self._scheduling.tick(now, self._tell)
        if self._queue.keep(self._reserving.look(now, monotonic, stirred)):
            self._queue_stirred = True
        due = self._load_due(now)
        self._decide_tracked(now, monotonic)
        self._decide_queue(due, now, monotonic)
        self._looking.survey(self._market.surveys.due(now, monotonic))
        self._looking.observe(self._tracked.values(), monotonic)
        return self._pause(now)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do or to wait for: every run that is not final is held."""
        faulted = self.faulted
        if any(run not in faulted or tracked.busy for run, tracked in self._tracked.items()):
            return False
        return self._regained and not self._ledger.anything_left(besides=faulted)

    @property
    def stays(self) -> str:
        """Why an idle controller stays: a schedule will fire. Empty if none will."""
        return self._scheduling.stays()

    def _tell(self, record: RunRecord, event: Event) -> None:
        with self._barrier(record.run, "telling of"):
            self._watchers.event(record, event)

    @property
    def seen(self) -> tuple[list[RunRecord], tuple[Offer, ...]]:
        """The runs with something on a platform and the offers, as the last tick saw them."""
        return [tracked.record for tracked in self._tracked.values()], self._market.offers()

    @property
    def faulted(self) -> frozenset[str]:
        """The runs that have something on a platform and are held there until a person acts."""
        records, elsewhere = (each.record for each in self._tracked.values()), self._backends.elsewhere
        return frozenset(r.run for r in records if r.stands or (r.phase.final and elsewhere(r)))

    def scene(self) -> tuple[Case, tuple[RunRecord, ...], tuple[RunRecord, ...]]:
        """For forecasts: the offers and rules, the runs with a session, and those that wait."""
        running = tuple(t.record for t in self._tracked.values() if t.record.session is not None)
        return self._market.case(()), running, tuple(self._waiting.values())

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """For forecasts: every schedule, as it was read within the last minute."""
        return self._reserving.schedules

    def _notice_clock(self, ahead: float) -> None:
        """After a clock is set back, dates set before may be days away: decide all waiting runs again."""
        if self._ahead is not None and ahead < self._ahead - CLOCK_SET_BACK_SECONDS:
            self._queue_stirred = True
            self._scheduling.stir_all()
        self._ahead = ahead

    # --- What nobody foresaw ----------------------------------------------------------------------------

    def _barrier(self, run: str, doing: str) -> Barrier:
        """An unexpected exception affects only this run, which is held at its next decision. The ledger's own
        errors concern every run and pass through."""
        return Barrier(self._hold, run, doing)

    def _hold(self, run: str, doing: str, error: Exception) -> None:
        self._faults[run] = self._met(f"{doing} {run}", error)

    def _met(self, doing: str, error: Exception) -> str:
        self._unforeseen(doing, error)
        return sentence(doing, error)

    def _decided(self, record: RunRecord, inputs: Inputs) -> tuple[RunRecord, Inputs, Decision]:
        """The decision, with its complete inputs."""
        lacking = self._lacking(record)
        met = "" if lacking else self._faults.pop(record.run, "")
        if lacking or (met and not record.phase.final):  # a finished run must still be cleaned up
            inputs = replace(inputs, lacking=lacking, elsewhere=self._backends.elsewhere(record), met=met)
        try:
            return record, inputs, conclude(record, inputs)
        except Exception as error:  # noqa: BLE001 the barrier: told, and the run is held
            met = self._met(f"deciding on {record.run}", error)
            return record, replace(inputs, met=met), faulted(record, met, inputs.now)

    # --- What came back ---------------------------------------------------------------------------------

    def _take(self, now: float, monotonic: float) -> None:
        """Does not use the ledger: results come only once, and must not be lost if it does not answer."""
        for brought in self._workers.finished():
            match brought:
                case Surveyed():
                    self._reach.surveyed(brought.platform, brought.offers)
                    if self._market.take(brought, now):
                        self._queue_stirred = True
                    self._watchers.surveyed(brought.offers, now)
                case Readings():
                    self._take_readings(brought, now, monotonic)
                case Acted(run, report):
                    tracked = self._tracked.get(run)
                    if tracked is not None:
                        tracked.finished(report)

    def _take_readings(self, readings: Readings, now: float, monotonic: float) -> None:
        self._looking.observed(readings.platform)
        self._read(readings.observations, now, monotonic)
        self._tell_silence(readings)
        if readings.broken:
            self._market.surveys.close(Surveyed(readings.platform, trouble=readings.trouble))
        for tracked in self._tracked.values() if readings.unread else ():
            for name in tracked.observed().keys() & readings.unread.keys():
                self._faults[tracked.record.run] = readings.unread[name]

    def _read(self, observations: Mapping[str, Observation], now: float, monotonic: float) -> None:
        owners = {name: tracked for tracked in self._tracked.values() for name in tracked.observed()}
        for name, observation in observations.items():
            tracked = owners.get(name)
            if tracked is None:
                continue
            with self._barrier(tracked.record.run, "reading"):
                tracked.see(name, replace(observation, log=""), monotonic)
                session = tracked.record.session
                if session is not None and session.name == name:
                    self._watchers.reading(tracked.record, observation, now)

    def _tell_silence(self, readings: Readings) -> None:
        if not readings.trouble and not readings.unheard:
            return
        for tracked in self._tracked.values():
            session = tracked.record.session
            if session is not None and session.order.platform == readings.platform:
                trouble = readings.trouble or readings.unheard.get(session.name)
                if trouble:
                    self._watchers.silence(tracked.record, trouble)

    # --- Deciding ---------------------------------------------------------------------------------------

    def _load_due(self, now: float) -> list[RunRecord]:
        """Runs that are due in the ledger: newly submitted, with a user's wish, or at their due time."""
        known = {run: record.version for run, record in self._waiting.items()}
        due = []
        for record in self._ledger.due(now, known=known):
            fresh = self._waiting[record] if isinstance(record, str) else record
            due.append(fresh)
            if fresh.run in self._tracked:
                self._tracked[fresh.run].refresh(fresh, self._clock.monotonic())
        self._due = frozenset(record.run for record in due)
        self._tell_unreadable()
        return due

    def _tell_unreadable(self) -> None:
        """Reports runs whose records cannot be read. They and everything they own are left alone."""
        found = dict(self._ledger.unreadable)
        for run, reason in found.items():
            if self._unreadable.get(run) != reason:
                self._watchers.unreadable(run, reason)
        self._unreadable = found

    def _decide_tracked(self, now: float, monotonic: float) -> None:
        decisions = []
        for tracked in to_decide(self._tracked.values(), monotonic, self._faults):
            if self._reach.is_unknown(tracked.record, monotonic):
                continue
            inputs = tracked.inputs(now, monotonic, self._reach.beyond(tracked.record))
            decisions.append(self._decided(tracked.record, inputs))
        self._commit(decisions)

    def _decide_queue(self, due: list[RunRecord], now: float, monotonic: float) -> None:
        """Decides runs without a session, in order of submission. Waiting ones only if offers changed."""
        self._market.begin((tracked.record for tracked in self._tracked.values()), now)
        if self._expectant and not self._market.expectant:
            self._queue_stirred = True
        self._expectant = self._market.expectant
        if self._queue_stirred and self._ledger.anything_queued() and self._market.is_worth_asking():
            self._ledger.wake_queued()
            self._queue.stir(self._load_waiting(now))
            self._queue_stirred = False
        self._decide_page([record for record in due if not self._has_session(record)], now, monotonic)

    def _load_waiting(self, now: float) -> list[str]:
        """All runs that wait for a place to run. Those whose own pause is not over get its date back."""
        known = {run: record.version for run, record in self._waiting.items()}
        names, pausing = [], []
        for found in self._ledger.waiting(known):
            record = self._waiting[found] if isinstance(found, str) else found
            if record is found:
                self._keep(record)
            if waits(record, now):
                names.append(record.run)
            elif record.until is not None and not record.fault:
                pausing.append((record, record.until))
        self._ledger.schedule(pausing, fence=self._fence)
        return names

    def _has_session(self, record: RunRecord) -> bool:
        """Whether the run has a session, or had one when this tick began and has just been decided."""
        tracked = self._tracked.get(record.run)
        return (record if tracked is None else tracked.record).session is not None

    def _decide_page(self, page: list[RunRecord], now: float, monotonic: float) -> None:
        decisions, parked, due = [], [], {}
        for found in page:
            tracked = self._tracked.get(found.run)
            record = tracked.record if tracked else self._waiting.get(found.run, found)
            record = max(record, found, key=lambda each: each.version)  # this tick may have decided on it
            if self._reach.is_unknown(record, monotonic):
                continue
            wants_route = record.phase is Phase.QUEUED and record.wish is None
            if record.fault or (wants_route and self._market.full):
                parked.append(record)
                if tracked is None:
                    self._waiting[record.run] = record
            elif wants_route:
                due[record.run] = record
            else:
                decisions.append(self._decided_alone(record, Inputs(now, monotonic)))
        if due or self._queue.stirred:
            known = {run: tracked.record for run, tracked in self._tracked.items()}
            for turn in self._queue.turns(due, {**self._waiting, **known}, now):
                decisions.append(self._routed(turn, Inputs(now, monotonic)))
        self._ledger.schedule([(record, None) for record in parked], fence=self._fence)
        self._commit(decisions)

    def _routed(self, turn: Turn, inputs: Inputs) -> tuple[RunRecord, Inputs, Decision]:
        """The decision on a run that waits for a place to run, in the place that the queue leaves it."""
        route = case = None
        with self._barrier(turn.record.run, "finding a place for"):
            measurements = self._ledger.measurements(turn.record.job.name)
            case = self._market.case(measurements, turn.openings, turn.others)
            route = self._market.judged(turn.record, case)
        return self._decided_alone(
            turn.record, inputs if route is None else replace(inputs, route=route, case=case)
        )

    def _decided_alone(self, record: RunRecord, inputs: Inputs) -> tuple[RunRecord, Inputs, Decision]:
        tracked = self._tracked.get(record.run)
        if tracked is not None:
            inputs = replace(
                tracked.inputs(inputs.now, inputs.monotonic), route=inputs.route, case=inputs.case
            )
        decided = self._decided(record, inputs)
        if (session := decided[2].record.session) is not None:
            self._market.reserve(session)
        return decided

    # --- Journal first, then act --------------------------------------------------------------------------

    def _commit(self, decisions: list[tuple[RunRecord, Inputs, Decision]]) -> None:
        """Journals the decisions of several runs in one transaction, then starts what they want."""
        changed = [(r, i, d) for r, i, d in decisions if d.events]
        for (record, inputs, _), decision in zip(changed, self._append(changed), strict=True):
            if decision is None:  # a user's wish came first
                self._keep_as_it_is(record.run)
            else:
                self._journalled(record, inputs, decision)
        unchanged = [(r, i, d) for r, i, d in decisions if not d.events]
        looked_at = [(r, d.due_at) for r, i, d in unchanged if r.run in self._due or i.route is not None]
        self._ledger.schedule(looked_at, fence=self._fence)
        for record, inputs, decision in unchanged:
            with self._barrier(record.run, "carrying on"):
                self._settle(record, inputs, decision)

    def _append(self, decisions: list[tuple[RunRecord, Inputs, Decision]]) -> list[Decision | None]:
        """Journals all decisions. If one of them cannot be written, journals each alone and holds the run
        that fails. A result is None if somebody else appended to the run first."""
        proposals = [Proposal(r, d.events, d.due_at, inputs=i) for r, i, d in decisions]
        try:
            answers = self._ledger.append_many(proposals, fence=self._fence)
        except Rejected as error:
            refused: Exception = error
        except OrchestratorError:
            raise
        except Exception as error:  # noqa: BLE001 the barrier: told, and the run is held
            refused = error
        else:
            taken = (None if isinstance(answer, LedgerConflict) else d
                     for (_, _, d), answer in zip(decisions, answers, strict=True))  # fmt: skip
            return list(taken)
        if len(decisions) > 1:
            return [answer for each in decisions for answer in self._append([each])]
        [(record, inputs, decision)] = decisions
        reason = self._met(f"journalling what was decided on {record.run}", refused)
        if any(isinstance(event, Faulted) for event in decision.events):
            held_in_memory = Decision(replace(record, fault=reason), (), ())  # it cannot be written either
            return [held_in_memory]
        held = faulted(record, reason, inputs.now)
        return self._append([(record, Inputs(inputs.now, met=reason), held)]) if held.events else [held]

    def _journalled(self, before: RunRecord, inputs: Inputs, decision: Decision) -> None:
        self._scheduling.stir(decision.record, decision.events)
        with self._barrier(before.run, "telling of"):
            for event in decision.events:
                self._watchers.event(decision.record, event)
                if isinstance(event, Ended):
                    learn(self._ledger, self._market, before, event, inputs)
                if isinstance(event, TurnedAway) and not event.cooldown.refusals:
                    self._market.refusals.add(event.cooldown)
        with self._barrier(before.run, "carrying on"):  # even if a watcher failed: it is journalled
            self._market.remember(decision.record.closed)
            self._settle(decision.record, inputs, decision)

    def _settle(self, record: RunRecord, inputs: Inputs, decision: Decision) -> None:
        before = self._tracked.get(record.run)
        taken = _slots_taken(before.record) if before else 0
        tracked = self._keep(record)
        if _slots_taken(record) < taken:
            self._queue_stirred = True
        if tracked is not None:
            tracked.decided(decision, inputs)
            if record.stands:
                return
            tracked.want(decision.actions)
            for action in tracked.startable(inputs.monotonic):
                self._start(record, action)
        else:
            assert not decision.actions, "a run with actions has something on a platform"

    def _keep(self, record: RunRecord) -> Tracked | None:
        """Stores a record where it belongs: tracked while anything of it is on a platform or under way."""
        tracked = self._tracked.get(record.run)
        busy = tracked is not None and tracked.busy
        if record.session is None and not record.strays and not busy:
            self._tracked.pop(record.run, None)
            self._waiting.pop(record.run, None)
            if record.phase is Phase.QUEUED:
                self._waiting[record.run] = record
            return None
        self._waiting.pop(record.run, None)
        if tracked is None:
            tracked = self._tracked[record.run] = Tracked(record, self._clock.monotonic())
        else:
            tracked.refresh(record, self._clock.monotonic())
        return tracked

    def _keep_as_it_is(self, run: str) -> None:
        """Somebody else appended to the run first: reload it, and decide again. A record that this version
        cannot read any more is left alone."""
        for record in self._ledger.records([run]):
            self._keep(record)
            return
        self._tracked.pop(run, None)
        self._waiting.pop(run, None)

    # --- Acting and looking -------------------------------------------------------------------------------

    def _start(self, record: RunRecord, action: Action) -> None:
        backends, run = self._backends, record.run
        self._workers.start(
            lane(action),
            lambda: Acted(run, self._reach.perform(action, backends, record)),
            lambda reason: Acted(run, Failed(action, Trouble.TRANSIENT, reason)),
        )

    def _pause(self, now: float) -> float:
        next_due = self._ledger.next_due()
        until_due = IDLE_SECONDS if next_due is None else next_due - now
        return max(0.0, min(IDLE_SECONDS, until_due))


def _slots_taken(record: RunRecord) -> int:
    return record.holds_slot + sum(not stray.ended for stray in record.strays)
