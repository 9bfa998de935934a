"""Which events are told, to whom, in which words, and under which delivery ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.event import (
    Began,
    Cancelled,
    Completed,
    Deferred,
    Ended,
    Event,
    Faulted,
    GaveUp,
    Held,
    Noted,
    Regained,
    Released,
    Requeued,
    Started,
    Wished,
)
from orchestrator.core.job import NoticeKind, Notify
from orchestrator.core.lifecycle import Awaited, Wish
from orchestrator.core.notice import (
    Outgoing,
    Target,
    addressed,
    outgoing,
    quotas_low,
    schedule_missed,
)
from orchestrator.core.offer import Offer, Quota
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply
from tests.core.runs import NOW, RUN, TRAITS, accept, assigned, ended, record, running

EVERY = frozenset(NoticeKind)
ALL = Target("all", EVERY)
HOUR = 3600.0


def told(before: RunRecord, *events: Event, targets: tuple[Target, ...] = (ALL,)) -> list[Outgoing]:
    rows: list[Outgoing] = []
    for event in events:
        after = apply(before, event)
        rows += outgoing(before, event, after, targets)
        before = after
    return rows


def over(*events: Event) -> RunRecord:
    """A run whose session has ended at step 400."""
    return record(*running(), accept(400), ended(Outcome.STOPPED, step=400), *events)


ELSEWHERE = replace(assigned().order, platform="box", session=f"{RUN}-s02", generation=2)


@pytest.mark.parametrize(
    ("before", "event", "kind", "words"),
    [
        (over(), Completed(NOW), "done", [f"{RUN} is done at step 400 of 1,000", f"pull {RUN}"]),
        (over(), GaveUp(NOW, "no progress"), "failed",
         ["failed at step 400", f"logs {RUN}", f"release {RUN}"]),
        (over(), Cancelled(NOW, "cancelled"), "cancelled", ["was cancelled", f"checkpoints {RUN}"]),
        (over(), Held(NOW, "why"), "held", ["is held at step 400", f"why {RUN}", f"release {RUN}"]),
        (record(), Held(NOW, "held on request"), "held", [f"{RUN} is held"]),
        (record(*running()), Faulted(NOW, "odd"), "held", ["is held"]),
        (over(), Faulted(NOW, "late", awaits=Awaited.OUTPUT), "held",
         ["by itself once its session's output"]),
        (record(), Deferred(NOW, None, "x", "colab/T4: open it"), "waiting", ["a person can start"]),
    ],
)  # fmt: skip
def test_what_happens_to_a_run_is_told(before: RunRecord, event: Event, kind: str, words: list[str]) -> None:
    [row] = told(before, event)
    assert row.target == "all"
    notice = row.notice
    assert (notice.kind.value, notice.run, notice.job, notice.steps) == (kind, RUN, "tiny", 1000)
    for each in words:
        assert each in f"{notice.what} {notice.advice}"
    assert "reason" not in vars(event) or notice.reason in vars(event).values()


@pytest.mark.parametrize(
    ("before", "event"),
    [
        (record(*running()), Noted(NOW, "a loss is NaN")),
        (record(*running()), ended(Outcome.CRASHED)),
        (over(), Requeued(NOW, "stopped at the deadline", 0)),
        (record(*running()), Wished(NOW, Wish.HOLD)),
        (record(), Deferred(NOW, NOW + 60.0, "no quota")),
        (record(Held(NOW, "why")), Released(NOW)),
        (over(Faulted(NOW, "one")), Faulted(NOW, "another")),  # it is held already
        (over(Completed(NOW)), Faulted(NOW, "a clean-up failed")),  # done all the same
        (over(Faulted(NOW, "x", awaits=Awaited.OUTPUT)), Regained(NOW, ("output",))),
        (record(Deferred(NOW, None, "x", "start")), Deferred(NOW, NOW + 9, "x", "start")),
        (record(assigned()), replace(assigned(), reason="again")),
    ],
)
def test_what_needs_nobody_is_not_told(before: RunRecord, event: Event) -> None:
    if not isinstance(event, type(assigned())):
        assert told(before, event) == []
    else:
        assert outgoing(before, event, before, (ALL,)) == ()


def test_a_run_that_trains_elsewhere_has_moved_once() -> None:
    moves = replace(assigned(), order=ELSEWHERE)
    before = over(Requeued(NOW, "stopped", 0))
    assert before.place == ("here", "cpu")
    rows = told(before, moves, *running()[1:3], Began(NOW + 5), Started(NOW + 9, "bbbb"))
    assert [row.notice.kind for row in rows] == [NoticeKind.MOVED]
    assert "moved from here/cpu to box/cpu at step 400" in rows[0].notice.what
    assert (rows[0].notice.platform, rows[0].notice.session) == ("box", f"{RUN}-s02")


def test_the_first_session_and_one_at_the_same_place_are_no_moves() -> None:
    assert told(record(), *running(), accept(400)) == []
    again = replace(assigned(), order=replace(ELSEWHERE, platform="here"))
    assert told(over(Requeued(NOW, "stopped", 0)), again, *running()[1:]) == []


def test_a_session_that_never_ran_is_no_move() -> None:
    moves = replace(assigned(), order=ELSEWHERE)
    refused = (
        moves,
        *running()[1:3],
        Ended(NOW, Outcome.NO_CAPACITY, "none", True),
        Requeued(NOW, "none", 0),
    )
    back = replace(moves, order=replace(ELSEWHERE, platform="here", generation=3, session=f"{RUN}-s03"))
    assert told(over(Requeued(NOW, "stopped", 0)), *refused, back, *running()[1:]) == []


def test_each_target_gets_the_kinds_and_jobs_that_it_wants() -> None:
    targets = (
        Target("done", frozenset({NoticeKind.DONE})),
        Target("held", frozenset({NoticeKind.HELD})),
        Target("tiny", EVERY, ("ti*", "other")),
        Target("other", EVERY, ("other",)),
    )
    assert [row.target for row in told(over(), Completed(NOW), targets=targets)] == ["done", "tiny"]


def test_a_job_may_have_an_address_of_its_own() -> None:
    own = Notify((NoticeKind.FAILED,), "env:MINE")
    before = over()
    before = replace(before, job=replace(before.job, notify=own))
    assert [row.target for row in told(before, GaveUp(NOW, "x"))] == ["all", "env:MINE"]
    assert [row.target for row in told(before, Completed(NOW))] == ["all"]
    assert [row.target for row in told(before, GaveUp(NOW, "x"), targets=())] == ["env:MINE"]


def test_the_delivery_id_depends_on_the_run_its_event_and_the_target_alone() -> None:
    both = (ALL, Target("phone", EVERY))
    one, two = told(over(), Completed(NOW), targets=both)
    assert one.id != two.id
    again, _ = told(over(), Completed(NOW + 60.0, "decided again later"), targets=both)
    assert again.id == one.id
    held = told(record(), Held(NOW, "x"), Released(NOW), Held(NOW, "x"))
    assert len({row.id for row in held}) == len(held) == 2


@pytest.mark.parametrize(
    ("quota", "words"),
    [
        (
            Quota(2 * HOUR, NOW + 86400.0, 7 * 86400.0, 30 * HOUR, "gpu"),
            ["quota of k gpu is low: 2.0 h left of 30.0 h, until"],
        ),
        (Quota(4 * HOUR, NOW + 86400.0, 7 * 86400.0, 30 * HOUR, "gpu"), None),
        (Quota(0.0, None, None, None), ["quota of k is low: 0 s"]),
        (Quota(3 * HOUR), None),
        (Quota.of_units(3.0, 1.5, allowed=100.0), ["3 units left of 100 units"]),
        (None, None),
    ],
)
def test_a_low_quota_is_told(quota: Quota | None, words: list[str] | None) -> None:
    found = list(quotas_low([Offer("k", "T4", TRAITS, quota=quota)], NOW))
    assert bool(found) == (words is not None)
    for each in words or ():
        assert each in found[0][0].what


def test_a_low_quota_has_the_same_id_all_through_its_window() -> None:
    refresh = NOW + 5 * 86400.0

    def ids(at: float, refresh_at: float | None, left: float) -> set[str]:
        shared = Quota(left, refresh_at, 7 * 86400.0, 30 * HOUR, "gpu")
        offers = [Offer("k", name, TRAITS, quota=shared) for name in ("T4", "P100")]
        return {row.id for notice, window in quotas_low(offers, at)
                for row in addressed(notice, (ALL,), None, notice.platform, window)}  # fmt: skip

    first = ids(NOW, refresh, HOUR)
    assert len(first) == 1, "one pool"
    assert ids(NOW + 86400.0, refresh + 20.0, 0.0) == first
    assert ids(refresh + 60.0, refresh + 7 * 86400.0, HOUR) != first
    assert ids(NOW, None, HOUR) == ids(NOW + 60.0, None, HOUR)
    assert ids(NOW, None, HOUR) != ids(NOW + 14 * 86400.0, None, HOUR)


def test_a_missed_schedule_goes_to_its_jobs_address_too() -> None:
    notice = schedule_missed("nightly", "tiny", NOW, NOW + HOUR, "the controller was down")
    own = Notify((NoticeKind.SCHEDULE_MISSED,), "env:MINE")
    rows = addressed(notice, (ALL, Target("b", EVERY, ("b",))), own, "nightly", str(NOW))
    assert [row.target for row in rows] == ["all", "env:MINE"]
    assert "nightly missed its start of 2026-09-21 14:13Z" in notice.what
