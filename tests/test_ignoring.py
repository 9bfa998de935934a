"""Exceptions in files of patterns: what goes along in spite of a pattern, and what does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.freeze.bundle import frozen
from tests.test_bundle import into, names, source

__all__ = ["into", "source"]  # fixtures


@pytest.mark.parametrize("name", [".gitignore", ".orchestratorignore"])
def test_a_folder_stays_here_although_an_earlier_exception_holds_it(
    source: Path, into: Path, name: str
) -> None:
    (source / "lib" / "private").mkdir(parents=True)
    for path in ("code.py", "private/notes.py"):
        (source / "lib" / path).write_text("")
    (source / name).write_text("*\n!*/\n!lib/**\nprivate/\n")
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    command = ["git", "-C", str(source), "check-ignore", "--no-index", "lib/code.py", "lib/private/notes.py"]
    if name == ".gitignore":
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert told == "lib/private/notes.py\n"
    found = frozen(source, into)
    assert [each.paths for each in found.left_out if each.rule.endswith(": private/")] == [("lib/private/",)]
    assert names(into, found.sha256) == ["lib/code.py"]


def test_an_exception_for_every_folder_in_one_counts(source: Path, into: Path) -> None:
    (source / "lib" / "deep").mkdir(parents=True)
    for path in ("a.bin", "deep/a.py", "deep/a.bin"):
        (source / "lib" / path).write_text("")
    (source / ".gitignore").write_text("/*\n!lib/\nlib/*\n!lib/**/\n*.bin\n")
    found = frozen(source, into)
    assert names(into, found.sha256) == ["lib/deep/a.py"]


@pytest.mark.parametrize("name", [".gitignore", ".orchestratorignore"])
@pytest.mark.parametrize("pattern", ["data/**", "**/data/**", "*?*?*ta/**"])
def test_an_exception_in_a_folder_of_which_all_is_ignored_goes_along(
    source: Path, into: Path, name: str, pattern: str
) -> None:
    (source / "data" / "deep").mkdir(parents=True)
    for path in ("keep.txt", "big.bin", "deep/keep.txt"):
        (source / "data" / path).write_text("")
    (source / name).write_text(f"{pattern}\n!data/keep.txt\n")
    found = frozen(source, into)
    assert [each for each in names(into, found.sha256) if "data" in each] == ["data/keep.txt"]
    (source / name).write_text(f"{pattern}\n")
    assert ("data/",) in [each.paths for each in frozen(source, into).left_out]
