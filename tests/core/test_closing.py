"""What follows the end of a session, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.action import Collect, Done, Failed, Launch, Prepare, Trouble
from orchestrator.core.closing import CAPACITY_SECONDS, DATED_SECONDS_MAX, closing, cooldown
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import Released, StopRequested, Wished
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, TRAITS, accept, assigned, ended, launched, record, running


def after(found: RunRecord, now: float = NOW) -> RunRecord:
    """The record after the last look at the outbox has found nothing new."""
    (collect,) = decide(found, Inputs(now)).actions
    assert isinstance(collect, Collect)
    return decide(found, Inputs(now, reports=(Done(collect),))).record


def test_a_run_that_progresses_is_not_given_up_for_its_memory() -> None:
    work = Work(total=1000, global_batch=16, group=8)  # 8 is the smallest micro-batch
    found = after(record(*running(), accept(500), ended(Outcome.OUT_OF_MEMORY), work=work))
    assert found.phase is Phase.QUEUED
    assert found.cooldowns == ()
    fruitless = after(record(*running(), ended(Outcome.OUT_OF_MEMORY), work=work))
    assert [c.until for c in fruitless.cooldowns] == [None]


def test_a_hold_at_the_end_of_a_session_forgets_no_smaller_micro_batch() -> None:
    found = after(record(*running(), ended(Outcome.OUT_OF_MEMORY), Wished(NOW, Wish.HOLD)))
    assert found.phase is Phase.HELD
    assert found.micro_batch_caps == (("cpu", 4),)
    assert apply(found, Released(NOW)).micro_batch_caps == (("cpu", 4),)


@pytest.mark.parametrize("until", [None, NOW - 3600.0, NOW + 1.0])
def test_a_refusal_whose_time_is_over_still_costs_a_pause(until: float | None) -> None:
    found = record(*launched(), replace(ended(Outcome.QUOTA_EXHAUSTED), until=until))
    (cooldown,) = after(found).cooldowns
    assert cooldown.until is not None
    assert cooldown.until >= NOW + 15.0


def test_a_platform_that_says_when_to_ask_again_is_asked_soon_after_it() -> None:
    """Such as one without a free slot: somebody's session may end at any time."""
    order, found = assigned(1).order, record()
    for _ in range(12):
        pause = cooldown(found, order, NOW, "no slot", until=NOW + 120.0)
        found = replace(found, cooldowns=(pause,))
    assert pause.until == NOW + DATED_SECONDS_MAX
    assert cooldown(found, order, NOW, "no slot", until=NOW + 7200.0).until == NOW + 7200.0


def test_a_row_of_refusals_knows_when_it_began() -> None:
    order, found, now = assigned(1).order, record(), NOW
    for _ in range(12):
        pause = cooldown(found, order, now, "no capacity")
        assert pause.until is not None
        found, now = replace(found, cooldowns=(pause,)), pause.until + 1.0
    assert pause.began_at == NOW
    later = cooldown(found, order, now + 2 * 3600.0, "no capacity")
    assert later.began_at == later.since, "nobody knows what was in between"


def test_nothing_is_awaited_of_a_session_that_its_platform_refused_to_start() -> None:
    """If its credentials were refused, its outbox cannot be read either."""
    found = record(*launched()[:-1], ended(Outcome.DENIED))
    assert found.session is not None
    assert found.session.launched_at is None
    (collect,) = decide(found, Inputs(NOW)).actions
    failed = Failed(collect, Trouble.DENIED, "the token is old")
    assert decide(found, Inputs(NOW, reports=(failed,))).record.phase is Phase.QUEUED


def test_machines_that_start_and_are_not_what_was_ordered_are_tried_ever_later() -> None:
    found, pauses = record(), []
    for generation in (1, 2, 3):  # each one is started, probed, paid for and ended
        for event in (assigned(generation), *running()[1:], ended(Outcome.NO_CAPACITY)):
            found = apply(found, event)
        found = replace(after(found), strays=())
        pauses.append((found.cooldowns[0].until or 0.0) - NOW)
    assert pauses == [CAPACITY_SECONDS, 2 * CAPACITY_SECONDS, 4 * CAPACITY_SECONDS]
    for event in (assigned(4), *running()[1:], accept(500, 4)):
        found = apply(found, event)
    assert found.cooldowns == ()


