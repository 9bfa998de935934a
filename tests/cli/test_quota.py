"""`quota` as a user sees it: of a world with a real ledger and platforms whose true use is known."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Client
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import Output
from orchestrator.cli.quota import Pool, pools, tell
from orchestrator.core.event import Submitted
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase
from orchestrator.engine.market import Market, Surveyed, survey
from orchestrator.ledger import Ledger
from orchestrator.platforms.simulated import Faults, QuotaWindow
from tests.cli.calls import Caller
from tests.core.runs import NOW, job
from tests.test_engine import Make, Small, scenario, small

__all__ = ["small"]

HOUR = 3600.0
WEEK = QuotaWindow(allowed_seconds=2 * HOUR, window_seconds=168 * HOUR)
SIMULATED = """
platforms:
  here: {{type: process}}
  cloud: {{type: simulated, quota: {{allowed_seconds: 108000, window_seconds: 604800}},
          offers: [{{accelerator: cpu, memory_gb: 64, disk_gb: 100, session_seconds: 7200}}],
          faults: {faults}}}
"""


def look(world: Small) -> tuple[list[Surveyed], tuple[Pool, ...]]:
    answers = [survey(name, platform) for name, platform in world.platforms.items()]
    return answers, pools(answers, Market(tuple(world.platforms)), world.ledger, world.clock.now())


def said(world: Small, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    call = Call(argparse.Namespace(), Client(Path("home"), clock=world.clock), Output(as_json=False))
    code = tell(call, *look(world))
    return code, capsys.readouterr().out


def test_our_count_is_what_the_platform_counts(small: Make) -> None:
    world = small(cloud=scenario(quota=WEEK, pending_seconds=0.0))
    world.submit("first", work=Work(total=8000, global_batch=16))
    assert world.until(world.phase("first", Phase.DONE))
    _, [pool] = look(world)
    [used] = pool.runs
    [truth] = world.platforms["cloud"].history.quota_used.values()
    assert used.sessions == len(world.platforms["cloud"].history.launches)
    assert used.seconds == pytest.approx(truth, abs=20.0 * used.sessions)
    assert pool.balance.used == pytest.approx(truth)
    assert used.spent.useful > 0.95 * used.seconds
    assert used.spent.redone == used.spent.open == 0
    assert not pool.running
    assert not pool.planned


def test_what_runs_and_what_waits_is_told(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    world = small(cloud=scenario(quota=WEEK))
    world.submit("first", work=Work(total=8000, global_batch=16))
    assert world.until(lambda: bool(world.record("first").accepted))
    world.submit("second")
    _, [pool] = look(world)
    [running], [planned] = pool.running, pool.planned
    session = world.record("first").session
    assert session is not None
    assert (running.session, running.budget_seconds) == (session.name, session.order.budget_seconds)
    assert planned.run == "second"
    assert planned.quota_seconds is None, "the one slot is taken"
    assert pool.free_seconds < pool.quota.left_seconds
    code, text = said(world, capsys)
    assert code == Exit.OK
    assert "first-s01" in text
    assert "waits: no free slot" in text
    assert "UNSAVED" in text


def test_a_queued_run_is_planned_with_its_quota(small: Make) -> None:
    world = small(cloud=scenario(slots=2, quota=replace(WEEK, allowed_seconds=1805.0)))
    for run in ("first", "second"):
        world.submit(run, work=Work(total=8000, global_batch=16))
        world.clock.advance(1.0)
    _, [pool] = look(world)
    first, second = pool.planned
    assert first.run == "first"
    assert first.quota_seconds is not None
    assert first.quota_seconds > 8000 / 5.0, "a set-up and a save come on top"
    assert (second.run, second.quota_seconds) == ("second", None), "the first takes what there is"
    assert second.at == pool.quota.refresh_at


def test_what_others_used_is_told_apart(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    world = small(cloud=scenario(quota=WEEK, faults=Faults(quota_used_elsewhere=1.0)))
    world.clock.advance(HOUR)
    code, text = said(world, capsys)
    assert code == Exit.OK
    assert "60 min: 0 s by our runs, 60 min by others" in text
    assert "refreshed 20" in text
    _, [pool] = look(world)
    assert pool.balance.others == pytest.approx(HOUR)


def test_two_pools_of_one_platform_and_one_without_are_kept_apart(
    small: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    world = small(box=scenario(), cloud=scenario(quota=WEEK), other=scenario(quota=WEEK))
    _, found = look(world)
    assert [pool.platform for pool in found] == ["cloud", "other"]
    _, text = said(world, capsys)
    assert "box" not in text


def test_a_window_that_was_refreshed_holds_only_what_came_after(small: Make) -> None:
    world = small(cloud=scenario(quota=QuotaWindow(2 * HOUR, 4 * HOUR)))
    world.submit("first")
    assert world.until(world.phase("first", Phase.DONE))
    world.clock.advance(4 * HOUR)
    _, [pool] = look(world)
    assert pool.runs == ()
    assert pool.balance.used == 0


# --- The command ----------------------------------------------------------------------------------------


def test_without_any_quota_it_says_so(user: Caller) -> None:
    assert user("quota").out == user("quota", "here").out == "here has no quota\n"
    assert user("quota", "--json").json == {"quotas": [], "without_quota": ["here"], "no_answer": []}
    assert "did you mean 'here'" in user("quota", "hear", code=2).err


def test_it_needs_no_controller_and_tells_of_queued_runs(user: Caller) -> None:
    user.config(SIMULATED.format(faults="{}"))
    with Ledger.open(f"sqlite:///{user.home / 'ledger.sqlite'}") as ledger:
        route = replace(job().route, platforms=("cloud",))
        ledger.submit(Submitted("tiny-abcdefgh", job(route=route), NOW))
    answer = user("quota")
    assert user.owner() is None
    assert "allowed  30.0 h" in answer.out
    assert "tiny-abcdefgh" in answer.out
    document: Any = user("quota", "cloud", "--json").json
    [found] = document["quotas"]
    assert (found["platform"], found["accelerators"]) == ("cloud", ["cpu"])
    assert found["planned"][0]["quota_seconds"] > 0
    assert user("quota", "here").out == "here has no quota\n"


@pytest.mark.parametrize(
    ("faults", "code", "words"),
    [
        ("{outages_per_hour: 1.0e+9, outage_seconds: 1.0e+9}", 4, "503"),
        ("{denials_per_hour: 1.0e+9, denial_seconds: 1.0e+9}", 3, "doctor cloud"),
    ],
    ids=["outage", "denied"],
)
def test_a_platform_that_does_not_answer_is_said_so(user: Caller, faults: str, code: int, words: str) -> None:
    user.config(SIMULATED.format(faults=faults))
    answer = user("quota", code=code)
    assert "cloud: no answer, so its quota is not known" in answer.out
    assert words in answer.out
    assert user("quota", "--json", code=code).json["no_answer"][0]["platform"] == "cloud"
