"""What the ledger keeps and answers, the same on SQLite and PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest

from orchestrator.core import wire
from orchestrator.core.event import (
    Cancelled,
    Completed,
    Deferred,
    Ended,
    Event,
    Held,
    Noted,
    Prepared,
    Wished,
)
from orchestrator.core.job import NoticeKind, Precision
from orchestrator.core.lifecycle import IllegalTransition, Phase, Wish
from orchestrator.core.notice import Notice, Outgoing
from orchestrator.core.offer import Route
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.core.speed import Measurement
from orchestrator.errors import Fenced, InputError, LedgerConflict
from orchestrator.ledger import Ledger, Proposal
from tests.core import runs
from tests.core.runs import fold
from tests.walks import NASTY, NOW, assigned, next_event, submission

LATER = NOW + 3600.0


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url) as ledger:
        yield ledger


def submit(ledger: Ledger, run: str, *, at: float = NOW, due_at: float | None = 0.0) -> RunRecord:
    return ledger.submit(submission(run, name=run[:-2], at=at), due_at=due_at)


def names(found: tuple[RunRecord | str, ...]) -> list[str]:
    return [item if isinstance(item, str) else item.run for item in found]


# --- Events and the record -------------------------------------------------------------------------------


def test_a_submitted_run_is_found_again(ledger: Ledger) -> None:
    submitted = submit(ledger, "tiny-1")
    assert ledger.record("tiny-1") == submitted
    assert [stored.event for stored in ledger.history("tiny-1")] == [submission("tiny-1")]


def test_a_name_is_taken_once(ledger: Ledger) -> None:
    submit(ledger, "tiny-1")
    with pytest.raises(LedgerConflict):
        submit(ledger, "tiny-1", at=LATER)
    assert ledger.record("tiny-1").submitted_at == NOW


def test_what_was_appended_is_read_back_by_another(ledger: Ledger, ledger_url: str) -> None:
    random = Random(7)
    record = submit(ledger, "tiny-1")
    for _ in range(200):
        record = ledger.append(record, [next_event(record, random)], due_at=None)
        if record.phase.final:
            break
    with Ledger.open(ledger_url) as other:
        assert other.record("tiny-1") == record
        history = other.history("tiny-1")
    assert [stored.seq for stored in history] == list(range(1, record.version + 1))
    assert fold(stored.event for stored in history) == record


def test_text_that_databases_refuse_is_kept_as_it_is(ledger: Ledger) -> None:
    record = ledger.append(submit(ledger, "tiny-1"), [Deferred(NOW, None, NASTY)], due_at=None)
    assert ledger.record("tiny-1") == record
    assert record.reason == NASTY
    [summary] = ledger.summaries()
    assert "träge" in summary.reason


def test_records_by_name_and_the_size_of_it_all(ledger: Ledger) -> None:
    before = ledger.size()
    assert before > 0
    names = [f"tiny-{n}" for n in range(600)]
    for name in names[:3]:
        submit(ledger, name)
    found = [record.run for record in ledger.records(["tiny-2", *names])]
    assert found == ["tiny-2", "tiny-0", "tiny-1", "tiny-2"]
    assert ledger.size() >= before


def test_the_size_counts_what_waits_to_be_sent(ledger: Ledger) -> None:
    before = ledger.size()
    told = [Notice(NoticeKind.HELD, NOW, "a" * 1000) for _ in range(300)]
    ledger.notifications.post([Outgoing(f"{n:032x}", "phone", each) for n, each in enumerate(told)])
    assert ledger.size() > before + 100_000


def test_history_goes_on_where_a_viewer_left_off(ledger: Ledger) -> None:
    record = submit(ledger, "tiny-1")
    ledger.append(record, [Noted(NOW, "one"), Noted(NOW, "two")], due_at=None)
    assert [stored.event for stored in ledger.history("tiny-1", after=2)] == [Noted(NOW, "two")]
    assert ledger.history("tiny-1", after=3) == ()


def test_inputs_explain_the_first_event_of_a_decision_and_can_be_replayed(ledger: Ledger) -> None:
    inputs = runs.routed()
    ledger.append(submit(ledger, "tiny-1"), [Noted(NOW, "a"), Noted(NOW, "b")], due_at=None, inputs=inputs)
    _, first, second = ledger.history("tiny-1")
    assert wire.decode(Route, first.inputs) == inputs
    assert second.inputs is None


def test_inputs_that_are_not_finite_stop_no_run(ledger: Ledger) -> None:
    ledger.append(submit(ledger, "tiny-1"), [Noted(NOW, "a")], due_at=None, inputs={"finish": math.inf})
    assert ledger.history("tiny-1")[-1].inputs == {"finish": math.inf}


def test_of_two_writers_the_second_is_told(ledger: Ledger, ledger_url: str) -> None:
    record = submit(ledger, "tiny-1")
    with Ledger.open(ledger_url) as other:
        first = other.append(record, [Noted(NOW, "first")], due_at=None)
        with pytest.raises(LedgerConflict, match="tiny-1 is at version 2; this was decided at version 1"):
            ledger.append(record, [Noted(NOW, "second")], due_at=LATER)
    assert ledger.record("tiny-1") == first
    assert ledger.next_due() is None


def test_an_illegal_event_changes_nothing(ledger: Ledger) -> None:
    record = submit(ledger, "tiny-1")
    with pytest.raises(IllegalTransition):
        ledger.append(record, [Noted(NOW, "fine"), Completed(NOW)], due_at=None)
    assert ledger.record("tiny-1") == record


def test_a_conflict_of_one_run_stops_no_other(ledger: Ledger) -> None:
    first, second = submit(ledger, "tiny-1"), submit(ledger, "tiny-2")
    ledger.wish("tiny-1", Wished(NOW, Wish.HOLD))
    unknown = fold([submission("tiny-9")])
    proposals = [Proposal(r, [Noted(NOW, "tick")], None) for r in (first, second, unknown)]
    conflict, taken, missing = ledger.append_many(proposals)
    assert isinstance(conflict, LedgerConflict)
    assert isinstance(missing, LedgerConflict)
    assert taken == ledger.record("tiny-2")
    assert ledger.record("tiny-2").notes == ("tick",)
    assert ledger.record("tiny-1").notes == ()
    with pytest.raises(InputError, match="tiny-9"):
        ledger.record("tiny-9")


def test_a_tick_of_many_runs_is_one_append(ledger: Ledger) -> None:
    records = [submit(ledger, f"tiny-{number:04d}", due_at=None) for number in range(600)]
    answers = ledger.append_many([Proposal(r, [Noted(NOW, r.run)], LATER) for r in records])
    assert [a.notes for a in answers if isinstance(a, RunRecord)] == [(r.run,) for r in records]
    assert len(ledger.due(LATER)) == 600


# --- Wishes ----------------------------------------------------------------------------------------------


def test_a_wish_makes_its_run_due_whatever_a_controller_decided_meanwhile(ledger: Ledger) -> None:
    record = submit(ledger, "tiny-1")
    wished = ledger.wish("tiny-1", Wished(LATER, Wish.CANCEL, discard=True))
    assert wished.wish is Wish.CANCEL
    assert ledger.record("tiny-1") == wished
    ledger.schedule([(record, LATER)])  # decided before the wish was recorded
    assert names(ledger.due(NOW)) == ["tiny-1"]


def test_a_wish_for_a_run_that_is_over_stirs_nothing(ledger: Ledger) -> None:
    record = ledger.append(submit(ledger, "tiny-1"), [Cancelled(NOW)], due_at=None)
    ledger.wish(record.run, Wished(NOW, Wish.HOLD))
    assert ledger.due(LATER) == ()
    assert not ledger.anything_left()


def test_a_wish_for_no_run_says_so(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="no run called 'nobody'"):
        ledger.wish("nobody", Wished(NOW, Wish.HOLD))


# --- Fencing ---------------------------------------------------------------------------------------------


def test_a_controller_that_was_followed_by_another_writes_nothing_more(ledger: Ledger) -> None:
    record = submit(ledger, "tiny-1")
    with ledger.take_over("first", now=NOW) as first:
        record = ledger.append(record, [Noted(NOW, "mine")], due_at=None, fence=first.fence)
    with ledger.take_over("second", now=NOW) as second:
        with pytest.raises(Fenced):
            ledger.append(record, [Noted(NOW, "late")], due_at=None, fence=first.fence)
        with pytest.raises(Fenced):
            ledger.schedule([(record, LATER)], fence=first.fence)
        assert ledger.record("tiny-1") == record
        assert ledger.next_due() is None
        assert ledger.append(record, [Noted(NOW, "ok")], due_at=None, fence=second.fence).notes[-1] == "ok"


# --- What is due -----------------------------------------------------------------------------------------


def test_due_runs_come_in_the_order_of_their_time(ledger: Ledger) -> None:
    for run, due_at in (("c-1", NOW), ("a-1", NOW - 5), ("b-1", LATER), ("d-1", None)):
        submit(ledger, run, due_at=due_at)
    assert names(ledger.due(NOW)) == ["a-1", "c-1"]
    assert names(ledger.due(NOW, limit=1)) == ["a-1"]
    assert ledger.next_due() == NOW - 5


def test_a_run_the_caller_knows_is_given_by_name(ledger: Ledger) -> None:
    known = submit(ledger, "a-1")
    changed = submit(ledger, "b-1")
    changed = ledger.append(changed, [Noted(NOW, "new")], due_at=0.0)
    fresh = submit(ledger, "c-1")
    assert ledger.due(NOW, known={"a-1": known.version, "b-1": 1}) == ("a-1", changed, fresh)


def test_runs_wait_for_a_slot_in_order_of_submission(ledger: Ledger) -> None:
    order = [3, 1, 4, 0, 2]
    for number in order:
        submit(ledger, f"tiny-{number}", at=NOW + number // 2, due_at=None)
    submit(ledger, "timed-1", due_at=LATER)
    ledger.append(submit(ledger, "held-1"), [Held(NOW, "no")], due_at=None)
    assert names(ledger.waiting({})) == [f"tiny-{number}" for number in range(5)]


def test_schedule_sets_due_times_without_an_event(ledger: Ledger) -> None:
    first, second = submit(ledger, "a-1"), submit(ledger, "b-1")
    ledger.schedule([(second, LATER), (first, None)])
    assert ledger.next_due() == LATER
    assert names(ledger.due(LATER)) == ["b-1"]
    assert ledger.record("b-1") == second


def test_changed_offers_wake_those_deferred_to_a_time_and_no_wish(ledger: Ledger) -> None:
    for run in ("a-1", "b-1"):
        ledger.append(submit(ledger, run), [Deferred(NOW, LATER, "no quota")], due_at=LATER)
    ledger.wish("b-1", Wished(NOW, Wish.HOLD))
    ledger.wake_queued()
    assert names(ledger.waiting({})) == ["a-1"]
    assert names(ledger.due(LATER)) == ["b-1"]


def test_live_runs_have_a_session_or_remains_of_one(ledger: Ledger) -> None:
    waiting, running, closed = (submit(ledger, run) for run in ("a-1", "b-1", "c-1"))
    ledger.append(waiting, [Deferred(NOW, None, "later")], due_at=None)
    running = ledger.append(running, [assigned(running)], due_at=None)
    events: list[Event] = [
        assigned(closed),
        Prepared(NOW),
        Ended(NOW, Outcome.LOST, "gone", False),
        Cancelled(NOW),
    ]
    closed = ledger.append(closed, events, due_at=None)
    assert ledger.live() == (running, closed)
    assert closed.phase is Phase.CANCELLED


def test_nothing_is_left_once_all_is_final_or_held(ledger: Ledger) -> None:
    assert not ledger.anything_left()
    record = submit(ledger, "a-1", due_at=None)
    assert ledger.anything_left()
    record = ledger.append(record, [Held(NOW, "access denied")], due_at=None)
    assert not ledger.anything_left()
    record = ledger.wish("a-1", Wished(NOW, Wish.CANCEL))
    assert ledger.anything_left(), "somebody must grant the wish"
    record = ledger.append(record, [Cancelled(NOW)], due_at=None)
    assert not ledger.anything_left()


def test_a_cancelled_run_with_a_stray_is_not_over(ledger: Ledger) -> None:
    record = submit(ledger, "a-1")
    events: list[Event] = [
        assigned(record),
        Prepared(NOW),
        Ended(NOW, Outcome.LOST, "gone", False),
        Cancelled(NOW),
    ]
    ledger.append(record, events, due_at=None)
    assert ledger.anything_left()


# --- For people ------------------------------------------------------------------------------------------


def test_summaries_are_newest_first_and_of_the_phases_asked_for(ledger: Ledger) -> None:
    for number in range(3):
        submit(ledger, f"tiny-{number}", at=NOW + number)
    record = ledger.record("tiny-1")
    ledger.append(record, [assigned(record)], due_at=None)
    assert [s.run for s in ledger.summaries()] == ["tiny-2", "tiny-1", "tiny-0"]
    assert [s.run for s in ledger.summaries({Phase.QUEUED}, limit=1)] == ["tiny-2"]
    [running] = ledger.summaries([Phase.PREPARING])
    assert (running.platform, running.accelerator, running.session) == ("here", "cpu", "tiny-1-s01")
    assert (running.name, running.steps_total, running.accepted_step) == ("tiny", 1000, None)


def test_a_run_is_found_by_name_job_or_unique_prefix(ledger: Ledger) -> None:
    for run, at in (("graph-1", NOW), ("graph-2", LATER), ("graphite-x1", NOW), ("vision-1", NOW)):
        submit(ledger, run, at=at)
    assert ledger.find("graph-1") == "graph-1"
    assert ledger.find("graph") == "graph-2", "the job's newest run"
    assert ledger.find("graphi") == "graphite-x1"
    assert ledger.find("v") == "vision-1"
    with pytest.raises(InputError, match=r"several runs: graph-2, graphite-x1, graph-1"):
        ledger.find("grap")
    with pytest.raises(InputError, match=r"no run called 'vison-1'; did you mean 'vision-1'\?"):
        ledger.find("vison-1")
    for hopeless in ("%", "", "\0", "_raph-1", "GRAPH-1; --"):
        with pytest.raises(InputError):
            ledger.find(hopeless)


def test_a_long_list_of_candidates_is_cut(ledger: Ledger) -> None:
    for number in range(12):
        submit(ledger, f"tiny{number:02d}-1", at=NOW + number)
    with pytest.raises(InputError, match=r"tiny11-1, .*tiny02-1, …$"):
        ledger.find("tin")


# --- Rates -----------------------------------------------------------------------------------------------


def test_measured_rates_belong_to_a_job_and_outlive_the_process(ledger: Ledger, ledger_url: str) -> None:
    rates = [Measurement("T4", Precision.FP16, 8, 100.0 + n, 60.0, NOW + n, step=n) for n in (1, 0, 2)]
    assert ledger.measurements("tiny") == ()
    for rate in rates:
        ledger.add_measurement("tiny", rate)
    ledger.add_measurement("other", rates[0])
    expected = tuple(sorted(rates, key=lambda rate: rate.at))
    assert ledger.measurements("tiny") == expected
    with Ledger.open(ledger_url) as other:
        assert other.measurements("tiny") == expected
