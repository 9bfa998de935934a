"""Schedules through the client: registered, edited, paused, fired and removed; no controller runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.cli.running import run as call
from orchestrator.client import ScheduleRemoval, notifying
from orchestrator.core.delivery import State
from orchestrator.core.event import Cancelled, Completed, Slept, Unscheduled
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.core.schedule import FireOutcome
from orchestrator.engine import scheduling
from orchestrator.errors import InputError, SpecError
from orchestrator.ledger import Ledger
from orchestrator.pruning import needs
from orchestrator.pruning.rules import Kind
from orchestrator.unforeseen import raise_again
from tests.cli.calls import CONFIG, Caller
from tests.cli.conftest import user
from tests.core import runs
from tests.simulation.clock import VirtualClock

__all__ = ["user"]  # a fixture
DAY = 86400.0
NIGHTLY = "schedule: {{cron: '0 1 * * *', timezone: Europe/Berlin, mode: {mode}{more}}}\n"


@dataclass
class Bench:
    """A client whose clock stands still, in a home that a controller seems to control."""

    user: Caller
    client: Client
    clock: VirtualClock
    ledger: Ledger
    fence: int

    def job(self, mode: str = "continue", more: str = "", total: int = 40, pace: float = 0.05) -> Path:
        name = self.user.job(total=total, pace=pace)
        path = self.user.folder / name
        path.write_text(path.read_text() + NIGHTLY.format(mode=mode, more=more))
        return path

    def fire(self) -> None:
        """As a controller does when something is due."""
        for name in self.ledger.schedules.due(self.clock.now()):
            schedule = self.ledger.schedules.one(name)
            assert schedule is not None
            scheduling.carry_out(self.ledger, self.client.home.folders, schedule, self.clock.now())

    def run(self) -> RunRecord:
        return self.ledger.record(self.client.schedules.one("tiny").run)


@pytest.fixture
def bench(user: Caller) -> Iterator[Bench]:
    clock = VirtualClock(runs.NOW)
    client = Client(user.home, clock=clock)
    with client, client.ledgers.made() as ledger, ledger.take_over("test", now=0.0) as control:
        yield Bench(user, client, clock, ledger, control.fence)


def test_a_job_is_registered_once_and_launches_nothing(bench: Bench) -> None:
    done = bench.client.schedules.register(bench.job())
    assert (done.what, done.changes, done.fire) == ("registered", (), None)
    assert done.status.state == "active"
    assert done.status.next_at == 1_790_031_600.0  # the next 01:00 in Berlin, 2026-09-21T23:00Z
    assert bench.client.runs(all=True) == ()
    again = bench.client.schedules.register(bench.job())
    assert (again.what, again.changes) == ("unchanged", ())
    assert bench.client.schedules.declared(bench.job())


def test_what_a_schedule_says_in_vain_is_told_before_it_is_registered_and_then(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    job = bench.job(more=", window: '00:59-01:01', catch_up: all")
    wanted = ["will never train", "several missed slices are one"]
    planned, done = bench.client.plan(job), bench.client.schedules.register(job)
    asked = bench.client.outlook(job).plan
    assert asked is not None
    for warnings in (planned.warnings, done.warnings, asked.warnings):
        assert [sum(text in each for each in warnings) for text in wanted] == [1, 1], warnings
    for words in (("plan", "--json"), ("submit", "--json")):
        assert call(["--home", str(bench.user.home), *words, str(job)]) == 0
        assert json.loads(capsys.readouterr().out)["warnings"] == list(done.warnings)
    assert bench.client.plan(bench.job()).warnings == ()


def test_what_to_do_next_about_a_paused_schedule_is_to_resume_it(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    for paused in (False, True):
        assert call(["--home", str(bench.user.home), "submit", str(bench.job(total=50 + paused))]) == 0
        told = capsys.readouterr().out
        assert (" resume tiny\n" in told) is paused
        assert (" pause tiny\n" in told) is not paused
        bench.client.schedules.pause("tiny")


def test_an_edit_says_what_changed_and_keeps_history_and_pause(bench: Bench) -> None:
    schedules = bench.client.schedules
    schedules.register(bench.job("fresh"), now=True)
    schedules.pause("tiny")
    bench.clock.advance(60.0)
    edited = schedules.register(bench.job("fresh", more=", overlap: queue", pace=0.1))
    assert (edited.what, edited.changes) == ("edited", ("command", "schedule.overlap"))
    assert edited.status.state == "paused"
    assert len(schedules.fires("tiny")) == 1
    assert edited.status.schedule.created_at == runs.NOW


def test_now_fires_at_once_and_the_same_moment_never_twice(bench: Bench) -> None:
    done = bench.client.schedules.register(bench.job("fresh"), now=True)
    assert done.fire is not None
    assert (done.fire.outcome, done.fire.planned) == (FireOutcome.SUBMITTED, runs.NOW)
    assert bench.run().schedule == "tiny"
    assert (bench.user.home / "runs" / done.fire.run).is_dir()
    bench.clock.advance(1.0)
    again = bench.client.schedules.run("tiny").fire
    assert again is not None
    assert again.outcome is FireOutcome.SKIPPED  # its earlier run is under way
    assert len(bench.client.runs()) == 1


def test_unless_running_spares_the_run_that_a_fire_would_replace(bench: Bench) -> None:
    replacing = bench.job("fresh", ", overlap: replace")
    first = bench.client.schedules.register(replacing, now=True).fire
    assert first is not None
    bench.clock.advance(1.0)
    said = bench.user("submit", replacing.name, "--now", "--unless-running", "--json").json
    assert (said["run"], said["fire"]) == (first.run, None)
    assert said["not_fired"] == f"{first.run} is under way"
    assert bench.run().wish is None, "it is not cancelled"
    assert len(bench.client.runs()) == 1
    bench.ledger.append(bench.run(), [Cancelled(runs.NOW)], due_at=None)
    done = bench.client.schedules.register(replacing, now=True, unless_running=True)
    assert done.fire is not None
    assert done.fire.run != first.run


def test_unless_running_wakes_a_growing_run_that_sleeps(bench: Bench) -> None:
    register = bench.client.schedules.register
    register(bench.job(), now=True)
    bench.clock.advance(1.0)
    assert register(bench.job(), now=True, unless_running=True).under_way == bench.run().run
    bench.ledger.append(bench.run(), [Slept(runs.NOW, "asleep")], due_at=None)
    done = register(bench.job(), now=True, unless_running=True)
    assert done.fire is not None
    assert done.fire.outcome is FireOutcome.WOKEN


def test_outside_its_window_it_does_not_fire_even_when_asked(bench: Bench) -> None:
    done = bench.client.schedules.register(bench.job(more=", window: 22:00–07:00"), now=True)
    assert done.fire is None
    assert "fires only in its window 22:00–07:00, which opens at Mon 2026-09-21 22:00 CEST" in done.not_fired
    with pytest.raises(InputError, match="fires only in its window"):
        bench.client.schedules.run("tiny")


def test_a_pause_is_not_made_up_for(bench: Bench) -> None:
    schedules = bench.client.schedules
    schedules.register(bench.job("fresh"))
    assert schedules.pause("tiny").changed
    assert not schedules.pause("tiny").changed
    bench.clock.advance(3 * DAY)
    bench.fire()
    assert schedules.upcoming("tiny") == ()
    assert schedules.resume("tiny").status.state == "active"
    bench.fire()
    assert schedules.fires("tiny") == ()
    bench.clock.advance(DAY)
    bench.fire()
    [fire] = schedules.fires("tiny")
    assert fire.outcome is FireOutcome.SUBMITTED


def finish(bench: Bench) -> None:
    """The growing run trains all its steps."""
    total = bench.run().job.work.total
    events = (*runs.running(), runs.accept(total), runs.ended(Outcome.COMPLETED), Completed(runs.NOW))
    bench.ledger.append(bench.run(), events, due_at=None)
    bench.ledger.schedules.look_at(bench.client.schedules.one("tiny").schedule, 0.0)
    bench.fire()


def test_a_growing_run_that_is_done_goes_on_with_more_steps(bench: Bench) -> None:
    schedules = bench.client.schedules
    schedules.register(bench.job(), now=True)
    finish(bench)
    run = bench.run().run
    assert (schedules.one("tiny").state, schedules.one("tiny").reason) == (
        "ended",
        f"finished: {run} is done",
    )
    with pytest.raises(InputError, match=r"has finished: .* Raise work\.total"):
        schedules.run("tiny")
    bench.clock.advance(5 * DAY)
    edited = schedules.register(bench.job(total=80))
    assert (edited.status.state, edited.changes) == ("active", ("work",))
    bench.fire()
    bench.clock.advance(DAY)
    bench.fire()
    assert [each.outcome.value for each in schedules.fires("tiny")] == ["woken", "submitted"]
    assert (bench.run().run, bench.run().job.work.total, bench.run().phase.value) == (run, 80, "queued")


def test_an_edit_that_changes_the_mathematics_is_refused_with_what_to_do(bench: Bench) -> None:
    bench.client.schedules.register(bench.job(), now=True)
    path = bench.job()
    path.write_text(path.read_text().replace("global_batch: 8", "global_batch: 16"))
    with pytest.raises(InputError, match=r"work\.global_batch was 8 and would be 16.*schedule rm tiny"):
        bench.client.schedules.register(path)


def test_a_cancelled_run_ends_the_schedule_and_a_submit_begins_a_new_one(bench: Bench) -> None:
    schedules = bench.client.schedules
    schedules.register(bench.job(), now=True)
    first = bench.run()
    bench.ledger.append(first, [Cancelled(runs.NOW)], due_at=None)
    bench.ledger.schedules.look_at(schedules.one("tiny").schedule, 0.0)
    bench.fire()
    assert schedules.one("tiny").reason == f"its run {first.run} was cancelled"
    assert schedules.register(bench.job()).what == "restarted"
    bench.clock.advance(DAY)
    bench.fire()
    assert bench.run().run != first.run


OTHER_STORE = CONFIG + "stores: {other: {type: folder, path: other}}\n"


@pytest.mark.parametrize("over", [True, False])
def test_a_new_run_of_a_growing_schedule_begins_in_the_new_home_store(bench: Bench, over: bool) -> None:
    """As the warning about a store that is gone advises: submit the job again. A run that goes on keeps its
    store."""
    schedules = bench.client.schedules
    schedules.register(bench.job(), now=True)
    first = bench.run()
    assert first.store == "home"
    if over:
        bench.ledger.append(first, [Cancelled(runs.NOW)], due_at=None)
    bench.user.config(OTHER_STORE)
    done = schedules.register(bench.job())
    assert (done.what, done.status.schedule.store) == (("edited", "other") if over else ("unchanged", "home"))
    bench.clock.advance(DAY)
    bench.fire()
    assert bench.run().store == ("other" if over else "home")


def test_a_finished_run_that_goes_on_with_more_steps_keeps_its_home_store(bench: Bench) -> None:
    schedules = bench.client.schedules
    schedules.register(bench.job(), now=True)
    finish(bench)
    bench.user.config(OTHER_STORE)
    assert schedules.register(bench.job(total=80)).status.schedule.store == "home"


def test_a_removed_schedule_leaves_its_runs_to_a_person(bench: Bench) -> None:
    schedules = bench.client.schedules
    schedules.register(bench.job(), now=True)
    before = bench.run()
    bench.ledger.append(before, [Slept(runs.NOW, "asleep")], due_at=None)
    done = schedules.remove("tiny")
    assert isinstance(done, ScheduleRemoval)
    assert done.runs == (before.run,)
    assert schedules.all() == ()
    [*_, last] = bench.ledger.history(before.run)
    assert isinstance(last.event, Unscheduled)
    with pytest.raises(InputError, match="no schedule called 'tiny'"):
        schedules.fires("tiny")


def test_removing_an_unreadable_schedule_names_the_runs_that_it_leaves(bench: Bench) -> None:
    bench.client.schedules.register(bench.job(), now=True)
    run = bench.run().run
    with bench.ledger._database.write() as connection:
        connection.exec_driver_sql("UPDATE schedules SET body = '{}'")
    said = bench.user("schedule", "rm", "tiny").out
    assert said.startswith("tiny removed, though it could not be read; its runs stay")
    assert f"{run}: held once its slice is over; `orchestrator release {run}` lets it run on" in said
    [*_, last] = bench.ledger.history(run)
    assert isinstance(last.event, Unscheduled)
    assert "no schedule called 'tiny'" in bench.user("schedule", "rm", "tiny", code=2).err


def test_the_nearest_schedule_is_named(bench: Bench) -> None:
    bench.client.schedules.register(bench.job())
    with pytest.raises(InputError, match="did you mean 'tiny'"):
        bench.client.schedules.pause("tinny")


def test_a_job_with_a_schedule_is_not_submitted_by_accident(bench: Bench) -> None:
    with pytest.raises(InputError, match=r"client\.schedules\.register"):
        bench.client.submit(bench.job())
    plain = bench.user.folder / bench.user.job()
    with pytest.raises(InputError, match="has no schedule"):
        bench.client.schedules.register(plain)
    bench.job().write_text("schedule: {cron: x}\n")
    with pytest.raises(SpecError, match=r"schedule\.cron"):
        bench.client.schedules.declared(bench.user.folder / "job.yaml")


def test_prune_keeps_what_a_schedule_needs(bench: Bench) -> None:
    done = bench.client.schedules.register(bench.job())
    needed = needs.read(bench.ledger, keep=0)
    assert (Kind.SOURCE, done.status.schedule.job.bundle) in needed.content
    bench.client.schedules.remove("tiny")
    assert not needs.read(bench.ledger, keep=0).content


def test_a_schedule_whose_platform_is_gone_is_named(bench: Bench) -> None:
    bench.client.schedules.register(bench.job(), platforms=["here"])
    bench.user.config(CONFIG.replace("here:", "there:"))
    [found] = [each for each in bench.client.doctor() if each.what == "schedule tiny"]
    assert "no longer has its platform 'here'" in found.text
    assert found.command == ("schedule", "rm", "tiny")
    assert next(each for each in bench.client.doctor() if each.what == "time zones").state == "ok"


def test_a_schedule_that_this_version_cannot_read_does_not_hide_the_others(bench: Bench) -> None:
    bench.client.schedules.register(bench.job())
    with bench.ledger._database.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO schedules SELECT 'newer', 1, created_at, paused, next_at, run, '{}' FROM schedules"
        )
    assert [each.name for each in bench.client.schedules.all()] == ["tiny"]
    assert list(bench.client.schedules.unreadable()) == ["newer"]
    assert any(each.what == "schedule newer" for each in bench.client.doctor())
    said: list[str] = []
    folders = bench.client.home.folders
    engine = scheduling.Scheduling(bench.ledger, bench.fence, folders, said.append, raise_again)
    engine.tick(bench.clock.now(), lambda _record, _event: None)
    engine.tick(bench.clock.now(), lambda _record, _event: None)
    [line] = [line for line in said if "newer" in line]
    assert line.startswith("the schedule newer cannot be read: ")
    assert line.endswith("; it does not fire")
    assert "tiny fires next" in engine.stays(), "the damaged one is due first, and hides nobody"
    assert bench.user("schedule", "list").err.count("newer cannot be read") == 1
    bench.user("schedule", "rm", "newer")
    assert bench.client.schedules.unreadable() == {}


@pytest.mark.parametrize("window", [[99999, -5], [60, 1440]])
def test_a_damaged_window_is_read_as_damage(bench: Bench, window: list[int]) -> None:
    bench.client.schedules.register(bench.job(more=", window: '22:00-07:00'"))
    opens, closes = window
    with bench.ledger._database.write() as connection:
        body = connection.exec_driver_sql("SELECT body FROM schedules").scalar()
        text = str(body).replace('"opens":1320,"closes":420', f'"opens":{opens},"closes":{closes}')
        connection.exec_driver_sql("UPDATE schedules SET body = ?", (text,))
    assert bench.client.schedules.all() == ()
    assert "a window from minute" in bench.client.schedules.unreadable()["tiny"]


@pytest.mark.parametrize("mode", ["fresh", "continue"])
def test_a_restored_schedule_knows_the_runs_that_were_adopted_after_it(bench: Bench, mode: str) -> None:
    """The backup is older than the run of the first night, which came from its store."""
    bench.client.schedules.register(bench.job(mode, ", catch_up: all"))
    with bench.ledger._database.read() as connection:
        [before] = connection.exec_driver_sql("SELECT version, run, body FROM schedules").all()
    bench.clock.advance(DAY)
    bench.fire()
    first = bench.run()
    with bench.ledger._database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE schedules SET version = ?, run = ?, body = ?, next_at = 0", tuple(before)
        )
        connection.exec_driver_sql("DELETE FROM fires")
    bench.ledger.append(first, [Cancelled(bench.clock.now())], due_at=None)
    bench.clock.advance(DAY)
    bench.fire()
    fires = bench.client.schedules.fires("tiny")
    assert (fires[-1].outcome, fires[-1].run) == (FireOutcome.SUBMITTED, first.run)
    assert fires[-1].reason == "the ledger has its run already"
    if mode == "fresh":
        assert [each.outcome for each in fires] == [FireOutcome.SUBMITTED] * 2
        assert bench.run().run not in ("", first.run)
    else:
        assert bench.client.schedules.one("tiny").state == "ended"


def test_a_missed_fire_is_told_in_the_transaction_that_records_it(bench: Bench) -> None:
    bench.user.config(CONFIG + "notify: [{name: phone, url: env:PHONE, on: [schedule_missed]}]\n")
    bench.client.schedules.register(bench.job("fresh", ", catch_up: none"))
    bench.fire()
    notifying.notifier(bench.client.wired(), bench.ledger, print)
    bench.clock.jump(3 * DAY + 3600.0)
    bench.fire()
    [row] = bench.ledger.notifications.rows([State.WAITING])
    assert (row.target, row.kind) == ("phone", "schedule_missed")
    missed = bench.client.schedules.one("tiny").last
    assert missed is not None
    assert (missed.outcome, missed.count) == (FireOutcome.MISSED, 3)