def test_an_outbox_that_did_not_come_at_once_changes_nothing_of_how_the_session_ended() -> None:
    found = record(*running(), replace(ended(Outcome.CRASHED), message="exit code 1"))
    (collect,) = decide(found, Inputs(NOW)).actions
    full = Failed(collect, Trouble.TRANSIENT, "No space left on device")
    waiting = decide(found, Inputs(NOW, reports=(full,))).record
    assert (waiting.phase, waiting.session and waiting.session.failures) == (Phase.COLLECTING, 1)
    closed = decide(waiting, Inputs(NOW + 10, reports=(Done(collect),)))
    assert "exit code 1" in repr(closed.events)
    assert "No space left" not in repr(closed.events)


@pytest.mark.parametrize("trouble", [Trouble.DENIED, Trouble.REJECTED])
def test_who_is_denied_is_not_asked_again_before_a_human_acts(trouble: Trouble) -> None:
    launching = record(*launched()[:2])
    (launch,) = decide(launching, Inputs(NOW)).actions
    assert isinstance(launch, Launch)
    denied = decide(launching, Inputs(NOW, reports=(Failed(launch, trouble, "the token is old"),))).record
    (cooldown,) = after(denied).cooldowns
    assert (cooldown.until, cooldown.reason) == (None, "the token is old")

    preparing = record(assigned())
    (prepare,) = decide(preparing, Inputs(NOW)).actions
    assert isinstance(prepare, Prepare)
    failed = Failed(prepare, trouble, "the secret KEY is not set")
    (cooldown,) = decide(preparing, Inputs(NOW, reports=(failed,))).record.cooldowns
    assert (cooldown.until, cooldown.reason) == (None, "the secret KEY is not set")


@pytest.mark.parametrize(("durable", "phase"), [(True, Phase.QUEUED), (False, Phase.COLLECTING)])
def test_the_only_copy_of_a_session_is_asked_for_longer(durable: bool, phase: Phase) -> None:
    traits = TRAITS if durable else replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE)
    now = NOW + 4 * 3600.0  # a session's work is waited for this long again
    over = replace(ended(Outcome.COMPLETED, step=1000), at=now)
    found = record(assigned(traits=traits), *running()[1:], over)
    for _ in range(20):  # an hour and a half without a network
        actions = decide(found, Inputs(now)).actions
        reports = tuple(Failed(a, Trouble.TRANSIENT, "no route to host") for a in actions)
        found = decide(found, Inputs(now, reports=reports)).record
        if found.session is None:
            break
        now += 300.0
    assert found.phase is phase


@pytest.mark.parametrize(("given_up", "phase"), [(True, Phase.HELD), (False, Phase.COLLECTING)])
def test_what_was_given_up_is_asked_for_once(given_up: bool, phase: Phase) -> None:
    traits = replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE)
    stop = (Wished(NOW, Wish.HOLD, discard=True), StopRequested(NOW, Wish.HOLD)) if given_up else ()
    found = record(assigned(traits=traits), *running()[1:], *stop, ended(Outcome.STOPPED))
    (collect,) = decide(found, Inputs(NOW)).actions
    gone = Failed(collect, Trouble.NOT_FOUND, "no outbox")
    assert decide(found, Inputs(NOW, reports=(gone,))).record.phase is phase


def test_an_outbox_that_does_not_come_can_be_given_up() -> None:
    """One failed try may be a glitch, even if the user agreed to lose the work."""
    traits = replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE)
    cancel = Wished(NOW, Wish.CANCEL, discard=True)
    found = record(assigned(traits=traits), *running()[1:], ended(Outcome.STOPPED), cancel)
    phases = []
    for now in (NOW, NOW + 10.0):
        (collect,) = decide(found, Inputs(now)).actions
        found = decide(found, Inputs(now, reports=(Failed(collect, Trouble.TRANSIENT, "no route"),))).record
        phases.append(found.phase)
    assert phases == [Phase.COLLECTING, Phase.CANCELLED]


def test_the_closing_event_says_how_often_nothing_came() -> None:
    found = replace(record(*running(), ended(Outcome.CRASHED, message="exit 1")), fruitless=1)
    assert "2 of 3" in closing(found, NOW).reason


@pytest.mark.parametrize(
    ("now", "monotonic", "phase"),
    [
        (NOW + 3600.0 + 61.0, 700.0, Phase.COLLECTING),
        (NOW + 3600.0 + 61.0, 500.0, Phase.RUNNING),
        (NOW + 3500.0, 3500.0, Phase.RUNNING),
    ],
    ids=["beyond its limit and unheard of", "a laptop that has just woken up", "within its limit"],
)
def test_a_session_beyond_its_limit_that_nobody_tells_of_is_over(
    now: float, monotonic: float, phase: Phase
) -> None:
    found = decide(record(*running()), Inputs(now, monotonic, watch=Watch(at=0.0))).record
    assert found.phase is phase
