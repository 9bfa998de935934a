"""The zip application has the same bytes every time, and runs where no package of ours is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.agent import archive
from tests.agent.sessions import PATIENCE


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=PATIENCE,
        check=False,
    )


def test_two_builds_are_the_same_bytes_and_leave_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "new" / "agent.pyz"
    archive.build(target)
    first = target.read_bytes()
    archive.build(target)
    assert target.read_bytes() == first == archive.content()
    assert [path.name for path in target.parent.iterdir()] == ["agent.pyz"]


def test_it_holds_the_agent_and_what_that_imports_and_no_more(tmp_path: Path) -> None:
    archive.build(tmp_path / "agent.pyz")
    with zipfile.ZipFile(tmp_path / "agent.pyz") as opened:
        names = set(opened.namelist())
    assert {"__main__.py", "orchestrator/agent/session.py", "orchestrator/training/__init__.py"} <= names
    assert "orchestrator/core/wire.py" in names
    assert "orchestrator/core/decide.py" not in names


@pytest.mark.parametrize(
    "module", ["orchestrator.agent.session", "orchestrator.training", "orchestrator.core.wire"]
)
def test_it_runs_on_the_standard_library_alone(tmp_path: Path, module: str) -> None:
    archive.build(tmp_path / "agent.pyz")
    code = f"import sys; sys.path.insert(0, 'agent.pyz'); import {module} as m; print(m.__file__)"
    answer = run("-c", code, cwd=tmp_path)
    assert answer.stdout.startswith("agent.pyz/orchestrator/"), answer.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["a", "b"], ["folder", "--settings", '{"tick": "x"}'], ["folder", "--settings", "{"]],
)
def test_wrong_usage_is_said(tmp_path: Path, arguments: list[str]) -> None:
    archive.build(tmp_path / "agent.pyz")
    answer = run("agent.pyz", *arguments, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("usage: python agent.pyz FOLDER")
