"""Build arguments filled in as an engine does, and never larger than the limit."""

from __future__ import annotations

import pytest

from orchestrator.core.build_arguments import TooLong, filled, reference

VALUES = {"A": "1", "B": "$A", "C": "${B}x", "EMPTY": ""}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("python:3.11", "python:3.11"), ("x:$A", "x:1"), ("x:${A}", "x:1"), ("x:$C", "x:1x"),
        ("x:${D:-2}", "x:2"), ("x:${A:+3}", "x:3"), ("x:${EMPTY:-$A}", "x:1"), ("x:${D:-${B}}", "x:1"),
        ("$D", ""), ("x:$", "x:$"), ("${A", "${A"),
    ],
)  # fmt: skip
def test_a_reference_is_filled_in_as_deep_as_its_values_go(written: str, expected: str) -> None:
    assert reference(written, VALUES) == expected


def test_arguments_that_name_each_other_end_at_the_bound() -> None:
    doubling = {"A0": "aaaaaaaa"} | {f"A{n}": f"$A{n - 1}$A{n - 1}" for n in range(1, 31)}
    with pytest.raises(TooLong, match=r"longer than 4,096 characters"):
        reference("$A30", doubling)
    with pytest.raises(TooLong):
        filled("$A" * 10, {"A": "a" * 1000}, 9_999)
    assert len(filled("$A" * 10, {"A": "a" * 1000}, 10_000)) == 10_000


def test_arguments_in_a_circle_and_very_deep_ones_end_too() -> None:
    assert reference("x$A", {"A": "$B", "B": "$A"}) == "x"
    assert reference("$A", {"A": "x$A"}) == "x"
    with pytest.raises(TooLong, match="more than 50 levels"):
        reference("$A0", {f"A{n}": f"$A{n + 1}" for n in range(100_000)})
