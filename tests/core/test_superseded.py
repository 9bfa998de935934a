"""Another ledger has adopted a run: it is held here, nothing is stopped, and a person says what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.action import Action, Collect, Discard, Failed, Launch, Prepare, Stop, Trouble
from orchestrator.core.decide import decide
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import Adopted, Event, Prepared, StopRequested, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, RUN, accepted, assigned, ended, launched, record, running, seen

TAKEN = f"another ledger on the machine pebble has adopted {RUN} from the store shared, so it goes on there"
BACK = Adopted(NOW, "adopted from the store shared", 7, (accepted(30),), 2, by="here")


def stored(*events: Event) -> RunRecord:
    return replace(record(*events), store="shared")


def actions(found: RunRecord) -> tuple[Action, ...]:
    watch = Watch(0.0).see(seen(), 0.0, 2.0)
    return decide(found, Inputs(NOW, monotonic=1000.0, watch=watch)).actions


def superseded(found: RunRecord, kind: type[Prepare | Launch | Collect]) -> Decision:
    """The decision after the action of this kind came back without being performed."""
    [action] = [each for each in actions(replace(found, wish=None)) if isinstance(each, kind)]
    return decide(found, Inputs(NOW, reports=(Failed(action, Trouble.SUPERSEDED, TAKEN),)))


@pytest.mark.parametrize(
    ("events", "kind"), [((assigned(),), Prepare), ((assigned(), Prepared(NOW)), Launch)]
)
def test_a_run_that_has_not_started_a_session_is_held(
    events: tuple[Event, ...], kind: type[Prepare | Launch]
) -> None:
    held = superseded(stored(*events), kind).record
    assert (held.phase, held.session) == (Phase.HELD, None)
    for words in ("pebble", f"`orchestrator cancel {RUN}`", f"`orchestrator adopt shared {RUN}`"):
        assert words in held.reason
    cancelled = superseded(replace(stored(*events), wish=Wish.CANCEL), kind).record
    assert cancelled.phase is Phase.CANCELLED


@pytest.mark.parametrize(
    ("events", "phase"),
    [(running(), Phase.RUNNING), ((*running(), ended(Outcome.STOPPED)), Phase.COLLECTING)],
)
def test_a_run_with_a_session_is_held_where_it_is_and_stops_nothing(
    events: tuple[Event, ...], phase: Phase
) -> None:
    decision = superseded(stored(*events), Collect)
    held = decision.record
    assert (held.phase, held.standing, held.stands) == (phase, Phase.HELD, True)
    assert "pebble" in held.fault
    assert not any(isinstance(each, Stop | Discard) for each in decision.actions)
    assert (held.strays, held.session is None) == ((), False)


def test_a_cancel_ends_a_session_that_is_over_without_its_output() -> None:
    held = superseded(stored(*running(), ended(Outcome.STOPPED)), Collect).record
    asked = apply(held, Wished(NOW, Wish.CANCEL))
    assert superseded(asked, Collect).record.phase is Phase.CANCELLED


def test_a_cancel_first_stops_a_session_that_runs() -> None:
    held = superseded(stored(*running()), Collect).record
    asked = apply(held, Wished(NOW, Wish.CANCEL))
    assert any(isinstance(each, StopRequested) for each in decide(asked, Inputs(NOW)).events)
    collect = Collect(RUN, f"{RUN}-s01", "here", 1, "aaaa", frozenset(), last=False)
    late = Failed(collect, Trouble.SUPERSEDED, TAKEN)
    assert not decide(asked, Inputs(NOW, reports=(late,))).record.fault, "it does not hold up the cancel"


def test_a_run_that_is_taken_back_goes_on_with_its_session() -> None:
    held = superseded(stored(*running()), Collect).record
    back = apply(held, BACK)
    assert (back.phase, back.fault, back.session) == (Phase.RUNNING, "", held.session)
    assert (back.generation, back.adoptions, back.accepted) == (7, 2, (accepted(30),))
    [collect] = [each for each in actions(back) if isinstance(each, Collect)]
    assert collect.adoptions == 2


def test_an_answer_from_before_a_run_was_taken_back_changes_nothing() -> None:
    before = stored(*running())
    [collect] = [each for each in actions(before) if isinstance(each, Collect)]
    back = apply(before, BACK)
    decision = decide(back, Inputs(NOW, reports=(Failed(collect, Trouble.SUPERSEDED, TAKEN),)))
    assert decision.record.fault == ""


def test_a_held_run_that_is_taken_back_stays_held() -> None:
    held = superseded(stored(assigned()), Prepare).record
    back = apply(held, BACK)
    assert (back.phase, back.reason) == (Phase.HELD, BACK.reason)


def test_a_session_that_waits_in_a_queue_is_not_launched_again() -> None:
    """Its launch is done, so there is nothing to hold before it is collected."""
    found = stored(*launched())
    late = Failed(Launch(assigned().order, "shared"), Trouble.SUPERSEDED, TAKEN)
    assert decide(found, Inputs(NOW, reports=(late,))).record.phase is Phase.LAUNCHING
