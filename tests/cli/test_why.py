"""What `why`, `show` and `plan` say of a run that waits. No controller runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.running import run as call
from orchestrator.core.event import Launched, Prepared, Requeued, Started, Submitted
from orchestrator.core.job import Precision, Profile, Recurrence
from orchestrator.core.order import Outcome
from orchestrator.core.schedule import Schedule
from tests.client.homes import ledger_of, run_after
from tests.core.runs import NOW, RUN, assigned, ended, job, running

LOST = "it is out of reach on here of vm, and nothing was heard for 35 s"
GUESSED = job(profiles=(("default", Profile(8, Precision.FP32)),))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("platforms:\n  here: {type: process, accelerator: cpu}\n")
    return tmp_path


def occupy(home: Path) -> None:
    """Another run's session has the only slot."""
    order = assigned()
    with ledger_of(home) as ledger:
        ledger.submit(Submitted("other", GUESSED, NOW, store="home"))
        events = (order, Prepared(NOW), Launched(NOW), Started(NOW, "aaaa"))
        ledger.append(ledger.record("other"), events, due_at=None)


def test_a_run_whose_session_was_lost_waits_for_what_it_waits_for_now(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = ended(Outcome.LOST, confirmed=True, message=LOST)
    run_after(home, *running(), gone, Requeued(NOW, LOST, 1))
    assert call(["--home", str(home), "why", RUN]) == 0
    assert "It waits for its next session: here/cpu is free" in capsys.readouterr().out
    occupy(home)
    assert call(["--home", str(home), "why", RUN]) == 0
    told = capsys.readouterr().out
    assert "It waits for a free slot" in told
    assert f"waits: {LOST}" not in told
    assert LOST in told, "the story has it"
    assert call(["--home", str(home), "show", RUN]) == 0
    assert "waits for a place to run" in capsys.readouterr().out
    assert call(["--home", str(home), "plan"]) == 0
    assert LOST not in capsys.readouterr().out


def test_a_run_without_a_decision_waits_for_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_after(home)
    assert call(["--home", str(home), "why", RUN]) == 0
    assert "It waits for its first decision" in capsys.readouterr().out
    occupy(home)
    assert call(["--home", str(home), "why", RUN]) == 0
    assert "It waits for a free slot: other runs use here/cpu" in capsys.readouterr().out


def test_a_plan_and_the_next_fires_are_told_to_need_a_controller(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = "no controller is running"
    assert call(["--home", str(home), "plan"]) == 0
    assert warning not in capsys.readouterr().err, "nothing is promised"
    run_after(home)
    nightly = replace(GUESSED, name="nightly", schedule=Recurrence("0 1 * * *"))
    with ledger_of(home) as ledger:
        ledger.schedules.add(Schedule("nightly", nightly, "home", NOW, NOW))
    for words in (("plan",), ("plan", "--json"), ("schedule", "next"), ("why", RUN)):
        assert call(["--home", str(home), *words]) == 0
        out, err = capsys.readouterr()
        assert (warning in err) is ("--json" not in words), words
        assert warning not in out, words
