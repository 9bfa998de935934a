"""A program that controls a home itself, and one that checks whether a controller runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client import controlling
from orchestrator.client.health import State
from orchestrator.errors import ControllerRunning, SpecError
from orchestrator.ledger import Ledger, Owner


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

        def owner(self) -> Owner | None:
            found = super().owner()
            if found is None:
                return None
            self.looks += 1
            return found if self.looks > 3 else Owner("", 0, "", 0.0)

    client = Client(tmp_path)
    client.home.ledger().close()
    with Slow.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        assert controlling.ensure(client.home, client.clock, ledger) is None
        assert ledger.looks > 3
    client.controller.stop()
