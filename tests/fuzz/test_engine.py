"""A fixed share of the engine fuzzer on each database. More: `python -m tests.fuzz.engine_fuzz`."""

from __future__ import annotations

import subprocess
import sys

import pytest

CASES = 4
SOAK_SECONDS = 1200.0


def run(*options: str) -> str:
    """In a process of its own, which bounds its memory."""
    command = [sys.executable, "-m", "tests.fuzz.engine_fuzz", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hostile_sessions_stop_neither_the_controller_nor_a_neighbour(ledger_url: str) -> None:
    told = run("--cases", str(CASES), "--url", ledger_url)
    assert f"{CASES} cases" in told
    assert "0 failed" in told


@pytest.mark.soak
def test_hostile_sessions_for_twenty_minutes() -> None:
    sys.stdout.write(run("--minutes", str(SOAK_SECONDS / 60.0), "--seed", "2"))
