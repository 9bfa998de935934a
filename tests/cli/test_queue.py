"""What the command line shows of a session in its platform's queue, and of an offer with a queue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.routing import choice_text
from orchestrator.cli.running import run
from orchestrator.client import foreseen
from orchestrator.client.live import Writer
from orchestrator.clock import SystemClock
from orchestrator.core.event import Slice, Submitted
from orchestrator.core.foreseen import Forecast
from orchestrator.core.job import Recurrence
from orchestrator.core.lifecycle import Phase
from orchestrator.core.route import Case, plan
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Scene
from orchestrator.core.session import Observation, Sighting
from orchestrator.engine.engine import Watchers
from orchestrator.engine.market import Market
from orchestrator.engine.surveying import survey
from orchestrator.home import Folders
from tests.client.homes import ledger_of
from tests.core.runs import NOW, RUN, job
from tests.test_engine import Make, scenario, small

__all__ = ["small"]  # a fixture
SINCE = "waiting in the platform's queue since 2026-09-"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    return tmp_path


def test_a_waiting_session_is_said_to_wait(
    small: Make, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        assert run(words) == 0
        return " ".join(capsys.readouterr().out.split())

    world = small(box=scenario(queue_seconds=4 * 3600.0, pending_seconds_max=5 * 3600.0))
    seen: list[Sighting] = []

    def reading(record: RunRecord, observation: Observation, now: float) -> None:
        seen.append(observation.sighting)
        Writer(Folders(home)).reading(record, observation, now)

    world.watchers = Watchers(reading=reading)
    world.restart("box")
    world.submit("first")
    assert world.until(lambda: Sighting.PENDING in seen)
    for command in ("ps", "show first", "why first"):
        assert SINCE in said(*command.split())
    [row] = json.loads(said("ps", "--json"))["runs"]
    session = world.record("first").session
    assert session is not None
    assert row["waits_since"] == session.launched_at
    assert world.until(world.phase("first", Phase.RUNNING), seconds=5 * 3600.0)
    assert world.until(lambda: seen[-1] is Sighting.RUNNING)
    for command in ("ps", "show first", "why first"):
        assert "queue since" not in said(*command.split())
    assert "ends in" in said("show", "first")


def test_a_plan_counts_the_wait_to_expect(small: Make) -> None:
    box = small(box=scenario(queue_seconds=7200.0)).platforms["box"]
    market, asked = Market(("box",)), job()
    market.take(survey("box", box), NOW)
    market.begin((), NOW)
    route = market.route(RunRecord("first", asked, NOW), ())
    assert route is not None
    assert route.chosen is not None
    assert "each waits about 60 min in the platform's queue" in choice_text(route.chosen, asked)
    assert "done in about" in choice_text(route.chosen, asked)
    sliced = choice_text(route.chosen, asked, sliced=True)
    assert "of work in slices: `plan` counts the sleep between them" in sliced
    assert "done in" not in sliced
    grows = replace(asked, schedule=Recurrence("0 1 * * *"))
    assert choice_text(route.chosen, grows) == sliced
    hops = plan(asked, route, now=NOW, measurements=())
    ends = [NOW, *(hop.end for hop in hops)]
    assert [hop.start - ended for hop, ended in zip(hops, ends, strict=False)] == [3600.0] * len(hops)
    assert hops
    assert route.chosen.estimate.finish == hops[-1].end


def test_a_growing_run_without_a_known_end_is_said_to_be_in_slices(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        assert run(words) == 0
        return " ".join(capsys.readouterr().out.split())

    with ledger_of(home) as ledger:
        ledger.submit(Submitted(RUN, job(), NOW, store="home", schedule="nightly", slice=Slice(NOW)))
        record = ledger.record(RUN)
    assert "expected end in slices, and it sleeps in between: `orchestrator plan`" in said("show", RUN)
    foreseen.Writer(Folders(home))(Scene(SystemClock().now(), Case(), waiting=(record,)), {})
    assert "in slices" in said("ps")
    end = Forecast(NOW, NOW + 90.0, NOW, None, 2)
    foreseen.Writer(Folders(home))(Scene(SystemClock().now(), Case(), waiting=(record,)), {RUN: end})
    assert "in slices" not in said("ps")
    assert ", after 1 further session, in slices" in said("show", RUN)
