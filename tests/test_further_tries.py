"""What further tries do to a whole pytest run: they save a test that lost a race, and say so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ONCE = """
import pathlib
def test_a():
    seen = pathlib.Path("seen")
    was_here = seen.exists()
    seen.touch()
    assert was_here, "the other side was late"
"""
ALWAYS = "def test_a():\n    assert False, 'it is wrong'\n"


def run_pytest(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(source)
    words = [
        "-p",
        "tests.further_tries",
        "--reruns",
        "1",
        "--rootdir",
        str(folder),
        "-c",
        os.devnull,
        str(folder),
    ]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words], env=env, cwd=folder, capture_output=True, text=True
    )


def test_a_test_that_passes_the_second_time_is_counted_and_its_failure_is_printed(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ONCE)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 rerun" in done.stdout
    assert "FAILED, AND TRIED AGAIN" in done.stdout
    assert "the other side was late" in done.stdout


def test_a_test_that_is_wrong_fails(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ALWAYS)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 rerun" in done.stdout
