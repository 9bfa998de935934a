"""How messages name unknown values."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import orchestrator
from orchestrator.core.wording import did_you_mean, unknown


@pytest.mark.parametrize(
    ("given", "valid", "said"),
    [
        ("foldr", ["folder", "s3"], "unknown type 'foldr'; did you mean 'folder'? valid: folder, s3"),
        ("t4X2", ["T4", "T4x2"], "unknown type 't4X2'; did you mean 'T4x2'? valid: T4, T4x2"),
        ("quite-other", ["folder", "s3"], "unknown type 'quite-other'; valid: folder, s3"),
        ("x", [], "unknown type 'x'"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest_and_the_valid(
    given: str, valid: list[str], said: str
) -> None:
    assert unknown(f"type {given!r}", given, valid) == said


def test_several_may_be_near() -> None:
    assert did_you_mean("demo-7f", ["demo-7f3k", "demo-7f9x", "other"], 3).count("'demo-7f") == 2
    assert did_you_mean("demo-7f", ["demo-7f3k", "demo-7f9x", "other"]).count("'") == 2


def test_nothing_long_is_compared() -> None:
    long = "a" * 100_000
    assert unknown("key", long, [long[:-1]] * 100).startswith("unknown key; valid: ")


def test_the_nearest_name_is_sought_in_one_place() -> None:
    package = Path(orchestrator.__file__).parent
    seeking = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(alias.name == "difflib" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "difflib")
    ]
    assert seeking == ["core/wording.py"]
