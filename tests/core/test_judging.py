"""What the router knows of a run beyond its job: its home store, and the platforms that it may use."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.job import RouteWish
from orchestrator.core.offer import NEVER, Rejection, Unavailable, UntilKind, until_time
from orchestrator.core.route import Case, Verdict, judge, verdict
from tests.core.runs import NOW, OFFER, record

THERE = replace(OFFER, platform="there")
WHY = "only this machine can open it"
CASE = Case((OFFER, THERE), unreachable=(("there", "folder", WHY), ("there", "", WHY)))


def test_a_platform_that_does_not_reach_the_runs_own_home_store_is_closed() -> None:
    for store, chosen in (("folder", {"here"}), ("", {"here"}), ("bucket", {"here", "there"})):
        found = judge(replace(record(), store=store), CASE, NOW)
        assert found.chosen is not None
        assert {each.offer.platform for each in (found.chosen, *found.others)} == chosen, store
    alone = judge(record(), replace(CASE, offers=(THERE,)), NOW)
    assert [(each.reason, each.until.kind) for each in alone.rejections] == [(WHY, UntilKind.HUMAN)]
    assert verdict(alone) is Verdict.HUMAN


def test_what_can_never_run_there_is_said_before_the_store() -> None:
    never = replace(THERE, unavailable=Unavailable("the account may not use it", NEVER))
    [found] = judge(record(), replace(CASE, offers=(never,)), NOW).rejections
    assert found.reason == "the account may not use it"


def test_a_platform_that_does_not_answer_is_named_only_to_jobs_that_may_use_it() -> None:
    silent = Rejection("there", "any", "no answer", until_time(NOW + 60))
    case = Case((OFFER,), silent=(silent,))
    assert silent in judge(record(), case, NOW).rejections
    assert silent not in judge(record(route=RouteWish(platforms=("here",))), case, NOW).rejections
