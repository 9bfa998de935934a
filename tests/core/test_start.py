"""A run that waits for a person to start a machine: what it says."""

from __future__ import annotations

from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import NEVER, SLOT, Rejection, Route, until_human, until_start
from tests.core.runs import record
from tests.core.test_decide import decided

CLOSED = Rejection("b", "T4", "waiting for the notebook", until_start("open it"))
DENIED = Rejection("c", "T4", "no credentials", until_human("log in"))
FULL = Rejection("a", "T4", "full", SLOT)


def routed(*rejections: Rejection) -> Route:
    return Route(None, (), rejections, ())


def test_it_is_queued_and_not_held() -> None:
    decision = decided(record(), route=routed(DENIED, CLOSED))
    assert decision.record.phase is Phase.QUEUED
    assert decision.due_at is None


def test_what_a_person_could_start_is_told_first_and_anew_once_it_changes() -> None:
    told = decided(record(), route=routed(FULL, CLOSED)).record
    assert told.reason.startswith("b/T4: waiting for the notebook; ")
    assert decided(told, route=routed(FULL, CLOSED)).events == ()
    assert decided(told, route=routed(FULL)).record.reason == "a/T4: full"


def test_a_run_that_waits_does_not_tell_every_offer_that_can_never_run_it() -> None:
    unfit = [Rejection("d", name, "the job has no profile for it", NEVER) for name in ("T4", "P100")]
    told = decided(record(), route=routed(FULL, *unfit)).record.reason
    assert told == "a/T4: full; 2 other offers can never run it"
    told = decided(record(), route=routed(*unfit)).record.reason
    assert "d/T4: the job has no profile for it; d/P100: the job has no profile for it" in told
