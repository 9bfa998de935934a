"""A fixed share of the engine fuzzer on each database. For more: `python -m tests.fuzz.engine_fuzz`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from orchestrator.core.order import Order
from orchestrator.session.folder import SessionFolder
from tests.conformance.test_platforms import any_order
from tests.fuzz import puppets
from tests.simulation.clock import VirtualClock

CASES = 2
SOAK_SECONDS = 1200.0


def run(*options: str) -> str:
    """Runs in a process of its own, which limits its memory."""
    command = [sys.executable, "-m", "tests.fuzz.engine_fuzz", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hostile_sessions_stop_neither_the_controller_nor_a_neighbour(ledger_url: str) -> None:
    told = run("--cases", str(CASES), "--url", ledger_url)
    assert f"{CASES} cases" in told
    assert "0 failed" in told
    attacks = re.search(r"(\d+) attacks of (\d+) kinds", told)
    assert attacks, told
    assert int(attacks[1]) > 0
    assert int(attacks[2]) > 0


def test_an_attack_counts_once_it_took_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puppets, "TINY_CHECKPOINTS", 2)
    order: Order = any_order("a-s01", 10, 1)
    (tmp_path / "a-s01").mkdir()
    with (tmp_path / "lock").open("w") as lock:
        session = SessionFolder(tmp_path / "a-s01")
        puppet = puppets.HostilePuppet(session, order, lock.fileno(), VirtualClock(), Random(1))
        try:
            puppet.attack(puppets.alter_a_blob)
            assert puppet.done == [], "there is no blob"
            for _ in range(2):
                puppet.attack(puppets.leave_thousands_of_checkpoints)
            assert puppet.done == ["leave_thousands_of_checkpoints"]
            for _ in range(20):
                puppet.attack(puppets.put_something_odd_in_the_place_of_a_file)
            odd = puppet.done[1:]
            assert 0 < len(odd) <= 20
            assert all(" at " in each for each in odd)
            puppets._clear(puppet.outbox)
            puppet.outbox.touch()
            for attack in puppets.ATTACKS:
                if attack is not puppets.put_something_odd_in_the_place_of_a_file:
                    puppet.attack(attack)
            assert puppet.done[1:] == odd, "its outbox is not a folder"
            assert len(puppet.tried) > len(puppet.done)
        finally:
            puppet.leave()


@pytest.mark.soak
def test_hostile_sessions_for_twenty_minutes() -> None:
    sys.stdout.write(run("--minutes", str(SOAK_SECONDS / 60.0), "--seed", "2"))
