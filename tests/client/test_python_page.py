"""Every example of docs/python.md runs, in order, as the page shows it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calls import Caller
from tests.cli.conftest import user

__all__ = ["user"]  # a fixture
PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def run_script(user: Caller, source: str) -> str:
    (user.folder / "script.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-W", "error", "script.py"],
        cwd=user.folder, env=user.environment(), capture_output=True, text=True, timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_examples_run_one_after_the_other(user: Caller) -> None:
    user.job(total=40)
    said = run_script(user, "\n".join(BLOCKS)).splitlines()
    assert f"step 40 is in {user.folder / 'result'}, verified" in said
    for line in ("running: step", "ok", "on here/cpu", "held", "cancelled"):
        assert any(each.startswith(line) for each in said), (line, said)
    assert "missing.yaml does not exist" in said
    assert (user.folder / "best").is_dir()
    phases = [each["phase"] for each in user("ps", "--all", "--json").json["runs"]]
    assert {"done", "cancelled"} <= set(phases)
    assert "failed" not in phases


def test_the_examples_for_failures_and_outputs_run(user: Caller) -> None:
    job = user.folder / user.job(total=2)
    whole = job.read_text()
    wrong = "command: {shell: 'echo kept >kept.txt; exit 3'}"
    job.write_text(re.sub("command: .*", wrong, whole) + "retry: {without_progress: 1}\n")
    name = user.submitted(job.name)
    user.wait_for_phase(name, "failed")
    job.write_text(whole)
    kept, retried = (next(each for each in BLOCKS if word in each) for word in ("run.outputs", "run.retry"))
    begin = f"from orchestrator import Client\nrun = Client().run({name!r})\n"
    said = run_script(user, f"{begin}{kept}{retried}").splitlines()
    assert said == ["1 (1,) ()", "('command', 'shell', 'retry') 0"]
    assert (user.folder / "outputs" / "kept.txt").read_text() == "kept\n"
    user.wait_for_phase(name, "done")


def test_the_examples_have_the_types_that_they_use(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCKS))
    checked = [sys.executable, "-m", "mypy", "--strict", str(script)]
    done = subprocess.run(checked, cwd=PAGE.parents[1], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_fits_the_page(number: int) -> None:
    lines = BLOCKS[number].splitlines()
    assert max(map(len, lines)) <= 110
    if number == 0:
        assert len([line for line in lines if line]) <= 12
