"""The ledger against a dictionary: after any operations in any order, both give the same answers."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from orchestrator.core.event import Event, Wished
from orchestrator.core.lifecycle import FINAL, Phase, Wish
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.run import submit as submitted
from orchestrator.errors import Fenced, LedgerConflict
from orchestrator.ledger import Ledger, Proposal, Takeover
from tests.core.runs import fold
from tests.postgresql import Server
from tests.walks import NOW, next_event, submission

due_times = st.none() | st.sampled_from([0.0, NOW - 1, NOW, NOW + 1, NOW + 60])
seeds = st.integers(0, 1 << 32)


class LedgerMachine(RuleBasedStateMachine):
    """`records`, `due`, `events`: what the ledger should hold.

    `read` holds records as they were once read. They may be out of date when they are appended to.
    """

    ledger_class: type[Ledger] = Ledger
    read = Bundle("read")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = self.ledger_class.open(self.new_url())
        self.records: dict[str, RunRecord] = {}
        self.due: dict[str, float | None] = {}
        self.events: dict[str, list[Event]] = {}
        self.fence = 0
        self.takeover: Takeover | None = None

    def new_url(self) -> str:
        raise NotImplementedError

    def teardown(self) -> None:
        self.ledger.close()

    def _keep(self, record: RunRecord, due_at: float | None, *events: Event) -> None:
        self.records[record.run] = record
        self.due[record.run] = due_at
        self.events.setdefault(record.run, []).extend(events)

    # --- Changes ----------------------------------------------------------------------------------------

    @rule(target=read, number=st.integers(0, 5), at=st.sampled_from([NOW, NOW - 3600.0]), due_at=due_times)
    def submit(self, number: int, at: float, due_at: float | None) -> RunRecord:
        event = submission(f"tiny-{number}", at=at)
        try:
            record = self.ledger.submit(event, due_at=due_at)
        except LedgerConflict:
            assert event.run in self.records
            return self.records[event.run]
        assert event.run not in self.records
        assert record == submitted(event)
        self._keep(record, due_at, event)
        return record

    @rule(target=read, stale=consumes(read))
    def look_again(self, stale: RunRecord) -> RunRecord:
        return self.ledger.record(stale.run)

    @rule(target=read, record=read, seed=seeds, count=st.integers(1, 3), due_at=due_times)
    def append(self, record: RunRecord, seed: int, count: int, due_at: float | None) -> RunRecord:
        proposal = _proposal(record, seed, count, due_at)
        try:
            after = self.ledger.append(record, proposal.events, due_at=due_at, fence=self.fence)
        except LedgerConflict:
            assert self.records[record.run].version > record.version
            return self.records[record.run]
        assert record == self.records[record.run]
        self._keep(after, due_at, *proposal.events)
        return after

    @rule(records=st.lists(read, max_size=4), seed=seeds, due_at=due_times)
    def append_many(self, records: list[RunRecord], seed: int, due_at: float | None) -> None:
        distinct = {record.run: record for record in records}.values()
        proposals = [_proposal(record, seed, 1, due_at) for record in distinct]
        answers = self.ledger.append_many(proposals, fence=self.fence)
        for proposal, answer in zip(proposals, answers, strict=True):
            current = proposal.record == self.records[proposal.record.run]
            assert current == isinstance(answer, RunRecord)
            if isinstance(answer, RunRecord):
                self._keep(answer, due_at, *proposal.events)

    @rule(record=read, wish=st.sampled_from(Wish))
    def wish(self, record: RunRecord, wish: Wish) -> None:
        event = Wished(NOW, wish)
        before = self.records[record.run]
        revived = before.phase is Phase.FAILED and wish is Wish.RELEASE
        over = before.phase.final and not before.strays and not revived
        after = self.ledger.wish(record.run, event)
        assert after == apply(before, event)
        self._keep(after, self.due[record.run] if over else 0.0, event)

    @rule(records=st.lists(read, max_size=3), due_at=due_times)
    def schedule(self, records: list[RunRecord], due_at: float | None) -> None:
        self.ledger.schedule([(record, due_at) for record in records], fence=self.fence)
        for record in records:
            if record == self.records[record.run]:
                self.due[record.run] = due_at

    @rule()
    def wake_queued(self) -> None:
        self.ledger.wake_queued()
        for run, record in self.records.items():
            due = self.due[run]  # may be later than the record's time: decide moves it without an event
            if record.standing is Phase.QUEUED and record.until is not None and due is not None and due > 0.0:
                self.due[run] = None

    @rule(record=read, seed=seeds)
    def another_controller(self, record: RunRecord, seed: int) -> None:
        if self.takeover is not None:
            self.takeover.release()
        self.takeover = self.ledger.take_over("machine", now=NOW)
        assert self.takeover.fence == self.fence + 1
        try:
            self.ledger.append_many([_proposal(record, seed, 1, None)], fence=self.fence)
            raise AssertionError("the earlier controller was let through")
        except Fenced:
            self.fence = self.takeover.fence

    # --- Answers ----------------------------------------------------------------------------------------

    @invariant()
    def records_are_the_fold_of_their_history(self) -> None:
        for run, record in self.records.items():
            history = self.ledger.history(run)
            assert [stored.event for stored in history] == self.events[run]
            assert self.ledger.record(run) == record == fold(self.events[run])

    @invariant()
    def due_is_what_was_asked_for(self) -> None:
        expected = sorted((at, run) for run, at in self.due.items() if at is not None)
        past = [run for at, run in expected if at <= NOW]
        assert self.ledger.due(NOW) == tuple(self.records[run] for run in past)
        assert self.ledger.due(NOW, known={r: i.version for r, i in self.records.items()}) == tuple(past)
        assert self.ledger.next_due() == (expected[0][0] if expected else None)

    @invariant()
    def listings_agree(self) -> None:
        records = sorted(self.records.values(), key=lambda record: (record.submitted_at, record.run))
        waiting = [r for r in records if r.standing is Phase.QUEUED and self.due[r.run] is None]
        assert list(self.ledger.waiting({})) == waiting
        assert {r.run for r in self.ledger.live()} == {r.run for r in records if r.session or r.strays}
        assert [s.run for s in self.ledger.summaries()] == [r.run for r in reversed(records)]
        resting = all(r.phase in FINAL or r.standing is Phase.HELD for r in records)
        quiet = resting and not any(r.strays or r.session for r in records)
        quiet = quiet and all(at is None for at in self.due.values())
        assert self.ledger.anything_left() is not quiet


def _proposal(record: RunRecord, seed: int, count: int, due_at: float | None) -> Proposal:
    random = Random(seed)
    after, events = record, []
    for _ in range(count):
        events.append(next_event(after, random))
        after = apply(after, events[-1])
    return Proposal(record, events, due_at)


LIMITS = settings(
    max_examples=10, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_sqlite(tmp_path: Path) -> None:
    class Machine(LedgerMachine):
        def new_url(self) -> str:
            return f"sqlite:///{tempfile.mkdtemp(dir=tmp_path)}/ledger.sqlite"

    run_state_machine_as_test(Machine, settings=LIMITS)


def test_postgresql(postgresql: Server) -> None:
    class Machine(LedgerMachine):
        def new_url(self) -> str:
            return postgresql.new_schema(f"machine_{uuid.uuid4().hex[:12]}")

    run_state_machine_as_test(Machine, settings=LIMITS)


def test_the_machine_notices_a_ledger_that_forgets(tmp_path: Path) -> None:
    """A planted bug: a wish that is acknowledged but never stored."""

    class Forgetful(Ledger):
        def wish(self, run: str, event: Wished) -> RunRecord:
            return apply(self.record(run), event)

    class Machine(LedgerMachine):
        ledger_class = Forgetful

        def new_url(self) -> str:
            return f"sqlite:///{tempfile.mkdtemp(dir=tmp_path)}/ledger.sqlite"

    unshrunk = settings(LIMITS, max_examples=50, phases=[Stage.generate], database=None)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=unshrunk)
