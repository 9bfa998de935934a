"""What a job would take on accelerators that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.cli.running import run as call
from orchestrator.errors import InputError

JOB = """
name: tiny
source: .
command: python train.py {steps}
work: {total: 50000, global_batch: 64, parameters: 80.0e+6, flops_per_step: 25.7e12}
route: {platforms: [here], finish_within: 30d}
profiles:
  cpu: {micro_batch: 8, precision: fp32}
  T4x2: {micro_batch: 16, precision: fp16}
  A100: {micro_batch: 16, precision: fp16}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("platforms:\n  here: {type: process, accelerator: cpu}\n")
    path = tmp_path / "work" / "job.yaml"
    path.parent.mkdir()
    (path.parent / "train.py").write_text("pass\n")
    path.write_text(JOB)
    return path


def test_each_accelerator_has_an_estimate_and_what_it_assumes(job: Path) -> None:
    kaggle, owned, never = Client(job.parent.parent).outlook.on(job, ["T4x2", "A100", "TPUv5e-8", "T4x2"])
    assert "Kaggle: sessions of 12.0 h" in kaggle.assumed
    assert "without a session limit" in owned.assumed
    assert kaggle.choice is not None
    assert owned.choice is not None
    assert kaggle.known
    took = [each.estimate.finish - each.estimate.start for each in (kaggle.choice, owned.choice)]
    assert took[0] > took[1], "an A100 is faster"
    assert never.choice is None
    assert "no profile for TPUv5e-8" in never.reason


def test_an_unknown_accelerator_and_a_missing_job_are_told(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="did you mean 'T4x2'"):
        Client(job.parent.parent).outlook.on(job, "T4x2x")
    assert call(["--home", str(job.parent.parent), "plan", "--on", "T4x2"]) == 2
    assert "needs a job" in capsys.readouterr().err


def test_a_plan_shows_it_and_routes_as_without_it(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(job.parent.parent), "plan", str(job)]
    call([*home, "--json"])
    before = json.loads(capsys.readouterr().out)
    call([*home, "--json", "--on", "A100"])
    after = json.loads(capsys.readouterr().out)
    [imagined] = after["imagined"]
    assert imagined["accelerator"] == "A100"
    assert imagined["estimate"]["sessions"] == 1
    assert after["route"]["chosen"] == before["route"]["chosen"]
    call([*home, "--on", "A100"])
    out = capsys.readouterr().out
    assert "IF YOU HAD" in out
    assert "first guess" in out
