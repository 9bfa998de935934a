"""A program that controls a home itself, and one that checks whether a controller runs."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator import Client, processes
from orchestrator.client import controlling, owning
from orchestrator.client.health import State
from orchestrator.client.home import VARIABLE
from orchestrator.errors import ControllerRunning, SpecError
from orchestrator.ledger import Ledger, Owner
from tests.waiting import PATIENCE


def test_a_program_may_control_a_home_itself(tmp_path: Path) -> None:
    client = Client(tmp_path)
    said: list[str] = []
    states: list[State] = []

    def stopped() -> bool:
        states.append(client.health().state)
        return State.TICKS in states

    assert client.controller.run(stopped=stopped, say=said.append) is False
    assert states[0] is State.ABSENT
    assert states[-1] is State.TICKS
    assert client.health().state is State.ABSENT
    assert "has taken over" in said[0]
    assert said[-1].endswith("leaves")


def test_a_config_that_changes_as_the_controller_leaves_is_read(tmp_path: Path) -> None:
    """Who put a platform back and then asked something saw a controller, and started none."""
    client = Client(tmp_path)
    said: list[str] = []

    def say(text: str) -> None:
        if text == "nothing is left to do" and text not in said:
            (tmp_path / "config.yaml").write_text("platforms: {there: {type: process}}\n")
        said.append(text)

    assert client.controller.run(until_idle=True, say=say) is True
    assert said[-2] == "the config has changed"


def test_two_programs_never_control_one_home(tmp_path: Path) -> None:
    client = Client(tmp_path)
    with client.home.ledger() as ledger, ledger.take_over("another", now=client.clock.now(), home_store=""):
        found = client.health()
        assert (found.owner.name if found.owner else None, found.state) == ("another", State.UNHEARD)
        with pytest.raises(ControllerRunning, match="another"):
            client.controller.run(until_idle=True)
        started = client.controller.start()
        assert not started.by_us
        assert started.owner == found.owner


def test_nothing_is_started_with_a_config_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("platforms: 1\n")
    client = Client(tmp_path)
    with pytest.raises(SpecError):
        client.controller.start()
    assert client.controller.stop() is None
    assert not client.home.folders.controller_log.exists()


def test_a_controller_that_was_started_is_named_and_can_be_stopped_at_once(tmp_path: Path) -> None:
    """It has the lock a moment before its name is in the ledger."""

    class Slow(Ledger):
        """Names nobody at first, as when the lock has just been taken."""

        looks = 0

        def owner(self, *, last: bool = False) -> Owner | None:
            found = super().owner(last=last)
            if found is None or last:
                return found
            self.looks += 1
            return found if self.looks > 3 else Owner("", 0, "", 0.0)

    client = Client(tmp_path)
    client.home.ledger().close()
    with Slow.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        assert controlling.ensure(client.home, client.clock, ledger) is None
        assert ledger.looks > 3
    client.controller.stop()


def test_a_controller_that_a_training_started_is_no_part_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(processes.SESSION, str(tmp_path / "a-s01"))
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nenv > '{tmp_path}/seen'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    client = Client(tmp_path)
    client.home.ledger().close()
    client.controller.start()
    seen = (tmp_path / "seen").read_text()
    assert f"{VARIABLE}={tmp_path}" in seen
    assert processes.SESSION not in seen


RESTARTING = """
import sys
from orchestrator import Client
client = Client(sys.argv[1])
with client.home.ledger() as ledger:
    for name in ("before", "after"):
        with ledger.take_over(name, now=client.clock.now()):
            print(name, flush=True)
            input()
        print("released", flush=True)
        input()
"""


def test_a_controller_that_restarts_itself_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment without control is not the end of a controller whose process lives."""
    client = Client(tmp_path)
    command = [sys.executable, "-c", RESTARTING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "before\n"
        print(file=child.stdin, flush=True)
        assert child.stdout.readline() == "released\n"
        monkeypatch.setattr(owning, "RESTART_SECONDS", PATIENCE)
        again = threading.Timer(0.2, lambda: print(file=child.stdin, flush=True))
        again.start()
        found = client.health().owner
        again.join()
        assert found is not None
        assert (found.name, found.pid) == ("after", child.pid)
        print("\n", file=child.stdin, flush=True)
    assert client.health().owner is None


def test_of_two_starts_at_once_one_starts_the_controller(tmp_path: Path) -> None:
    begin = threading.Barrier(2)

    def start(_: int) -> bool:
        begin.wait()
        return Client(tmp_path).controller.start().by_us

    Client(tmp_path).home.ledger().close()
    try:
        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(start, range(2))) == [False, True]
    finally:
        Client(tmp_path).controller.stop()
