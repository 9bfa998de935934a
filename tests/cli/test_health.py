"""`health` tells a working controller from one that is frozen, gone or another home's."""

from __future__ import annotations

import json
import signal
from typing import Any

from orchestrator.client.health import TICK_SECONDS_MAX
from tests.cli.calls import PATIENCE, Caller
from tests.waiting import wait_until


def is_healthy(user: Caller) -> bool:
    return bool(said_of(user))


def health(user: Caller) -> Any:
    """What it says of a healthy controller; None if that is not healthy now."""
    probe = user.start("health", "--json")
    said, _ = probe.communicate(timeout=PATIENCE)
    return json.loads(said) if probe.returncode == 0 else None


def said_of(user: Caller) -> str:
    """For people; empty if the controller is not healthy now."""
    probe = user.start("health")
    said, _ = probe.communicate(timeout=PATIENCE)
    return said if probe.returncode == 0 else ""


def test_only_a_controller_that_ticks_is_healthy(user: Caller) -> None:
    assert "no controller is running" in user("health", code=4).err
    assert list(user.home.iterdir()) == [user.home / "config.yaml"], "a probe creates nothing"
    controller = user.start("up")
    answer = wait_until(lambda: health(user), "the first tick")
    assert answer["controller"]["pid"] == controller.pid
    assert answer["tick_seconds_ago"] <= TICK_SECONDS_MAX
    controller.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not is_healthy(user), "the frozen to be noticed")
        assert "runs but has not ticked" in user("health", code=4).err
    finally:
        controller.send_signal(signal.SIGCONT)
    wait_until(lambda: is_healthy(user), "the next tick")
    controller.kill()
    controller.communicate()
    assert "no controller is running" in user("health", code=4).err


def test_what_an_earlier_controller_noted_speaks_for_no_other(user: Caller) -> None:
    first = user.start("up")
    wait_until(lambda: is_healthy(user), "the first tick")
    noted = (user.home / "tick.json").read_bytes()
    first.kill()
    first.communicate()
    second = user.start("up")
    wait_until(lambda: user.owner() is not None and is_healthy(user), "the next controller's tick")
    second.send_signal(signal.SIGSTOP)
    try:
        (user.home / "tick.json").write_bytes(noted)
        assert "has not ticked yet" in user("health", code=4).err
    finally:
        second.send_signal(signal.SIGCONT)
        second.terminate()
    assert second.wait(PATIENCE) == 0


def test_the_variable_names_the_database_where_the_config_names_none(user: Caller) -> None:
    elsewhere = f"sqlite:///{user.folder / 'elsewhere.sqlite'}"
    user("ps", ORCHESTRATOR_DATABASE=elsewhere)
    assert (user.folder / "elsewhere.sqlite").exists()
    assert not (user.home / "ledger.sqlite").exists()
    user.config(f"database: sqlite:///{user.folder / 'named.sqlite'}\n")
    (user.folder / "elsewhere.sqlite").unlink()
    user("ps", ORCHESTRATOR_DATABASE=elsewhere)
    assert (user.folder / "named.sqlite").exists()
    assert not (user.folder / "elsewhere.sqlite").exists()
    assert (
        "cannot be stored in 'mysql'"
        in user("--home", "other", "ps", code=2, ORCHESTRATOR_DATABASE="mysql://x/y").err
    )


def test_a_standby_is_healthy_and_stopped_by_down(user: Caller) -> None:
    controller = user.start("up")
    wait_until(lambda: is_healthy(user), "the first tick")
    standby = user.start("up", "--standby")
    said = wait_until(
        lambda: found if f"standing by: process {standby.pid}" in (found := said_of(user)) else "",
        "the standby",
    )
    assert f"process {controller.pid}" in said
    answer = user("down", "--json").json
    assert [each["pid"] for each in answer["standbys_ended"]] == [standby.pid]
    assert answer["ended"]["pid"] == controller.pid
    assert (controller.wait(PATIENCE), standby.wait(PATIENCE)) == (0, 0)
    assert "no controller is running" in user("down").out
