"""A refused launch: what is prepared stays for the next try, and how long its platform is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.action import Discard, Failed, Launch, Prepare, Trouble
from orchestrator.core.assign import PARKED_BUDGET_MIN, again
from orchestrator.core.closing import CAPACITY_SECONDS, REFUSALS_MAX, REFUSED_SECONDS
from orchestrator.core.decide import decide
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import Assigned, Prepared, Released, TurnedAway, Wished, Withdrawn
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import NEVER, Offer, Rejection, Route
from orchestrator.core.order import Order, Outcome
from orchestrator.core.run import RunRecord, apply
from tests.core.runs import (
    NOW,
    OFFER,
    RUN,
    TRAITS,
    accept,
    accepted,
    assigned,
    launched,
    record,
    routed,
    running,
)

HOUR = 3600.0


def refused(found: RunRecord, trouble: Trouble = Trouble.REFUSED, now: float = NOW) -> Decision:
    """After the platform refused the launch of the prepared session."""
    assert found.session is not None
    report = Failed(Launch(found.session.order), trouble, "sources are invalid")
    return decide(found, Inputs(now, reports=(report,)))


def routed_again(found: RunRecord, offer: Offer = OFFER, *, micro_batch: int = 8) -> RunRecord:
    """The run's next assignment, once its cooldown is over."""
    return decide(found, Inputs(NOW + HOUR, route=routed(offer, micro_batch))).record


def turned_away(trouble: Trouble = Trouble.REFUSED) -> RunRecord:
    return refused(record(*launched()[:2]), trouble).record


# --- The prepared session -------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.QUOTA, Trouble.CAPACITY])
def test_a_refused_launch_keeps_what_is_prepared(trouble: Trouble) -> None:
    decision = refused(record(*launched()[:2]), trouble)
    assert [type(event) for event in decision.events][-1] is TurnedAway
    found = decision.record
    assert (found.phase, found.session, found.strays, found.fruitless) == (Phase.QUEUED, None, (), 0)
    assert found.parked == assigned().order
    assert decision.actions == (), "nothing is discarded, and its generation is still to come"


def test_the_next_try_has_the_same_name_and_prepares_the_same() -> None:
    found = routed_again(turned_away())
    assert (found.phase, found.parked, found.strays, found.generation) == (Phase.PREPARING, None, (), 1)
    (prepare,) = decide(found, Inputs(NOW + HOUR)).actions
    assert isinstance(prepare, Prepare)
    assert prepare.order == assigned().order
    prepared = apply(found, Prepared(NOW + HOUR))
    assert prepared.session is not None
    assert (prepared.session.launched_at, prepared.phase) == (None, Phase.LAUNCHING)


def elsewhere() -> RunRecord:
    return routed_again(turned_away(), replace(OFFER, platform="there"))


def smaller() -> RunRecord:
    return routed_again(turned_away(), micro_batch=4)


def further() -> RunRecord:
    return routed_again(replace(turned_away(), accepted=(accepted(500),)))


def shorter() -> RunRecord:
    """What is prepared would run longer than the platform allows now."""
    return routed_again(turned_away(), replace(OFFER, traits=replace(TRAITS, session_seconds=3000.0)))


def much_longer() -> RunRecord:
    return routed_again(turned_away(), replace(OFFER, traits=replace(TRAITS, session_seconds=6000.0)))


@pytest.mark.parametrize("other", [elsewhere, smaller, further, shorter, much_longer])
def test_a_prepared_session_that_does_not_fit_any_more_is_discarded(other) -> None:  # type: ignore[no-untyped-def]
    found = other()
    assert found.session is not None
    assert (found.session.name, found.parked) == (f"{RUN}-s02", None)
    (stray,) = found.strays
    assert (stray.session, stray.ended) == (f"{RUN}-s01", True)
    assert Discard in map(type, decide(found, Inputs(NOW + HOUR)).actions)


def budget(order: Order, seconds: float | None) -> Order:
    return replace(order, session=f"{RUN}-s02", generation=2, budget_seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "fits"),
    [(1000.0, True), (1000.0 / PARKED_BUDGET_MIN + 1.0, False), (999.0, False), (None, False)],
)
def test_a_prepared_budget_is_not_too_long_and_not_much_too_short(seconds: float | None, fits: bool) -> None:
    parked = replace(assigned().order, budget_seconds=1000.0)
    order = budget(parked, seconds)
    assert again(parked, order) == (parked if fits else order)


def test_without_budgets_a_prepared_session_fits() -> None:
    parked = replace(assigned().order, budget_seconds=None)
    assert again(parked, budget(parked, None)) == parked
    assert again(None, parked) == parked


