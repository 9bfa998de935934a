"""`Client.outlook`: what is expected of the runs of a home and of a job beside them. It writes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client import Standing, foreseen
from orchestrator.core.event import Slice, Submitted, Wished
from orchestrator.core.foreseen import Forecast
from orchestrator.core.lifecycle import Wish
from orchestrator.core.pace import Pace
from orchestrator.core.route import Case
from orchestrator.core.scene import Scene, Watched
from orchestrator.errors import InputError
from orchestrator.home import Folders
from tests.client.homes import append, ledger_of, run_after
from tests.core.runs import NOW, RUN, job, running
from tests.simulation.clock import VirtualClock

CONFIG = """\
platforms:
  here: {type: process, accelerator: cpu, session_seconds: 3600}
timezone: Europe/Berlin
prices: {currency: EUR, per_hour: {here: 0.5}}
"""
JOB = """\
name: asked
source: source
command: python train.py
work: {total: 7200, global_batch: 8}
profiles:
  default:
    micro_batch: 8
    precision: fp32
    claim: {steps_per_second: [1, 1], batch: 8, on: cpu, source: a test, date: 2026-11-25}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "config.yaml").write_text(CONFIG)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("")
    return tmp_path / "home"


def client(home: Path) -> Client:
    return Client(home, clock=VirtualClock(NOW))


def forecast(at: float = NOW) -> Forecast:
    return Forecast(at, NOW + 100.0, NOW + 90.0, NOW + 120.0, 1)


def test_a_home_without_a_ledger_expects_nothing_and_gets_none(home: Path) -> None:
    found = client(home).outlook()
    assert found.runs == ()
    assert found.timezone == "Europe/Berlin"
    assert [each.name for each in home.iterdir()] == ["config.yaml"]


def test_a_job_is_planned_beside_the_runs_that_wait(home: Path, tmp_path: Path) -> None:
    with ledger_of(home) as ledger:
        ledger.submit(Submitted(RUN, job(), NOW, store="home", deadline=NOW + 3600.0))
    before = sorted(each.name for each in home.iterdir())
    found = client(home).outlook(tmp_path / "job.yaml", deadline="+12h")
    assert {each.run: each.standing for each in found.runs} == {
        RUN: Standing.WAITING, "asked": Standing.ASKED,
    }  # fmt: skip
    asked = found.asked
    assert asked is not None
    assert found.plan is not None
    assert asked.hops[-1].to_step == 7200
    assert asked.meets_deadline is True
    assert asked.deadline == found.deadline == NOW + 12 * 3600.0
    assert [each.deadline for each in found.runs if each.run == RUN] == [NOW + 3600.0], "it keeps its own"
    assert found.cost(asked) == pytest.approx(0.5 * sum(hop.end - hop.start for hop in asked.hops) / 3600.0)
    assert sorted(each.name for each in home.iterdir()) == before


def test_what_the_controller_has_seen_of_a_session_counts(home: Path) -> None:
    run = run_after(home, *running())
    folders = Folders(home)
    session = run.record().session
    assert session is not None
    slow = Pace(1.6, 0.02, 60.0, NOW, 100, NOW - 1000.0)  # a tenth of a step a second
    scene = Scene(NOW, Case(), watched={RUN: Watched(RUN, session.name, slow)})
    foreseen.Writer(folders)(scene, {RUN: forecast()})
    [found] = client(home).outlook().runs
    assert found.standing is Standing.RUNNING
    assert found.forecast is not None
    assert found.forecast.end > NOW + 8000.0, "900 steps, ten seconds each"


def test_views_show_the_newest_forecast_but_no_old_one(home: Path) -> None:
    run = run_after(home, *running())
    write = foreseen.Writer(Folders(home))
    write(Scene(NOW, Case()), {RUN: forecast()})
    assert run.status().forecast == forecast()
    write(Scene(NOW - 3600.0, Case()), {RUN: forecast(NOW - 3600.0)})
    assert run.status().forecast is None, "its controller is gone"


@pytest.mark.parametrize(
    "content", ["", "{}", '{"at": NaN, "runs": []}', '{"at": 1, "runs": [{"run": 1}]}', "[" * 9999]
)
def test_a_damaged_file_of_forecasts_is_as_none(home: Path, content: str) -> None:
    run = run_after(home, *running())
    foreseen.path(Folders(home)).write_text(content)
    assert run.status().forecast is None
    assert len(client(home).outlook().runs) == 1


@pytest.mark.parametrize("deadline", ["yesterday", NOW - 1.0, float("nan"), float("inf")])
def test_a_deadline_that_is_none_is_refused_before_anything_is_asked(
    home: Path, tmp_path: Path, deadline: str | float
) -> None:
    for ask in (client(home).outlook, client(home).submit):
        with pytest.raises(InputError, match="deadline"):
            ask(tmp_path / "job.yaml", deadline=deadline)
    assert [each.name for each in home.iterdir()] == ["config.yaml"]


