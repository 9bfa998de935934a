"""One process's turns of control: when it leaves, and what it survives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client.config_changes import ConfigChanges
from orchestrator.client.in_control import InControl
from orchestrator.core.run import RunRecord
from orchestrator.errors import Transient
from orchestrator.ledger import Ledger


class Away(Ledger):
    """Does not answer at first, as a server that restarts. `shared`: what it says of itself."""

    failures = early_failures = 0
    shared = False

    @property
    def is_shared(self) -> bool:
        return self.shared

    def alike(self) -> str:
        if self.early_failures > 0:
            self.early_failures -= 1
            raise Transient("the server closed the connection", backend="ledger", operation="read")
        return super().alike()

    def live(self) -> tuple[RunRecord, ...]:
        if self.failures > 0:
            self.failures -= 1
            raise Transient("the server closed the connection", backend="ledger", operation="read")
        return super().live()


@dataclass
class Bench:
    """A home whose controller is this process, until it has taken over so often."""

    client: Client
    ledger: Away
    said: list[str] = field(default_factory=list)

    def run(self, turns_max: int, *, until_idle: bool = False, standby: bool = False) -> None:
        home, clock = self.client.home, self.client.clock
        wired = self.client.wired()
        changes = ConfigChanges(home, wired.config, clock, self.said.append)
        InControl(
            home, clock, wired, self.ledger, changes, lambda: self.turns >= turns_max,
            lambda _record, _event: None, self.said.append, self.said.append,
        ).run(until_idle=until_idle, standby=standby)  # fmt: skip

    @property
    def turns(self) -> int:
        return sum("has taken over" in each for each in self.said)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    client = Client(tmp_path)
    with Away.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        yield Bench(client, ledger)


def test_nobody_stays_for_a_schedule_that_cannot_be_read(bench: Bench) -> None:
    with bench.ledger._database.write() as connection:
        connection.exec_driver_sql("INSERT INTO schedules VALUES ('newer', 1, 0, FALSE, 0, NULL, '{}')")
    bench.run(2, until_idle=True)
    assert bench.turns == 1, "it leaves when it is idle, and takes over no more"
    assert any("newer cannot be read" in each for each in bench.said)


def test_a_standby_outlasts_a_server_that_goes_away_as_it_takes_over(bench: Bench) -> None:
    bench.ledger.failures = 1
    bench.run(2, standby=True)
    assert bench.turns == 2
    [told] = [each for each in bench.said if "does not answer" in each]
    assert told.startswith("the ledger does not answer; standing by again: the server closed")


@pytest.mark.parametrize(("standby", "who"), [(False, "controller"), (True, "standby")])
def test_one_that_is_stopped_before_its_turn_leaves_as_what_it_is(
    bench: Bench, standby: bool, who: str
) -> None:
    bench.run(0, standby=standby)
    assert bench.said[-1] == f"{who} {os.getpid()} leaves"


def test_a_standby_outlasts_a_server_that_goes_away_before_its_turn(bench: Bench) -> None:
    bench.ledger.shared, bench.ledger.early_failures = True, 2
    bench.run(1, standby=True)
    assert bench.turns == 1
    told = [each for each in bench.said if "does not answer" in each]
    assert "standing by; the ledger does not answer, trying again: the server closed" in told[0]


def test_a_controller_that_does_not_stand_by_tells_it(bench: Bench) -> None:
    bench.ledger.failures = 1
    with pytest.raises(Transient):
        bench.run(2)