@pytest.mark.parametrize(("wish", "phase"), [(Wish.CANCEL, Phase.CANCELLED), (Wish.HOLD, Phase.HELD)])
def test_what_is_prepared_for_nobody_is_discarded(wish: Wish, phase: Phase) -> None:
    let_go = decide(apply(turned_away(), Wished(NOW, wish)), Inputs(NOW))
    assert let_go.record.phase is phase
    assert [action.session for action in let_go.actions if isinstance(action, Discard)] == [f"{RUN}-s01"]


# --- How long its platform is left alone ----------------------------------------------------------------


def cooldowns(trouble: Trouble, times: int) -> list[float | None]:
    found, pauses, now = record(), [], NOW
    for _ in range(times):
        for event in (assigned(), Prepared(now)):
            found = apply(found, event)
        found = refused(found, trouble, now).record
        until = found.cooldowns[0].until
        pauses.append(None if until is None else until - now)
    return pauses


def test_refusals_cool_down_from_minutes_to_an_hour_and_then_a_person_must_look() -> None:
    pauses = cooldowns(Trouble.REFUSED, REFUSALS_MAX)
    assert pauses[:6] == [REFUSED_SECONDS * 2.0**n for n in range(5)] + [HOUR]
    assert set(pauses[5:-1]) == {HOUR}
    assert pauses[-1] is None
    assert sum(pause or 0.0 for pause in pauses) > 4 * HOUR


@pytest.mark.parametrize("trouble", [Trouble.QUOTA, Trouble.CAPACITY])
def test_a_place_that_is_taken_is_asked_for_again_for_ever(trouble: Trouble) -> None:
    pauses = cooldowns(trouble, 3 * REFUSALS_MAX)
    assert pauses[:3] == [CAPACITY_SECONDS, 2 * CAPACITY_SECONDS, 4 * CAPACITY_SECONDS]
    assert pauses[-1] == HOUR


def test_refusals_in_a_row_end_with_a_checkpoint_and_with_a_release() -> None:
    found = turned_away()
    assert found.cooldowns[0].refusals == 1
    for event in (*running(), accept(10)):
        found = apply(found, event)
    assert found.cooldowns == ()
    held = decide(apply(turned_away(), Wished(NOW, Wish.HOLD)), Inputs(NOW)).record
    assert apply(held, Released(NOW)).cooldowns == ()


def test_a_refusal_held_for_ten_times_says_so() -> None:
    found = turned_away()
    often = replace(found.cooldowns[0], refusals=REFUSALS_MAX - 1)
    for event in (assigned(), Prepared(NOW)):
        found = apply(found, event)
    found = refused(replace(found, cooldowns=(often,))).record
    reason = found.cooldowns[0].reason
    assert reason == "sources are invalid (10 times in a row)"
    nothing = Route(None, (), (Rejection("here", "cpu", reason, NEVER),), ())
    held = decide(found, Inputs(NOW + HOUR, route=nothing)).record
    assert (held.phase, reason in held.reason) == (Phase.HELD, True)


def test_a_platforms_own_date_counts_if_it_is_later() -> None:
    found = record(*launched()[:2])
    assert found.session is not None
    report = Failed(Launch(found.session.order), Trouble.REFUSED, "come back", until=NOW + 2 * HOUR)
    (cooldown,) = decide(found, Inputs(NOW, reports=(report,))).record.cooldowns
    assert cooldown.until == NOW + 2 * HOUR


def test_a_refused_preparation_cools_down_as_a_refused_launch_does() -> None:
    found = record(assigned())
    report = Failed(Prepare(assigned().order, frozenset(), frozenset()), Trouble.REFUSED, "403")
    decision = decide(found, Inputs(NOW, reports=(report,)))
    assert Withdrawn in map(type, decision.events)
    assert decision.record.parked is None
    (cooldown,) = decision.record.cooldowns
    assert (cooldown.until, cooldown.refusals) == (NOW + REFUSED_SECONDS, 1)


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [(Trouble.DENIED, Outcome.DENIED), (Trouble.REJECTED, Outcome.REJECTED)],
)
def test_only_a_denial_is_called_one(trouble: Trouble, outcome: Outcome) -> None:
    found = refused(record(*launched()[:2]), trouble).record
    assert found.session is not None
    assert (found.phase, found.session.outcome) == (Phase.COLLECTING, outcome)


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [(Trouble.REFUSED, Outcome.REFUSED), (Trouble.QUOTA, Outcome.QUOTA_EXHAUSTED)],
)
def test_a_refusal_of_what_may_have_been_launched_before_keeps_nothing(
    trouble: Trouble, outcome: Outcome
) -> None:
    found = refused(record(*launched()), trouble).record
    assert found.session is not None
    assert (found.parked, found.session.outcome) == (None, outcome)


def test_a_session_is_ordered_again_in_the_same_generation() -> None:
    order = routed_again(turned_away())
    assert order.session is not None
    event = Assigned(NOW, order.session.order, TRAITS, "again")
    assert apply(turned_away(), event).generation == 1
