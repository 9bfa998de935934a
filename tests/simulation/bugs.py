"""Bugs to plant in the product, each as somebody might write it; the checks must find them.

Every bug patches one place. tests/simulation/test_planted_bugs.py says which check catches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.client.adopting import Adopting
from orchestrator.core import (
    assign,
    charges,
    checkpoint,
    claims,
    closing,
    decide,
    ending,
    event,
    notice,
    reports,
    route,
    run,
    watch,
)
from orchestrator.core.action import Done
from orchestrator.core.checkpoint import Accepted
from orchestrator.core.event import CheckpointAccepted, Ended, Requeued
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.engine import collecting, engine, market, ownership, perform, tracking
from orchestrator.errors import LedgerConflict, Transient
from orchestrator.ledger.ledger import Ledger, _draft
from orchestrator.platforms.simulated import agent as simulated_agent

Plant = Callable[[pytest.MonkeyPatch], None]


def accepts_every_incarnation(patch: pytest.MonkeyPatch) -> None:
    def accept(draft: Any, found: Accepted) -> None:
        known = {accepted.name for accepted in draft.record.accepted}
        if draft.session.incarnation is not None and found.name not in known:
            draft.emit(CheckpointAccepted(draft.now, found))

    patch.setattr(reports, "_accept", accept)
    patch.setattr(collecting, "_wanted", lambda action, ref: ref.generation == action.generation)


def accepts_before_any_start_is_known(patch: pytest.MonkeyPatch) -> None:
    def accept(draft: Any, found: Accepted) -> None:
        known = {accepted.name for accepted in draft.record.accepted}
        if draft.session.incarnation is None and found.name not in known:
            draft.emit(CheckpointAccepted(draft.now, found))

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
    real = claims.less
    patch.setattr(market, "less", lambda offers, _taken, now: real(offers, (), now))
    patch.setattr(assign, "budget_seconds", lambda choice, *_: choice.offer.traits.session_seconds)


def counts_the_wall_from_the_launch(patch: pytest.MonkeyPatch) -> None:
    real = ending.ending

    def ended(session: Any, seen: Any, now: float, **more: Any) -> Ended | None:
        since_the_launch = seen.running_seconds + seen.pending_seconds
        return real(session, replace(seen, running_seconds=since_the_launch), now, **more)

    patch.setattr(decide, "ending", ended)


def charges_from_the_launch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charges._SessionHistory, "runs_since", property(lambda session: session.launched_at))


def claims_from_the_launch(patch: pytest.MonkeyPatch) -> None:
    real = claims.claim_of

    def claim_of(session: Any, as_of: Any) -> claims.Claim:
        return real(replace(session, began_at=session.launched_at), as_of)

    for module in (claims, market):
        patch.setattr(module, "claim_of", claim_of)


def leaves_strays_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "_want_of_stray", lambda _draft, _stray: None)


def tells_of_a_run_once_for_each_kind(patch: pytest.MonkeyPatch) -> None:
    real = notice.addressed
    patch.setattr(notice, "addressed", lambda told, targets, own, *key: real(told, targets, own, key[0]))


def tells_before_it_is_journalled(patch: pytest.MonkeyPatch) -> None:
    real = Ledger.append_many

    def append_many(self: Any, proposals: Any, **options: Any) -> Any:
        for proposal in proposals:
            self.notifications.post(_draft(proposal, self.notices).outgoing)
        return real(self, proposals, **options)

    patch.setattr(Ledger, "append_many", append_many)


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


# --- The fourteen that slipped by in a review, and their like ----------------------------------------------


def writes_the_manifest_before_its_blobs(patch: pytest.MonkeyPatch) -> None:
    agent = simulated_agent.SimulatedAgent
    first, last = agent._write_first, agent._write_last
    patch.setattr(agent, "_write_first", last)
    patch.setattr(agent, "_write_last", first)


def drops_reports_on_a_conflict(patch: pytest.MonkeyPatch) -> None:
    real = engine.Engine._commit

    def commit(self: Any, decisions: Any) -> None:
        append = self._ledger.append_many

        def dropping(proposals: Any, **options: Any) -> Any:
            answers = append(proposals, **options)
            for (record, *_), answer in zip([d for d in decisions if d[2].events], answers, strict=True):
                if isinstance(answer, LedgerConflict) and record.run in self._tracked:
                    self._tracked[record.run].reports = []
            return answers

        patch.setattr(self._ledger, "append_many", dropping)
        try:
            real(self, decisions)
        finally:
            patch.setattr(self._ledger, "append_many", append)

    patch.setattr(engine.Engine, "_commit", commit)


def takes_a_launch_never_seen_for_ended(patch: pytest.MonkeyPatch) -> None:
    real = ending.ending

    def sure(session: Any, seen: Any, now: float, **more: Any) -> Ended | None:
        ended = real(session, seen, now, **more)
        return replace(ended, confirmed=True) if ended and ended.outcome is Outcome.NO_CAPACITY else ended

    patch.setattr(decide, "ending", sure)


def frees_the_slot_of_a_stray(patch: pytest.MonkeyPatch) -> None:
    real = claims.claims

    def without_strays(records: Iterable[RunRecord], *others: Any) -> tuple[claims.Claim, ...]:
        return real((replace(record, strays=()) for record in records), *others)

    stays = market._stays

    def stays_without_strays(records: Iterable[RunRecord], now: float) -> Any:
        return stays((replace(record, strays=()) for record in records), now)

    patch.setattr(market, "claims", without_strays)
    patch.setattr(market, "_stays", stays_without_strays)


def forgets_a_cancel_at_the_end_of_a_session(patch: pytest.MonkeyPatch) -> None:
    _forgets(patch, Wish.CANCEL)


def forgets_a_hold_at_the_end_of_a_session(patch: pytest.MonkeyPatch) -> None:
    _forgets(patch, Wish.HOLD)


def _forgets(patch: pytest.MonkeyPatch, wish: Wish) -> None:
    real = closing.closing

    def forgetful(record: RunRecord, now: float) -> Any:
        return real(replace(record, wish=None) if record.wish is wish else record, now)

    patch.setattr(reports, "closing", forgetful)


def forgets_a_smaller_micro_batch_over_a_hop(patch: pytest.MonkeyPatch) -> None:
    real = run._closed

    def closed(record: RunRecord, event: Any) -> RunRecord:
        after = real(record, event)
        if isinstance(event, Requeued) and event.micro_batch_cap:
            return replace(after, micro_batch_caps=(event.micro_batch_cap,))
        return after

    patch.setattr(run, "_closed", closed)


def forgets_a_smaller_micro_batch_at_a_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(closing, "Held", lambda now, reason, **_: event.Held(now, reason))


def deletes_the_parent_of_a_live_session(patch: pytest.MonkeyPatch) -> None:
    real = checkpoint.superseded
    patch.setattr(decide, "superseded", lambda found, **rest: real(found, **(rest | {"pinned": frozenset()})))


def counts_sleep_as_absence(patch: pytest.MonkeyPatch) -> None:
    real = watch.Watch.see
    patch.setattr(watch.Watch, "see", lambda self, seen, at, _poll: real(self, seen, at, 1e9))


def believes_one_odd_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(watch, "READINGS_MIN", 1)
    patch.setattr(watch.Watch, "absent_for", lambda self, _seconds: self.absent_readings >= 1)


def discards_without_asking_whether_it_lives(patch: pytest.MonkeyPatch) -> None:
    real = decide._want_of_stray
    patch.setattr(decide, "_want_of_stray", lambda draft, stray: real(draft, replace(stray, ended=True)))


def stops_what_cannot_save(patch: pytest.MonkeyPatch) -> None:
    real = decide._grant_wish

    def grant(draft: Any) -> None:
        before, session = draft.record, draft.record.session
        if before.wish and session and before.phase in (Phase.LAUNCHING, Phase.RUNNING):
            traits = replace(session.traits, durable_mid_run=True)
            draft.record = replace(before, session=replace(session, traits=traits))
        real(draft)

    patch.setattr(decide, "_grant_wish", grant)


def waits_no_longer_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    real = decide._take_route

    def take(draft: Any) -> None:
        if not draft.record.deferred:
            draft.record = replace(draft.record, until=None)
        real(draft)

    patch.setattr(decide, "_take_route", take)


def ignores_a_cooldown(patch: pytest.MonkeyPatch) -> None:
    real = route.judge
    patch.setattr(market, "judge", lambda record, *rest: real(replace(record, cooldowns=()), *rest))


def removes_what_is_handed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "_may_be_read", lambda _draft: False)


def launches_what_may_have_been_launched(patch: pytest.MonkeyPatch) -> None:
    real = tracking.Tracked.__init__

    def forgetful(self: Any, record: RunRecord, at: float, launch_unknown: bool = False) -> None:
        del launch_unknown
        real(self, record, at)

    patch.setattr(tracking.Tracked, "__init__", forgetful)


def acts_before_it_journals(patch: pytest.MonkeyPatch) -> None:
    real = engine.Engine._commit

    def commit(self: Any, decisions: Any) -> None:
        for record, _inputs, decision in decisions:
            if record.run in self._tracked:
                for action in decision.actions:
                    self._start(record, action)
        real(self, [(r, i, replace(d, actions=())) for r, i, d in decisions])

    patch.setattr(engine.Engine, "_commit", commit)
    patch.setattr(tracking.Tracked, "finished", _finished)


def _finished(self: Any, report: Any) -> None:
    self.reports.append(report)
    self._touched = True


# --- Late output, lies and refusals -------------------------------------------------------------------------


def forgets_that_it_was_seen(patch: pytest.MonkeyPatch) -> None:
    real = ending.ending

    def hasty(session: Any, *rest: Any, **more: Any) -> Ended | None:
        return real(replace(session, traits=replace(session.traits, absence_seconds=0.0)), *rest, **more)

    patch.setattr(decide, "ending", hasty)


def takes_any_release_for_consent(patch: pytest.MonkeyPatch) -> None:
    real = run._wished

    def wished(record: RunRecord, event: Any) -> RunRecord:
        releases = event.wish is Wish.RELEASE and record.awaits is not None
        return replace(real(record, event), forgone=record.forgone or releases)

    patch.setattr(run, "_wished", wished)


def believes_that_nothing_was_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "doubtful", lambda _session: False)


def looks_no_more_once_it_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunRecord, "stands", property(lambda record: bool(record.fault)))


def asks_a_person_about_a_glitch(patch: pytest.MonkeyPatch) -> None:
    real = ending.overdue

    def impatient(session: Any, seen: Any) -> Any:
        traits = replace(session.traits, saving_seconds_max=session.traits.saving_seconds_max / 5)
        return real(replace(session, traits=traits), seen)

    patch.setattr(decide, "overdue", impatient)


def asks_a_person_about_the_third_refusal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(closing, "REFUSALS_MAX", 3)


def makes_anew_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "again", lambda _parked, order: order)


def fails_a_run_for_what_platforms_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(closing, "PLATFORMS_DOING", frozenset())


def decides_by_what_is_not_journalled(patch: pytest.MonkeyPatch) -> None:
    real = market.Market.judged

    def judged(self: Any, record: RunRecord, case: Any) -> Any:
        return real(self, record, replace(case, offers=case.offers[:1]))

    patch.setattr(market.Market, "judged", judged)


def counts_sessions_that_ended_for_ever(patch: pytest.MonkeyPatch) -> None:
    real = market.Market._subtract

    def subtract(self: Any) -> None:
        real(self)
        ever = self.__dict__.setdefault("ever", {})
        ever |= {claim.session: (claim.platform, claim.accelerator) for claim in self._claims}
        self._used = Counter(ever.values())

    patch.setattr(market.Market, "_subtract", subtract)


def reads_no_token_at_publication(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ownership.InCharge, "_look", lambda _self, _name: None)


def draws_no_token_at_its_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ownership, "secrets", SimpleNamespace(token_hex=lambda _bytes: "0" * 16))


def adopts_nothing_that_the_store_has(patch: pytest.MonkeyPatch) -> None:
    def revive(_self: Any, record: RunRecord, ledger: Ledger, why: str) -> Any:
        return Adopting.without_store(record, ledger, _self.client.clock.now(), "", why)

    patch.setattr(Adopting, "revive", revive)


def deletes_without_asking_whose_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ownership.InCharge, "check", lambda _self, _name: None)
    patch.setattr(ownership.InCharge, "check_run", lambda *_: None)
    patch.setattr(ownership.InCharge, "falls_behind", lambda *_: None)
    patch.setattr(ownership.InCharge, "made", lambda *_: ownership._Everything())
