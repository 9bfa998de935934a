"""What the engine remembers of one run: which action waits for which, and how often platforms are asked."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.action import Action, Collect, Discard, Failed, Launch, Prepare, Retire, Stop, Trouble
from orchestrator.core.decide import decide
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import Confirmed, Launched, Prepared
from orchestrator.core.order import Outcome
from orchestrator.core.run import apply
from orchestrator.core.session import Stray
from orchestrator.core.watch import Watch
from orchestrator.engine.tracking import Tracked
from tests.core.runs import NOW, RUN, TRAITS, assigned, ended, record, running

OLD = f"{RUN}-s01"
STRAY = Stray(OLD, "gone dark", "T4", ended=False, until=None, poll_seconds=60.0)
PREPARE = Prepare(assigned(2).order)
NEW = PREPARE.session


def tracked(*strays: Stray) -> Tracked:
    return Tracked(replace(record(assigned(2)), strays=strays), 0.0)


def started(found: Tracked, *actions: Action) -> list[Action]:
    found.want(actions)
    return found.startable(0.0)


def test_a_platform_that_hangs_over_an_old_session_does_not_hold_up_the_next() -> None:
    for hanging in (Stop(OLD, "gone dark"), Discard(OLD, "gone dark")):
        found = tracked(STRAY)
        assert started(found, hanging) == [hanging]
        assert started(found, PREPARE, Stop(NEW, "here")) == [PREPARE], "a stop must not overtake a prepare"


def test_actions_of_one_session_come_in_order_and_a_stop_overtakes_only_a_collect() -> None:
    found = tracked()
    launch, stop = Launch(PREPARE.order), Stop(NEW, "here")
    assert started(found, PREPARE, launch, stop) == [PREPARE]
    found.finished(Failed(PREPARE, Trouble.TRANSIENT, "no"))
    assert found.startable(0.0) == [launch]
    found.finished(Failed(launch, Trouble.TRANSIENT, "no"))
    collect = Collect(RUN, NEW, "here", 2, None, frozenset(), last=False)
    found = tracked()
    assert started(found, collect, Retire(RUN, frozenset(), 2), stop) == [collect, stop]


def test_nothing_is_asked_any_more_of_a_session_that_is_gone_for_good() -> None:
    found = tracked(STRAY)
    hanging, later = Stop(OLD, "gone dark"), Discard(OLD, "gone dark")
    assert started(found, hanging, later) == [hanging, later]
    again = Stop(OLD, "gone dark")
    found.finished(Failed(hanging, Trouble.TRANSIENT, "no"))
    found.want([again, hanging])
    confirmed = apply(found.record, Confirmed(NOW, OLD))
    found.decided(Decision(confirmed, (), ()), Inputs(NOW))
    assert found.startable(0.0) == []


def test_a_discard_that_fails_at_once_is_not_repeated_at_once() -> None:
    found = Tracked(replace(record(), strays=(replace(STRAY, ended=True),)), 0.0)
    asked = 0
    for second in range(60):
        inputs = found.inputs(NOW + second, float(second))
        decision = decide(found.record, inputs)
        found.decided(decision, inputs)
        found.want(decision.actions)
        for action in found.startable(float(second)):
            asked += 1
            found.finished(Failed(action, Trouble.DENIED, "no"))
    assert asked == 2


def test_each_platform_is_asked_at_its_own_pace() -> None:
    other = replace(STRAY, session=f"{RUN}-s00")
    found = Tracked(replace(record(*running()), strays=(other,)), 0.0)
    looks = dict(found.observed().values())
    assert looks == {"here": TRAITS.poll_seconds, "gone dark": 60.0}


def test_a_session_given_up_for_lost_is_looked_at_as_often_as_before() -> None:
    slow = assigned(traits=replace(TRAITS, poll_seconds=45.0))
    lost = record(slow, *running()[1:], ended(Outcome.LOST, confirmed=False))
    (collect,) = decide(lost, Inputs(NOW)).actions
    closed = decide(lost, Inputs(NOW, reports=(Failed(collect, Trouble.NOT_FOUND, "nothing"),))).record
    assert list(Tracked(closed, 0.0).observed().values()) == [("here", 45.0)]


def test_a_collect_that_waits_is_asked_for_anew_with_what_is_known_by_then() -> None:
    found = Tracked(record(*running()), 0.0)
    early = Collect(RUN, f"{RUN}-s01", "here", 1, "aaaa", frozenset(), last=False)
    stale, fresh = replace(early, last=True), replace(early, last=True, known=frozenset({"one"}))
    assert started(found, early, stale) == [early]
    found.finished(Failed(early, Trouble.TRANSIENT, "no"))
    found.decided(Decision(found.record, (), ()), Inputs(NOW))
    assert started(found, fresh) == [fresh]
    assert found.startable(0.0) == []


def test_silence_counts_from_the_launch_of_the_session_and_not_from_that_of_the_run() -> None:
    found = tracked()
    assigned_at, launched_at = 2_000.0, 3_000.0
    found.refresh(found.record, assigned_at)
    launched = apply(apply(found.record, Prepared(NOW)), Launched(NOW))
    found.refresh(launched, launched_at)
    found.refresh(launched, launched_at + 100.0)
    assert found.inputs(NOW, launched_at + 100.0).watch == Watch(launched_at)
