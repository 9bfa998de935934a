"""`quota` as a user sees it: in a world with a real ledger and platforms whose true use is known."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Client
from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import Output
from orchestrator.cli.quota import tell
from orchestrator.core.event import Submitted
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase
from orchestrator.core.wording import span
from orchestrator.ledger import Ledger
from orchestrator.platforms.simulated import Faults
from tests.cli.calls import Caller
from tests.client.test_quota import HOUR, WEEK, look
from tests.core.runs import NOW, job
from tests.test_engine import Make, Small, scenario, small

__all__ = ["small"]

SIMULATED = """
platforms:
  here: {{type: process}}
  cloud: {{type: simulated, quota: {{allowed_seconds: 108000, window_seconds: 604800}},
          offers: [{{accelerator: cpu, memory_gb: 64, disk_gb: 100, session_seconds: 7200}}],
          faults: {faults}}}
"""


def said(world: Small, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    call = Call(argparse.Namespace(), Client(Path("home"), clock=world.clock), Output(as_json=False))
    code = tell(call, look(world))
    return code, capsys.readouterr().out


def test_what_runs_and_what_waits_is_told(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    world = small(cloud=scenario(quota=WEEK))
    world.submit("first", work=Work(total=8000, global_batch=16))
    assert world.until(lambda: bool(world.record("first").accepted))
    world.submit("second")
    [pool] = look(world).pools
    [running], [planned] = pool.running, pool.planned
    session = world.record("first").session
    assert session is not None
    assert (running.session, running.budget_seconds) == (session.name, session.order.budget_seconds)
    assert planned.run == "second"
    assert planned.quota_seconds is None, "the only slot is taken"
    assert pool.free_seconds < pool.quota.left_seconds
    code, text = said(world, capsys)
    assert code == Exit.OK
    assert "first-s01" in text
    assert "waits: no free slot" in text
    assert "UNSAVED" in text


def test_what_others_used_is_told_apart(small: Make, capsys: pytest.CaptureFixture[str]) -> None:
    world = small(cloud=scenario(quota=WEEK, faults=Faults(quota_used_elsewhere=1.0)))
    world.clock.advance(HOUR)
    code, text = said(world, capsys)
    assert code == Exit.OK
    assert "60 min: 0 s by our runs, 60 min by others" in text
    assert "refreshes 20" in text
    [pool] = look(world).pools
    assert pool.balance.others == pytest.approx(HOUR)


def test_a_balance_of_units_is_told_in_units_and_in_hours(
    small: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    t4, a100 = (
        replace(scenario(name).offers[0], units_per_hour=rate) for name, rate in (("T4", 1.5), ("A100", 12))
    )
    world = small(cloud=scenario(offers=(t4, a100), quota=replace(WEEK, allowed_seconds=6.0)))
    world.submit("first", work=Work(total=8000, global_batch=16), profiles=(("T4", job().profiles[0][1]),))
    assert world.until(world.phase("first", Phase.DONE))
    world.clock.advance(HOUR)
    code, text = said(world, capsys)
    [pool] = look(world).pools
    assert code == Exit.OK
    assert "allowed  6 units" in text
    assert "all by our runs" in text
    assert f"{span(pool.units_left / 1.5 * HOUR)} on T4, at 1.5 an hour" in text
    assert f"{span(pool.units_left / 12 * HOUR)} on A100, at 12 an hour" in text
    [used] = pool.runs
    assert used.units == pytest.approx(used.seconds / HOUR * 1.5)
    assert pool.units_left == pytest.approx(6.0 - used.units, abs=0.05)


def test_two_pools_of_one_platform_and_one_without_are_kept_apart(
    small: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    world = small(box=scenario(), cloud=scenario(quota=WEEK), other=scenario(quota=WEEK))
    assert [pool.platform for pool in look(world).pools] == ["cloud", "other"]
    _, text = said(world, capsys)
    assert "box" not in text


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
    assert "cloud: no answer, so its quota is unknown" in answer.out
    assert words in answer.out
    assert user("quota", "--json", code=code).json["no_answer"][0]["platform"] == "cloud"
