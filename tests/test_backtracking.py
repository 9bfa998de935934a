"""Patterns of .gitignore that could take hours to match one name."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from pathspec import GitIgnoreSpec

from orchestrator.freeze import bundle
from orchestrator.freeze.backtracking import without

NAME = "a" * 255
DEEP = "/".join("a" * 2000)


def expression(pattern: str) -> re.Pattern[str]:
    [found] = GitIgnoreSpec.from_lines([pattern]).patterns
    assert isinstance(found.regex, re.Pattern)
    return found.regex


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*?*?*?*?b", NAME), ("a*" * 25 + "b", NAME), ("**a**a**a**a/b", NAME),
        ("*[!b]*[!b]*[!b]*[!b]*b", NAME),
        ("**/a/**/a/**/a/**/b", DEEP), ("/**/a*/**/a*/**/a*/**/a*/**/b", DEEP),
        ("a/**/a/**/a/**/a/**/b/", DEEP),
        ("**/*a*/**/*a*/**/*a*/b", "/".join([NAME] * 15)),
    ],
)  # fmt: skip
def test_what_took_hours_ends(pattern: str, path: str) -> None:
    found = without(expression(pattern))
    assert found.search(path) is None
    assert found.pattern != expression(pattern).pattern


def test_it_matches_what_it_matched() -> None:
    """The pattern's end also decides whether a file or a folder above it is meant."""
    random, changed = Random(17), 0
    for _ in range(1200):
        pieces = random.choices(["a", "b", "*", "?", "/", "/**/", "[ab]", "\\*", "."], k=random.randint(2, 9))
        pattern = random.choice(["", "/", "**/"]) + "".join(pieces) + random.choice(["", "/", "/**"])
        given = GitIgnoreSpec.from_lines([pattern]).patterns[0].regex
        if not isinstance(given, re.Pattern):
            continue
        found = without(given)
        changed += found is not given
        for _ in range(12):
            parts = (
                "".join(random.choices("ab*.", k=random.randint(1, 4))) for _ in range(random.randint(1, 6))
            )
            path = "/".join(parts) + random.choice(["", "/"])
            before, after = given.search(path), found.search(path)
            told = (pattern, path, found.pattern)
            assert (before and before.groupdict()) == (after and after.groupdict()), told
    assert changed > 400


def test_a_source_with_such_names_is_read(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*?*?*?*?b\n**/a/**/a/**/a/**/a/**/b\n")
    deep = tmp_path.joinpath(*["a"] * 300)
    deep.mkdir(parents=True)
    for place in (tmp_path, deep):
        (place / NAME).write_text("")
    (deep / "b").write_text("")
    found = bundle.frozen(tmp_path, tmp_path / "into")
    assert [each.count for each in found.left_out] == [1]


def test_an_expression_that_is_not_understood_stays() -> None:
    odd = re.compile(r"^a(?=b)[^/]*[^/]*c")
    assert without(odd) is odd
