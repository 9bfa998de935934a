"""What closed sessions left on their platforms: stopped, kept for the next session, discarded."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from orchestrator.core.action import Discard, Done, Failed, Stop, Trouble
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import Event, Launched, Prepared, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import Observation, Sighting, StopReply, Stray
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, RUN, TRAITS, accepted, assigned, ended, record, running, seen
from tests.core.test_decide import decided, watched


def test_a_lost_session_is_told_to_stop_until_it_is_seen_to_have_ended() -> None:
    found = record(*running(), ended(Outcome.LOST, confirmed=False))
    (collect,) = decided(found).actions
    found = decided(found, Failed(collect, Trouble.NOT_FOUND, "nothing")).record
    (stray,) = found.strays
    assert not stray.ended
    (stop,) = [a for a in decided(found).actions if isinstance(a, Stop)]
    assert not [
        a for a in decided(found, Done(stop, reply=StopReply.REQUESTED)).actions if isinstance(a, Discard)
    ]
    gone = Inputs(NOW, strays={stray.session: watched(Observation(Sighting.ENDED))})
    (discard,) = decide(found, gone).actions
    assert isinstance(discard, Discard)
    assert decided(found, Done(discard)).record.strays == ()


def test_a_stray_past_its_wall_is_discarded() -> None:
    stray = Stray(f"{RUN}-s01", "here", "cpu", ended=False, until=NOW - 1)
    (discard,) = decided(replace(record(), strays=(stray,))).actions
    assert discard == Discard(stray.session, "here")


@pytest.mark.parametrize(("sighting", "wanted"), [
    (Sighting.RUNNING, Stop), (Sighting.PENDING, Stop), (Sighting.ENDED, Discard), (Sighting.ABSENT, Discard),
])  # fmt: skip
def test_a_stray_that_its_wall_does_not_end_is_stopped(sighting: Sighting, wanted: type) -> None:
    stray = Stray(f"{RUN}-s01", "here", "cpu", ended=False, until=NOW - 1)
    watch = watched(Observation(sighting))
    found = decided(replace(record(), strays=(stray,)), strays={stray.session: watch})
    assert [type(action) for action in found.actions] == [wanted]
    helpless = {stray.session: replace(watch, stop_impossible=True)}
    assert [type(a) for a in decided(replace(record(), strays=(stray,)), strays=helpless).actions] == [
        Discard
    ]


def test_one_that_waited_for_its_start_and_vanishes_may_run() -> None:
    stray = Stray(f"{RUN}-s01", "here", "cpu", ended=False, until=NOW - 1, seconds_max=600.0)
    waiting = replace(record(), strays=(stray,))
    absent = watched(Observation(Sighting.ABSENT))

    def actions(absent_seconds: float) -> list[type]:
        gone = replace(absent, pending_seconds=10.0, absent_readings=60, absent_seconds=absent_seconds)
        return [type(action) for action in decided(waiting, strays={stray.session: gone}).actions]

    assert actions(599.0) == [Stop]
    assert actions(600.0) == [Discard]


@pytest.mark.parametrize("hands_over", [False, True])
def test_what_the_next_session_may_read_is_kept_until_that_trains(hands_over: bool) -> None:
    traits = replace(TRAITS, hands_over=hands_over)
    found = record(assigned(traits=traits), *running()[1:], ended(Outcome.STOPPED, step=50))
    (collect,) = decided(found).actions

    def discards(record: RunRecord, watch: Watch | None = None) -> list[str]:
        return [a.session for a in decided(record, watch=watch).actions if isinstance(a, Discard)]

    queued = decided(found, Done(collect, (accepted(50),))).record
    old = queued.strays[0].session
    next_up = apply(queued, assigned(2))
    vanished: tuple[Event, ...] = (Prepared(NOW), Launched(NOW), ended(Outcome.LOST))
    lost_early = reduce(apply, vanished, next_up)
    assert lost_early.phase is Phase.COLLECTING
    for waiting in (queued, next_up, lost_early):
        assert discards(waiting) == ([] if hands_over else [old])
    began = reduce(apply, running()[1:], next_up)
    restoring = seen()
    assert restoring.status is not None
    restoring = replace(restoring, status=replace(restoring.status, state="restoring"))
    assert discards(began, watched(restoring)) == ([] if hands_over else [old])
    assert discards(began, watched(seen())) == [old]
    assert discards(decided(apply(queued, Wished(NOW, Wish.HOLD))).record) == [old]


def test_one_that_was_given_up_unseen_is_not_kept_for_the_next_which_waits_for_its_slot() -> None:
    stray = Stray("tiny-abcdefgh-s01", "here", "cpu", ended=False, until=NOW - 1.0, hands_over=True)
    waiting = replace(record(), strays=(stray,))
    [beyond] = decide(waiting, Inputs(NOW)).actions
    assert isinstance(beyond, Discard)
    ended_since = Inputs(NOW, strays={stray.session: watched(Observation(Sighting.ENDED))})
    [seen] = decide(replace(waiting, strays=(replace(stray, until=None),)), ended_since).actions
    assert isinstance(seen, Discard)
