"""Two controllers on one PostgreSQL: what one was doing, the other one goes on with."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import yaml

from orchestrator import Client
from orchestrator.client.health import State
from orchestrator.core.event import Assigned, CheckpointAccepted, Ended
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.ledger import Ledger
from orchestrator.session.folder import SessionFolder
from tests import postgresql
from tests.end_to_end import handover
from tests.end_to_end.handover import TAKEN_SECONDS_MAX, Loss, Machine, World
from tests.end_to_end.user import QUICK, SOURCE, wait_until

pytestmark = pytest.mark.skipif(postgresql.binaries() is None, reason=postgresql.MISSING)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with handover.world(tmp_path) as made:
        yield made


@pytest.mark.soak
def test_controllers_that_are_lost_in_turn_double_nothing(world: World) -> None:
    """A share of `python -m tests.end_to_end.handover`: one loss of each kind."""
    handover.play(world, list(Loss), Random(15))
    assert [loss for loss, _ in world.taken] == list(Loss)


@pytest.mark.soak
def test_thirty_losses_double_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    random = Random()
    handover.play(world, [random.choice(list(Loss)) for _ in range(30)], random)
    slowest = max(seconds for _, seconds in world.taken)
    with capsys.disabled():
        print(f"slowest of {len(world.taken)} takeovers: {slowest:.1f} s")  # noqa: T201
    assert slowest < TAKEN_SECONDS_MAX


@contextmanager
def two_homes(folder: Path, server: postgresql.Server) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with a store that both see, and a platform of their own each, of the same name."""
    machines, url = [], server.new_schema("two")
    for name in ("first", "second"):
        home = folder / name
        home.mkdir()
        config = {
            "database": url,
            "platforms": {"here": {**QUICK, "setup_seconds": 0.0}},
            "stores": {"both": {"type": "folder", "path": str(folder / "store")}},
            "home_store": "both",
        }
        (home / "config.yaml").write_text(yaml.safe_dump(config))
        machines.append(Machine(home, folder / f"{name}.log"))
    first, second = machines
    try:
        yield first, second
    finally:
        for each in (first, second):
            each.end()
        handover.end_agents(folder)


def wait_for(client: Client, run: str, condition: Callable[[RunRecord], object], what: str) -> None:
    with Ledger.open(client.home.database()) as ledger:
        wait_until(lambda: condition(ledger.record(run)), lambda: f"{what}: {ledger.record(run)}")


def test_a_second_machine_goes_on_with_what_the_first_submitted(
    postgresql: postgresql.Server, tmp_path: Path
) -> None:
    """It has neither the first one's home nor its sessions: the source, an input and the checkpoint come from
    the store. A session that it does not reach is given up, and what that does later is not used."""
    data = tmp_path / "data.txt"
    data.write_text("42")
    job = tmp_path / "job.yaml"
    spec = {
        "name": "moves",
        "source": str(SOURCE),
        "command": f"python started.py {{steps}} 0.25 {tmp_path / 'starts'}",
        "work": {"total": 400, "global_batch": 8},
        "profiles": {"cpu": {"micro_batch": 8, "precision": "fp32"}},
        "checkpoint": {"interval": "1s", "keep": {"last": 3}},
        "inputs": [{"name": "data", "from": str(data)}],
    }
    job.write_text(yaml.safe_dump(spec))
    with two_homes(tmp_path, postgresql) as (first, second):
        here, there = Client(first.home), Client(second.home)
        first.start()  # nobody else controls, so it does at once
        wait_until(lambda: here.health().state is State.TICKS, lambda: first.log.read_text())
        run = here.submit(job).run.name
        wait_for(here, run, lambda record: record.accepted, "a checkpoint")
        second.start()
        wait_until(lambda: len(there.health().standbys) == 1, lambda: second.log.read_text())
        assert there.health().state is State.WAITS
        data.unlink()
        first.signal(signal.SIGTERM)  # its session goes on
        wait_for(here, run, lambda record: record.generation == 2 and record.phase is Phase.RUNNING, "s02")
        wait_for(
            here, run, lambda record: any(each.ref.generation == 2 for each in record.accepted), "its own"
        )
        with Ledger.open(here.home.database()) as ledger:
            events = [stored.event for stored in ledger.history(run)]
        [lost] = [event for event in events if isinstance(event, Ended)]
        assert lost.outcome is Outcome.LOST
        assert "out of reach on here of" in lost.message
        resumed = [event.order for event in events if isinstance(event, Assigned)][1].resume_step
        accepted = [event.checkpoint.ref for event in events if isinstance(event, CheckpointAccepted)]
        assert resumed == max(ref.step for ref in accepted if ref.generation == 1)
        first.start()  # as a standby now, which frees its machine
        told = "was given up by another machine's controller"
        wait_until(lambda: told in first.log.read_text(), lambda: first.log.read_text())
        left = first.home / "platforms" / "here" / f"{run}-s01"
        wait_until(lambda: not SessionFolder(left).alive(), "the end of what the first machine still did")
        assert not list((second.home / "platforms" / "here").glob(f"{run}-s01")), "it was not looked for"
