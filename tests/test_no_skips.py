"""The effect of a skip on a whole pytest run, with CI=true and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IN_A_TEST = "import pytest\ndef test_a():\n    pytest.skip('no server here')\n"
BY_A_MARK = "import pytest\n@pytest.mark.skip(reason='no server here')\ndef test_a():\n    assert True\n"
OF_A_MODULE = "import pytest\npytest.skip('no server here', allow_module_level=True)\n"
XFAIL = "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_a():\n    assert False\n"


def run_pytest(folder: Path, source: str, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.no_skips",
        "--rootdir",
        str(folder),
        "-c",
        os.devnull,
    ]
    env = os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, str(folder)], env=env, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("source", [IN_A_TEST, BY_A_MARK, OF_A_MODULE], ids=["test", "mark", "module"])
def test_ci_turns_a_skip_into_a_failure_with_its_reason(tmp_path: Path, source: str) -> None:
    done = run_pytest(tmp_path, source, ci="true")
    assert done.returncode != 0, done.stdout
    assert "nothing may be skipped" in done.stdout
    assert "no server here" in done.stdout


def test_elsewhere_a_skip_is_a_skip(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, IN_A_TEST, ci="")
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, XFAIL, ci="true")
    assert done.returncode == 0, done.stdout
    assert "1 xfailed" in done.stdout