def test_a_run_that_was_held_is_not_laid_out(home: Path) -> None:
    with ledger_of(home) as ledger:
        ledger.submit(Submitted(RUN, job(), NOW, store="home"))
    append(home, [Wished(NOW, Wish.HOLD)])
    assert client(home).outlook().runs == ()


def test_a_run_keeps_its_deadline_in_the_ledger(home: Path) -> None:
    with ledger_of(home) as ledger:
        ledger.submit(Submitted(RUN, job(), NOW, store="home", deadline=NOW + 60.0))
    with ledger_of(home) as ledger:
        assert ledger.record(RUN).deadline == NOW + 60.0


NIGHTLY = (
    JOB.replace("name: asked", "name: nightly")
    + """\
schedule: {cron: "0 1 * * *", timezone: Europe/Berlin, mode: continue}
"""
)


def test_a_job_that_grows_is_planned_in_the_slices_that_its_schedule_would_give_it(
    home: Path, tmp_path: Path
) -> None:
    """Two hours of work, an hour at most each night."""
    (tmp_path / "job.yaml").write_text(NIGHTLY)
    asked = client(home).outlook(tmp_path / "job.yaml").asked
    assert asked is not None
    assert asked.forecast is not None
    nights = {int((hop.start - NOW) // 86400.0) for hop in asked.hops}
    assert len(asked.hops) == len(nights) > 1
    assert asked.forecast.end > NOW + 86400.0
    assert not (home / "ledger.sqlite").exists()


def test_a_job_with_a_schedule_is_planned_at_its_next_fire_as_if_it_were_registered(
    home: Path, tmp_path: Path
) -> None:
    """Nothing would start before the night, nor go on after it."""
    night = "schedule: {cron: '0 1 * * *', timezone: Europe/Berlin, mode: fresh, window: '22:00-01:30'}\n"
    (tmp_path / "job.yaml").write_text(JOB + night)
    found = client(home).outlook(tmp_path / "job.yaml")
    asked, opens = found.asked, 1_790_031_600.0  # the next 01:00 in Berlin
    assert asked is not None
    assert (asked.run, asked.planned) == ("asked", opens)
    assert all(opens <= hop.start < hop.end <= opens + 1800.0 for hop in asked.hops)
    assert asked.reason == "its window closes before it is done"
    others = [each for each in found.runs if each is not asked]
    assert [each.planned for each in others] == [opens + n * 86400.0 for n in range(1, 7)]
    with client(home) as registering, registering.ledgers.made() as ledger, ledger.take_over("test", now=NOW):
        registering.schedules.register(tmp_path / "job.yaml")
        first, *_ = registering.outlook().runs
        assert first.hops == asked.hops
        registering.schedules.pause("asked")
        paused = registering.outlook(tmp_path / "job.yaml").asked
        assert paused is not None
        assert (paused.hops, paused.reason) == ((), "its schedule does not fire")


@pytest.mark.parametrize("mode", ["continue", "fresh"])
def test_a_job_that_fires_in_months_is_planned_then(home: Path, tmp_path: Path, mode: str) -> None:
    yearly = f"schedule: {{cron: '0 3 15 12 *', mode: {mode}}}\n"
    (tmp_path / "job.yaml").write_text(JOB + yearly)
    asked = client(home).outlook(tmp_path / "job.yaml").asked
    assert asked is not None
    assert asked.hops[0].start == 1_797_303_600.0  # 2026-12-15T03:00Z
    assert asked.forecast is not None or asked.reason == "it is not done within the fires that are laid out"
    with client(home) as registering, registering.ledgers.made() as ledger, ledger.take_over("test", now=NOW):
        registering.schedules.register(tmp_path / "job.yaml")
        assert registering.outlook().runs == (), "beyond the seven days"


def test_a_deadline_that_no_submit_of_the_job_accepts_is_not_judged(home: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(NIGHTLY)
    with pytest.raises(InputError, match=r"job\.yaml has a schedule, which has no deadline"):
        client(home).outlook(tmp_path / "job.yaml", deadline="+30d")


def test_a_run_whose_slices_have_no_known_end_says_so_instead_of_the_training_that_is_left(
    home: Path,
) -> None:
    run = run_after(home, *running())
    record = replace(run.record(), slice=Slice(NOW))
    foreseen.Writer(Folders(home))(Scene(NOW, Case(), (record,)), {})
    assert run.status().in_slices
    foreseen.Writer(Folders(home))(Scene(NOW, Case(), (record,)), {RUN: forecast()})
    assert not run.status().in_slices, "its end is known"
