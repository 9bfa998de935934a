"""Notifications in the ledger: they come with the event they tell of, or neither does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import event as sql

from orchestrator.core.delivery import Answer, Delivery, State, verdict
from orchestrator.core.event import Event, Held, Released, Submitted, Wished
from orchestrator.core.job import NoticeKind
from orchestrator.core.lifecycle import Wish
from orchestrator.core.message import digest, message
from orchestrator.core.notice import Notice, Outgoing, Target, outgoing
from orchestrator.core.run import RunRecord
from orchestrator.errors import LedgerConflict
from orchestrator.ledger import Ledger, Proposal
from orchestrator.ledger.notifications import DEAD_KEPT_SECONDS, KEPT_SECONDS, Row
from tests.core.runs import NOW, RUN, job
from tests.postgresql import ledger_url

__all__ = ["ledger_url"]  # a fixture

TARGETS = tuple(Target(name, frozenset(NoticeKind)) for name in ("chat", "phone"))
HELD = Held(NOW, "because \0 \ud800")


def notices(before: RunRecord, event: Event, after: RunRecord) -> Sequence[Outgoing]:
    return outgoing(before, event, after, TARGETS)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url) as opened:
        opened.notices = notices
        yield opened


def submitted(ledger: Ledger, run: str = RUN) -> RunRecord:
    return ledger.submit(Submitted(run, job(), NOW, store="home"))


def waiting(ledger: Ledger, target: str = "chat", now: float = NOW) -> tuple[Row, ...]:
    return ledger.notifications.due_of(target, now)


def test_an_event_and_its_notifications_are_written_together(ledger: Ledger) -> None:
    record = ledger.append(submitted(ledger), [HELD], due_at=None)
    [row] = waiting(ledger)
    assert (row.kind, row.run, row.attempts, row.state) == ("held", RUN, 0, State.WAITING)
    assert isinstance(row.body, Notice)
    assert row.body.reason.startswith("because")
    assert ledger.notifications.due(NOW) == {"chat": 0.0, "phone": 0.0}
    ledger.append(record, [Released(NOW), Held(NOW, "again")], due_at=None)
    assert len({each.id for each in waiting(ledger)}) == 2


def test_a_conflict_leaves_no_notification(ledger: Ledger) -> None:
    stale = submitted(ledger)
    other = submitted(ledger, "other-abcdefgh")
    ledger.wish(RUN, Wished(NOW, Wish.HOLD))
    answers = ledger.append_many([Proposal(stale, [HELD], None), Proposal(other, [HELD], None)])
    assert isinstance(answers[0], LedgerConflict)
    assert [row.run for row in waiting(ledger)] == ["other-abcdefgh"]


def test_if_the_rows_cannot_be_written_neither_is_the_event(ledger: Ledger) -> None:
    record = submitted(ledger)

    def refuse(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if "notifications" in statement:
            raise KeyboardInterrupt  # the process dies here

    engine = ledger._database._engine
    sql.listen(engine, "before_cursor_execute", refuse)
    with pytest.raises(KeyboardInterrupt):
        ledger.append(record, [HELD], due_at=None)
    sql.remove(engine, "before_cursor_execute", refuse)
    assert ledger.record(RUN).version == 1
    assert ledger.notifications.counts() == ()
    ledger.append(record, [HELD], due_at=None)  # decided again
    assert len(waiting(ledger)) == 1


def test_a_row_is_added_once_by_its_id(ledger: Ledger) -> None:
    notice = Notice(NoticeKind.QUOTA_LOW, NOW, "low")
    ledger.notifications.post([Outgoing("ab" * 16, "chat", notice), Outgoing("cd" * 16, "chat", notice)])
    ledger.notifications.post([Outgoing("ab" * 16, "chat", notice), Outgoing("ef" * 16, "chat", notice)])
    ledger.notifications.post([])
    assert sorted(row.id[:2] for row in waiting(ledger)) == ["ab", "cd", "ef"]


def attempt(ledger: Ledger, row: Row, answer: Answer, now: float) -> None:
    found = verdict(row.id, row.created_at, row.attempts + 1, Delivery(answer, "answered 500"), now)
    ledger.notifications.attempted(row, found, now)


def test_attempts_are_recorded_and_a_late_one_changes_nothing(ledger: Ledger) -> None:
    ledger.append(submitted(ledger), [HELD], due_at=None)
    [row] = waiting(ledger)
    attempt(ledger, row, Answer.LATER, NOW)
    assert waiting(ledger) == ()
    [again] = waiting(ledger, now=NOW + 60.0)
    assert (again.id, again.attempts, again.error) == (row.id, 1, "answered 500")
    attempt(ledger, again, Answer.SENT, NOW + 60.0)
    attempt(ledger, row, Answer.NEVER, NOW + 90.0)  # by a controller that was replaced meanwhile
    [sent] = ledger.notifications.rows([State.SENT])
    assert (sent.ended_at, sent.error, sent.attempts) == (NOW + 60.0, "", 2)


def test_a_date_of_a_clock_that_was_wrong_holds_nothing_up(ledger: Ledger) -> None:
    ledger.append(submitted(ledger), [Held(NOW + 1e6, "x")], due_at=None)
    [row] = waiting(ledger)
    attempt(ledger, row, Answer.LATER, NOW + 1e6)
    assert [each.id for each in waiting(ledger)] == [row.id]


def test_what_was_given_up_is_tried_again_on_request(ledger: Ledger) -> None:
    ledger.append(submitted(ledger), [HELD], due_at=None)
    [row] = waiting(ledger)
    attempt(ledger, row, Answer.NEVER, NOW)
    assert [each.id for each in ledger.notifications.rows([State.DEAD])] == [row.id]
    assert ledger.notifications.retry([row.id, "0" * 32], NOW + 1e6) == 1
    [again] = waiting(ledger, now=NOW + 1e6)
    assert (again.id, again.created_at, again.ended_at) == (row.id, NOW + 1e6, None)
    assert again.attempts == 1, "it may have arrived, and keeps its id"
    assert ledger.notifications.retried() == {again.target: NOW + 1e6}


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("retries", [1, 2])
def test_a_retry_during_an_attempt_that_fails_is_not_lost(
    ledger: Ledger, attempts: int, retries: int
) -> None:
    ledger.append(submitted(ledger), [HELD], due_at=None)
    later = NOW + 7200.0
    for _ in range(attempts):
        [row] = waiting(ledger, now=later)
        attempt(ledger, row, Answer.LATER, NOW)
    for number in range(retries):  # a second one changes nothing but when it was said
        [row] = waiting(ledger, now=later)
        ledger.notifications.retry([row.id], later + number)
    attempt(ledger, row, Answer.LATER, later + 5.0)
    [again] = waiting(ledger, now=later + 5.0)
    assert (again.attempts, again.due_at, again.created_at) == (1, 0.0, later + retries - 1)
    assert ledger.notifications.retried() == {"chat": again.created_at}
    attempt(ledger, again, Answer.LATER, later + 5.0)
    assert waiting(ledger, now=later + 5.0) == (), "the retry itself counts, once"


def test_what_was_sent_during_a_retry_is_not_sent_again(ledger: Ledger) -> None:
    ledger.append(submitted(ledger), [HELD], due_at=None)
    later = NOW + 7200.0
    for _ in range(2):
        [row] = waiting(ledger, now=later)
        attempt(ledger, row, Answer.LATER, NOW)
    [row] = waiting(ledger, now=later)
    ledger.notifications.retry([row.id], later)
    attempt(ledger, row, Answer.SENT, later + 1.0)
    assert waiting(ledger, now=later + 1.0) == ()
    assert [each.id for each in ledger.notifications.rows([State.SENT])] == [row.id]


def test_gathered_rows_leave_one_message(ledger: Ledger) -> None:
    for number in range(7):
        ledger.append(submitted(ledger, f"run{number}-abcdefgh"), [HELD], due_at=None)
    rows = waiting(ledger)
    told = [Outgoing(row.id, row.target, row.body) for row in rows if isinstance(row.body, Notice)]
    identity, one = digest(told, NOW)
    ledger.notifications.gather(rows, identity, one)
    [left] = waiting(ledger)
    assert left.body is not None
    assert (left.id, left.kind) == (identity, "digest")
    assert message(left.id, left.body).title == "7 notifications: 7 held"
    assert {(each.target, each.state): each.rows for each in ledger.notifications.counts()} == {
        ("chat", State.GATHERED): 7, ("chat", State.WAITING): 1, ("phone", State.WAITING): 7,
    }  # fmt: skip


def test_a_row_of_a_newer_version_hides_no_other(ledger: Ledger) -> None:
    ledger.append(submitted(ledger), [HELD], due_at=None)
    with ledger._database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE notifications SET body = '{\"kind\":\"new\"}' WHERE target = 'chat'"
        )
    assert [row.body for row in waiting(ledger)] == [None]
    assert len(waiting(ledger, "phone")) == 1


def test_old_rows_go_and_waiting_ones_stay(ledger: Ledger) -> None:
    ledger.append(submitted(ledger), [HELD], due_at=None)
    attempt(ledger, waiting(ledger)[0], Answer.SENT, NOW)
    attempt(ledger, waiting(ledger, "phone")[0], Answer.NEVER, NOW)
    ledger.append(submitted(ledger, "other-abcdefgh"), [HELD], due_at=None)
    left = []
    for after in (KEPT_SECONDS - 1, KEPT_SECONDS + 1, DEAD_KEPT_SECONDS + 1):
        ledger.notifications.prune(NOW + after)
        left.append([each.state.value for each in ledger.notifications.rows(State)])
    assert list(map(sorted, left)) == [
        ["dead", "sent", "waiting", "waiting"], ["dead", "waiting", "waiting"], ["waiting", "waiting"]
    ]  # fmt: skip


def test_a_target_that_is_away_for_weeks_does_not_fill_the_ledger(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.ledger.notifications.WAITING_MAX", 5)
    notice = Notice(NoticeKind.MOVED, NOW, "moved")
    rows = [Outgoing(f"{n:032d}", "chat", Notice(NoticeKind.MOVED, NOW + n, "moved")) for n in range(9)]
    ledger.notifications.post([*rows, Outgoing("f" * 32, "phone", notice)])
    ledger.notifications.prune(NOW)
    assert [int(row.id) for row in waiting(ledger)] == [4, 5, 6, 7, 8]
    assert len(ledger.notifications.rows([State.DEAD])) == 4
    assert len(waiting(ledger, "phone")) == 1


def test_notifications_survive_a_restart(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as first:
        first.notices = notices
        first.append(submitted(first), [HELD], due_at=None)
        before = waiting(first)
    with Ledger.open(ledger_url) as second:
        assert waiting(second) == before


def test_a_listing_costs_nothing_where_there_are_none(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as empty:
        assert empty.notifications.rows(State) == ()
        assert not empty.notifications.waiting_since(0.0)
