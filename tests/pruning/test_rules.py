"""What may be removed, as a table: things × needs × policy → whether and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.pruning.rules import (
    GRACE_SECONDS,
    Kind,
    Needs,
    Policy,
    RunFacts,
    Thing,
    judge,
    newest_of_each_job,
)

NOW = 1_700_000_000.0
DAY = 86400.0
OLD = NOW - 100 * DAY
RUNS = {
    each.run: each
    for each in (
        RunFacts("live-1", "live", over=False),
        RunFacts("stray-1", "stray", over=False, ended_at=OLD),
        RunFacts("old-1", "old", over=True, ended_at=OLD),
        RunFacts("fresh-1", "fresh", over=True, ended_at=NOW - DAY),
        RunFacts("timeless-1", "timeless", over=True, ended_at=None),
    )
}
NEEDS = Needs(RUNS, frozenset({(Kind.SOURCE, "aa"), (Kind.INPUT, "bb")}))
POLICY = Policy(NOW, 30 * DAY)


def thing(kind: Kind, **changes: object) -> Thing:
    return replace(Thing(kind, f"{kind}/x", 1, OLD), **changes)  # type: ignore[arg-type]


def log(run: str, **changes: object) -> Thing:
    return thing(Kind.LOG, run=run, **changes)


@pytest.mark.parametrize(
    ("given", "goes", "why"),
    [
        (thing(Kind.SOURCE, key="aa"), False, "a run needs it"),
        (thing(Kind.SOURCE, key="bb"), True, "no run that is under way"),
        (thing(Kind.INPUT, key="bb"), False, "a run needs it"),
        (thing(Kind.IMAGE, key="aa"), True, "no run that is under way"),
        (thing(Kind.SOURCE, key="cc", changed_at=NOW - GRACE_SECONDS + 1), False, "changed less than"),
        (thing(Kind.SOURCE, key="cc", changed_at=NOW - GRACE_SECONDS), True, "no run"),
        (thing(Kind.SOURCE, key="cc", changed_at=NOW + 10 * DAY), False, "changed less than"),
        (thing(Kind.SOURCE, key="cc", changed_at=NOW, set_aside=True), True, "no run"),
        (thing(Kind.SOURCE, key="aa", set_aside=True), False, "a run needs it"),
        (thing(Kind.DRAFT), True, "its writer was killed"),
        (thing(Kind.DRAFT, changed_at=NOW), False, "changed less than"),
        (thing(Kind.DRAFT, in_use=True), False, "being written"),
        (log("live-1"), False, "not over"),
        (log("stray-1"), False, "not over"),
        (log("old-1"), True, "ended more than"),
        (log("old-1", changed_at=NOW), True, "ended more than"),
        (log("old-1", unpublished=True), False, "never reached the store"),
        (log("fresh-1"), False, "--older-than"),
        (log("timeless-1"), False, "--older-than"),
        (thing(Kind.RESUME, run="live-1"), False, "not over"),
        (thing(Kind.RESUME, run="fresh-1"), True, "its session is over"),
        (thing(Kind.RESUME, run="fresh-1", changed_at=NOW), False, "changed less than"),
    ],
)
def test_what_goes_and_why(given: Thing, goes: bool, why: str) -> None:
    [found] = judge([given], NEEDS, POLICY)
    assert (found.goes, why in found.why) == (goes, True), found


def test_an_unknown_run_is_left_and_makes_what_it_may_share_stay() -> None:
    things = [log("strange-1"), thing(Kind.SOURCE, key="cc"), log("old-1"), thing(Kind.DRAFT)]
    assert [each.goes for each in judge(things, NEEDS, POLICY)] == [False, False, True, True]
    assert "strange-1" in judge(things, NEEDS, POLICY)[1].why
    asked = replace(POLICY, unknown=True)
    assert all(each.goes for each in judge(things, NEEDS, asked))
    young = [log("strange-1", changed_at=NOW - DAY)]
    assert not judge(young, NEEDS, asked)[0].goes, "an unknown run's age is that of its files"
    assert not judge([log("strange-1", unpublished=True)], NEEDS, asked)[0].goes


def test_beside_another_ledger_and_without_any_nothing_shared_goes() -> None:
    for needs in (replace(NEEDS, shared="another is there"), Needs(shared="there is no ledger here")):
        [found] = judge([thing(Kind.SOURCE, key="cc")], needs, POLICY)
        assert not found.goes
        assert needs.shared in found.why


def test_results_that_never_arrived_go_with_the_checkpoints_only() -> None:
    [found] = judge([log("old-1", unpublished=True)], NEEDS, replace(POLICY, checkpoints=True))
    assert found.goes


def test_the_newest_runs_of_each_job_are_those_that_ended_last() -> None:
    runs = [RunFacts(f"a-{n}", "a", over=True, ended_at=float(n)) for n in range(4)]
    runs += [RunFacts("a-9", "a", over=False), RunFacts("b-0", "b", over=True, ended_at=0.0)]
    assert newest_of_each_job(runs, 2) == {"a-3", "a-2", "b-0"}
    assert newest_of_each_job(runs, 0) == frozenset()
    kept = replace(NEEDS, kept=frozenset({"old-1"}))
    assert not judge([log("old-1")], kept, replace(POLICY, keep=1))[0].goes


def test_beside_a_run_that_cannot_be_read_all_content_stays() -> None:
    unread = replace(NEEDS, unread="the ledger's record of torn-1 cannot be read")
    [found] = judge([thing(Kind.SOURCE, key="cc")], unread, replace(POLICY, unknown=True))
    assert not found.goes
    assert "torn-1" in found.why
