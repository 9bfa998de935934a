"""A scheduled job as a user meets it: submitted, listed, fired by the controller, paused and removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from itertools import pairwise
from random import Random

import pytest

from orchestrator.client import Client
from orchestrator.core.schedule import Fire, FireOutcome, instant_text
from tests.cli.calls import Caller
from tests.waiting import wait_until

SCHEDULE = "schedule: {{cron: '{cron}', mode: fresh, overlap: queue, catch_up: all}}\n"


def scheduled(user: Caller, cron: str, total: int = 2) -> str:
    job = user.job(total=total, pace=0.01)
    path = user.folder / job
    path.write_text(path.read_text() + SCHEDULE.format(cron=cron))
    return job


def fires(user: Caller) -> tuple[Fire, ...]:
    return Client(user.home).schedules.fires("tiny")


def test_a_schedule_fires_by_itself_until_it_is_removed(user: Caller) -> None:
    """The controller that the submit starts does not leave although it has nothing else to do."""
    job = scheduled(user, "*/20 * * * * *")  # rare enough for a moment between two runs on a busy machine
    plan = user("plan", job).out
    assert "every 20th second" in plan
    said = user("submit", job)
    assert "tiny  registered" in said.out
    assert "it stays as long as the schedule fires" in said.out
    assert "tiny  unchanged" in user("submit", job).out
    run = wait_until(lambda: next((fire.run for fire in reversed(fires(user)) if fire.run), ""), "a fire")
    user.wait_for_phase(run, "done")
    assert "planned for" in user("why", run).out
    log, stays = user.home / "controller.log", "stays: schedule tiny fires next at"
    wait_until(lambda: stays in log.read_text(), "a moment between two runs")
    shown = user("schedule", "show", "tiny", "--json").json
    assert [each["outcome"] for each in shown["fires"]][-1] == "submitted"
    assert len(shown["upcoming"]) == 3
    listed = user("schedule", "list").out.splitlines()
    assert listed[0].split()[:3] == ["SCHEDULE", "STATE", "MODE"]
    assert listed[1].split()[:3] == ["tiny", "active", "fresh"]
    assert len(user("schedule", "next", "tiny", "--count", "4", "--json").json["upcoming"]) == 4
    assert "paused" in user("schedule", "pause", "tiny").out
    assert "fires next at" in user("schedule", "resume", "tiny").out
    assert "no schedule called 'tiy'; did you mean 'tiny'" in user("schedule", "show", "tiy", code=2).err
    assert "removed; its runs stay" in user("schedule", "rm", "tiny").out
    assert user("schedule", "list", "--json").json == {"schedules": [], "unreadable": {}}
    wait_until(lambda: user.owner() is None, "the controller to leave")


def test_what_a_schedule_cannot_do_is_said_with_what_to_do(user: Caller) -> None:
    job = scheduled(user, "0 1 * * *")
    assert "add --now" in user("submit", job, "--follow", code=2).err
    plain = user.job("plain.yaml")
    assert "has no schedule" in user("submit", plain, "--now", code=2).err
    assert "has no schedule" in user("submit", plain, "--now", "--dry-run", code=2).err
    for tried in ((), ("--dry-run",)):
        assert "has no deadline" in user("submit", job, "--deadline", "+3h", *tried, code=2).err
    assert "has no deadline" in user("plan", job, "--deadline", "+3h", code=2).err
    error = json.loads(user("schedule", "run", "tiny", "--json", code=2).out)["error"]
    assert error["type"] == "InputError"


def survive(user: Caller, seconds_between: int, fires_wanted: int, kills: int, random: Random) -> None:
    """A controller is killed with -9 and started again while the schedule fires: each fire happens once."""
    user("submit", scheduled(user, f"*/{seconds_between} * * * * *"))
    user("down")
    controller: subprocess.Popen[str] | None = None
    at = sorted(random.sample(range(1, fires_wanted), kills))
    for number in at:
        controller = user.start("up")
        wait_until(lambda number=number: len(fires(user)) >= number, f"fire {number}", seconds=900.0)  # type: ignore[misc]
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
    user.start("up")

    def first() -> list[Fire]:
        return sorted(fires(user), key=lambda fire: fire.planned)[:fires_wanted]

    def all_submitted() -> bool:
        done = [fire for fire in first() if fire.outcome is FireOutcome.SUBMITTED]
        return len(done) == fires_wanted

    wait_until(all_submitted, lambda: f"{fires_wanted} fires with a run; there are {first()}", seconds=900.0)
    found = first()
    apart = {later.planned - earlier.planned for earlier, later in pairwise(found)}
    assert apart == {float(seconds_between)}, "a fire is missing"
    assert len({fire.run for fire in found}) == fires_wanted, "two fires have one run"
    user("schedule", "rm", "tiny")
    runs = [run.record() for run in map(Client(user.home).run, (fire.run for fire in found))]
    assert {record.origin for record in runs} == {instant_text(fire.planned) for fire in found}


def test_each_fire_happens_once_whatever_is_killed(user: Caller) -> None:
    survive(user, 5, 5, 2, Random(1))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_fire_happens_once_for_ten_minutes(user: Caller) -> None:
    survive(user, 20, 30, 10, Random(2))
