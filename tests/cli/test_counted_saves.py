"""A run that is done looks done, also if nobody knows its steps, because its saves were only counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agent.classify import classify
from orchestrator.cli.running import run as call
from orchestrator.core.event import Completed
from orchestrator.core.order import Outcome
from tests.agent.test_classify import after
from tests.client.homes import run_after
from tests.core.runs import NOW, RUN, accept, ended, running


def test_a_run_that_is_done_shows_its_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome, said = classify(after(exit_code=0, committed=2, counted=True))
    assert outcome is Outcome.COMPLETED
    done = (accept(2), ended(Outcome.COMPLETED, step=2, message=said), Completed(NOW, said))
    run = run_after(tmp_path, *running(), *done)
    assert run.status().progress.share == 1.0
    assert call(["--home", str(tmp_path), "ps", "--all"]) == 0
    told = capsys.readouterr().out
    assert "2 saves" in told
    assert "/1,000" not in told
    assert call(["--home", str(tmp_path), "show", RUN]) == 0
    told = capsys.readouterr().out
    assert "done; 2 saves" in told
    assert "of 1,000" not in told


def test_a_run_that_stopped_early_shows_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "completed at step 40 of 1000: it stopped early by itself"
    done = (accept(40), ended(Outcome.COMPLETED, step=40, message=said), Completed(NOW, said))
    run_after(tmp_path, *running(), *done)
    assert call(["--home", str(tmp_path), "ps", "--all"]) == 0
    told = capsys.readouterr().out
    assert "40/1,000" in told
    assert "it stopped early by itself" in told
