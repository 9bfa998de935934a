"""The program of the GPU benchmark, small enough for every machine and on its CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.training.scripts import ROOT


@pytest.mark.soak
def test_the_benchmark_for_gpus_runs_to_its_end_on_a_cpu() -> None:
    given = ["--small", "--backend", "cpu", "--precision", "fp32", "--length", "64", "--most", "8", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.graphmer_gpu", *given],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    figures = json.loads(done.stdout)
    assert figures["resume is bitwise"] is True
    for name in ("graphmer, activations kept, 8", "graphmer, activations recomputed, 8", "hugging face, 8"):
        assert figures[f"{name}: tokens/s"] > 0
    assert figures["checkpoint: stall, median of the others, ms"] > 0
