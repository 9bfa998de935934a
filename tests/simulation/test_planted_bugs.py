"""Each checker of the simulation is proved: a bug planted in the product is caught by it, and by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import market, perform
from orchestrator.core import assign, decide, reports
from orchestrator.core.action import Done
from orchestrator.core.event import CheckpointAccepted
from orchestrator.core.run import RunRecord
from orchestrator.errors import Transient
from orchestrator.platforms.simulated import agent as simulated_agent
from tests.simulation import checks
from tests.simulation.play import play

SEEDS = 40  # a planted bug must show in one of so many worlds; `first` is where it once did
Plant = Callable[[pytest.MonkeyPatch], None]


def accepts_every_incarnation(patch: pytest.MonkeyPatch) -> None:
    def accept(draft: Any, _incarnation: str, event: CheckpointAccepted) -> None:
        known = {accepted.name for accepted in draft.record.accepted}
        if draft.session.incarnation is not None and event.checkpoint.name not in known:
            draft.emit(event)

    patch.setattr(reports, "_accept", accept)
    patch.setattr(perform, "_wanted", lambda action, ref: ref.generation == action.generation)


def accepts_before_any_start_is_known(patch: pytest.MonkeyPatch) -> None:
    def accept(draft: Any, _incarnation: str, event: CheckpointAccepted) -> None:
        known = {accepted.name for accepted in draft.record.accepted}
        if draft.session.incarnation is None and event.checkpoint.name not in known:
            draft.emit(event)

    patch.setattr(reports, "_accept", accept)


def retires_the_newest(patch: pytest.MonkeyPatch) -> None:
    real = perform._retire

    def retire(action: Any, backends: Any) -> Any:
        real(replace(action, keep=frozenset(sorted(action.keep)[:-1])), backends)
        return Done(action)

    patch.setattr(perform, "_retire", retire)


def resumes_at_the_oldest(patch: pytest.MonkeyPatch) -> None:
    def oldest(candidates: Any) -> Any:
        return min(candidates, key=lambda c: c.ref.step, default=None)

    patch.setattr(assign, "newest", oldest)


def reuses_a_generation(patch: pytest.MonkeyPatch) -> None:
    real = assign.assign

    def reuse(record: RunRecord, *rest: Any) -> Any:
        return real(replace(record, generation=max(0, record.generation - 1)), *rest)

    patch.setattr(decide, "assign", reuse)


def launches_again_after_a_lost_reply(patch: pytest.MonkeyPatch) -> None:
    real = perform._perform

    def twice(action: Any, backends: Any) -> Any:
        try:
            return real(action, backends)
        except Transient:
            return real(action, backends)

    patch.setattr(perform, "_perform", twice)


def reserves_no_quota(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(market.Market, "_less_claimed", lambda _self, offer: offer)
    patch.setattr(assign, "budget_seconds", lambda choice, *_: choice.offer.traits.session_seconds)


def leaves_strays_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "_want_of_stray", lambda _draft, _stray: None)


def forgets_the_state(patch: pytest.MonkeyPatch) -> None:
    real = simulated_agent.State.decode
    patch.setattr(simulated_agent.State, "decode", lambda data: replace(real(data), value=0))


def asks_again_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "_due", lambda draft: draft.record.until or 0.0)


def takes_any_look_for_the_last(patch: pytest.MonkeyPatch) -> None:
    real = reports._collected

    def collected(draft: Any, report: Any) -> None:
        real(draft, replace(report, action=replace(report.action, last=True)))

    patch.setattr(reports, "_collected", collected)


@pytest.mark.parametrize(
    ("plant", "check", "first"),
    [
        (accepts_every_incarnation, checks.one_incarnation_a_generation, 11),
        (accepts_before_any_start_is_known, checks.one_start_is_journalled, 18),
        (retires_the_newest, checks.accepted_checkpoints_are_kept, 0),
        (resumes_at_the_oldest, checks.resumes_at_the_newest, 2),
        (reuses_a_generation, checks.generations_only_grow, 0),
        (launches_again_after_a_lost_reply, checks.nothing_starts_twice, 3),
        (reserves_no_quota, checks.quota_is_not_overspent, 40),
        (leaves_strays_behind, checks.what_can_finish_does, 0),
        (forgets_the_state, checks.the_result_is_exact, 2),
        (takes_any_look_for_the_last, checks.the_last_look_is_after_the_end, 0),
        (asks_again_at_once, checks.the_controller_rests, 0),
    ],
)
def test_a_planted_bug_is_caught(
    plant: Plant, check: checks.Check, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    caught = any(play(seed, [check], hours=4) for seed in range(first, first + SEEDS))
    assert caught, f"{check.__name__} caught nothing"
