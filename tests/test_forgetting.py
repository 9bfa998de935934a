"""The ledger after its old histories went: what is left of a run, and how large the ledger stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tick import job
from orchestrator import Client
from orchestrator.core.event import Cancelled, Noted, Submitted
from orchestrator.ledger import Ledger, forgetting

DAY = 86_400.0


def add(ledger: Ledger, run: str, at: float, events: int = 20) -> None:
    record = ledger.submit(Submitted(run, job(1), at))
    for number in range(events):
        record = ledger.append(record, [Noted(at, f"{run} {number} " + "x" * 500)], due_at=None)
    ledger.append(record, [Cancelled(at + 60.0)], due_at=None)


def test_only_the_middle_of_runs_that_are_over_goes(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        add(ledger, "over-1", 1.0)
        alive = ledger.submit(Submitted("alive-1", job(1), 1.0))
        alive = ledger.append(alive, [Noted(2.0, "one")], due_at=None)
        ledger.append(alive, [Noted(3.0, "two")], due_at=None)
        before = ledger.record("over-1")
        names = ["over-1", "alive-1", "nobody"]
        assert forgetting.forgettable(ledger, names) == {"over-1": 20}
        assert forgetting.forget(ledger, names, lambda: False, lambda _: None) == 20
        assert forgetting.compact(ledger)
        assert [stored.seq for stored in ledger.history("over-1")] == [1, 22]
        assert ledger.record("over-1") == before
        assert len(ledger.history("alive-1")) == 3
        assert forgetting.forgettable(ledger, names) == {}, "a second time there is nothing to do"


def test_the_ledger_stays_flat_over_months_of_nights(tmp_path: Path) -> None:
    """A run each night, and each month a prune that keeps 30 days: what is over takes its record only."""
    sizes = []
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        for night in range(120):
            add(ledger, f"nightly-{night:08d}", night * DAY, events=6)
            if night % 30 == 29:
                ended = {each.run: each.ended_at or 0.0 for each in ledger.summaries()}
                old = [run for run, at in ended.items() if at < (night - 30) * DAY]
                forgetting.forget(ledger, old, lambda: False, lambda _: None)
                assert forgetting.compact(ledger)
                sizes.append(ledger.size())
    growth = (sizes[-1] - sizes[1]) / 60
    assert growth < 6_000, "of a run that is over: its record and two events"


def test_prune_history_shows_asks_and_removes(tmp_path: Path) -> None:
    client = Client(tmp_path)
    (tmp_path / "config.yaml").write_text("timezone: UTC\n")
    with client.ledgers.made() as ledger:
        add(ledger, "long-ago-1", client.clock.now() - 40 * DAY)
        add(ledger, "lately-1", client.clock.now() - DAY)
    assert not client.prune_plan().histories
    plan = client.prune_plan(history=True)
    assert dict(plan.histories) == {"long-ago-1": 20}
    assert [row.count for row in plan.goes if row.what == "events"] == [20]
    pruned = client.prune(plan)
    assert not pruned.troubles
    assert pruned.freed > 0
    assert len(client.run("long-ago-1").history()) == 2
    assert len(client.run("lately-1").history()) == 22


@pytest.mark.parametrize("limit", [1, 3])
def test_pages_of_runs_follow_each_other(tmp_path: Path, limit: int) -> None:
    client = Client(tmp_path)
    with client.ledgers.made() as ledger:
        for number in range(7):
            ledger.submit(Submitted(f"run-{number:08d}", job(1), float(number // 2)))
    every = [each.run for each in client.runs()]
    found: list[str] = []
    while page := client.runs(limit=limit, after=found[-1] if found else None):
        found += [each.run for each in page]
    assert found == every
