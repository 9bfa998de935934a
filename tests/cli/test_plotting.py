"""Plots as text, in the encodings that terminals have."""

from __future__ import annotations

import math

import pytest

from orchestrator.cli.plotting import Scale, ends, fancy, plot, sparkline
from orchestrator.core.wording import number_text

HALVING = [(step, 2.0 / step) for step in range(1, 201)]
BEGINS = [(60, "s02"), (120, "s03")]


def drawn(encoding: str, columns: int = 60, log: bool = False) -> list[str]:
    lines = plot([HALVING], BEGINS, columns=columns, rows=6, log=log, nice=fancy(encoding))
    for line in lines:
        line.encode(encoding)  # or it raises
        assert len(line) <= columns
    return lines


def test_in_utf_8_a_plot_is_made_of_braille() -> None:
    lines = drawn("utf-8")
    assert lines[0].startswith("   2 ┤⡇")
    assert lines[5].startswith("0.01 ┤")
    assert lines[5].endswith("⣀")
    assert lines[6].count("┴") == 2, "a mark where each session but the first begins"
    assert all(line.count("┊") >= 1 for line in lines[:5])
    assert lines[7].split() == ["1", "s02", "s03", "200"]
    assert lines[7].index("s02") + 1 == lines[6].index("┴")


@pytest.mark.parametrize("encoding", ["iso-8859-1", "ascii", None])
def test_elsewhere_it_is_made_of_ascii(encoding: str | None) -> None:
    lines = drawn(encoding or "ascii")
    assert lines[0].startswith("   2 ||")
    assert all(line.isascii() for line in lines)
    assert lines[6].count("+") == 3
    assert lines[7].split() == ["1", "s02", "s03", "200"]
    assert not fancy(encoding)


def test_the_curve_falls_from_the_upper_left_to_the_lower_right() -> None:
    lines = plot([[(0, 10.0), (9, 0.0)]], [], columns=20, rows=4, log=False, nice=False)
    at = [min(line.index(dot, 4) for dot in "'-.|," if dot in line[4:]) for line in lines[:4]]
    assert at == sorted(at)
    assert len(set(at)) == 4


def test_a_logarithmic_scale_makes_a_power_even() -> None:
    powers = [(step, 10.0 ** (step / 10)) for step in range(100)]
    scale = Scale.over((value for _, value in powers), log=True)
    assert scale.cell(powers[50][1], 100) == 50
    assert Scale.over([1.0, 10.0**9]).cell(10.0**4, 100) == 0
    assert len({line.strip() for line in drawn("utf-8", log=True)}) > 5


@pytest.mark.parametrize(
    "places",
    [
        [(5, 1.0)],
        [(5, 1.0), (6, 1.0)],
        [(0, 1e308), (2**63 - 1, -1e308)],
        [(0, 5e-324), (1, 0.0)],
        [(0, -0.0), (1, math.nextafter(1.0, 2.0))],
        [(step, float(step % 2)) for step in range(5000)],
    ],
    ids=["one", "flat", "huge", "tiny", "near", "dense"],
)
@pytest.mark.parametrize("nice", [True, False])
def test_odd_values_have_a_plot_too(places: list[tuple[int, float]], nice: bool) -> None:
    many = [(step, f"s{step:02d}") for step in range(3000)]
    lines = plot([places], many, columns=40, rows=3, log=False, nice=nice)
    assert len(lines) == 5
    assert all(len(line) <= 40 for line in lines)
    assert len({*lines[0], *lines[1], *lines[2]} - set(" │┤┊:")) > 1
    assert sparkline(places, 10, nice=nice)


def test_pieces_are_not_connected() -> None:
    apart = [[(0, 0.0), (10, 0.0)], [(90, 0.0), (100, 0.0)]]
    [row] = plot(apart, [], columns=60, rows=1, log=False, nice=False)[:1]
    assert " " * 40 in row
    assert " " * 40 not in plot([[*apart[0], *apart[1]]], [], columns=60, rows=1, log=False, nice=False)[0]


def test_a_sparkline_has_one_row() -> None:
    assert sparkline([(step, step) for step in range(100)], 8, nice=True) == "▁▂▃▄▅▆▇█"
    assert sparkline([(step, step) for step in range(100)], 7, nice=False) == "_.-=+*#"
    assert sparkline([(1, 5.0)], 8, nice=True) == "▅"
    assert sparkline([], 8, nice=True) == ""


def test_the_ends_of_a_scale_differ_in_words() -> None:
    assert ends(Scale(0.99991, 0.99994)) == ("0.9999", "0.99994") or ends(Scale(0.99991, 0.99994))[0] != "1"
    assert ends(Scale(1.0, 2.5)) == ("1", "2.5")
    assert [number_text(value) for value in (0.04312, 13.25, 12500.0, 1.23e9, -1500.0)] == [
        "0.0431", "13.2", "12,500", "1.23e+09", "-1,500",
    ]  # fmt: skip
