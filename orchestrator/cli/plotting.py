"""Curves as text: a plot of braille characters, or of ASCII where the encoding has none, and a sparkline.

Returns lines; prints nothing. Must never know a run or where the numbers come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.core.wording import number_text as number

LINES = "┤│└─┴┊"
_ASCII_LINES = "||+-+:"
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*#"
_BRAILLE = 0x2800
_BRAILLE_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column, from the top
_ASCII_DOTS = " '-'.|,|"  # by which of its three heights are drawn: 1 the top, 2 the middle, 4 the bottom
_NUMBER_MAX = 12  # characters
_TICKS_MAX = 12  # more marks would hide the curve

Place = tuple[int, float]  # a step and a value


def fancy(encoding: str | None) -> bool:
    """Whether this encoding has the characters of the nicer plots."""
    try:
        (chr(_BRAILLE) + LINES + _BLOCKS).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to a share of 0 to 1. A logarithmic one has positive ends."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], log: bool = False) -> Scale:
        """The scale of these values; of 0 to 1 if there are none."""
        found = list(values)
        return cls(min(found), max(found), log) if found else cls(0.0, 1.0, log=False)

    def share(self, value: float) -> float:
        """Where the value lies. 0.5 if all values are the same."""
        low, high, at = (math.log(x) if self.log else x / 2 for x in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5

    def cell(self, value: float, cells: int) -> int:
        return min(cells - 1, max(0, round(self.share(value) * (cells - 1))))


def ends(scale: Scale) -> tuple[str, str]:
    """The scale's ends in words that differ: the low and the high one."""
    low = high = ""
    for digits in (3, 4, 6, 9, 17):
        wider = number(scale.low, digits), number(scale.high, digits)
        if low and max(map(len, wider)) > _NUMBER_MAX:
            break
        low, high = wider
        if low != high or scale.low == scale.high:
            break
    return low, high


class Canvas:
    """Dots in cells of characters: 2 × 4 of braille, or 1 × 3 of ASCII."""

    def __init__(self, columns: int, rows: int, *, nice: bool) -> None:
        self._nice = nice
        self._dots = (2, 4) if nice else (1, 3)
        self.width, self.height = columns * self._dots[0], rows * self._dots[1]
        self._cells = [[0] * columns for _ in range(rows)]

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Draws from one dot to another; (0, 0) is at the lower left."""
        (x, y), (x_end, y_end) = start, end
        steps = max(abs(x_end - x), abs(y_end - y), 1)
        for at in range(steps + 1):
            self._dot(x + round((x_end - x) * at / steps), y + round((y_end - y) * at / steps))

    def _dot(self, x: int, y: int) -> None:
        column, right = divmod(x, self._dots[0])
        row, down = divmod(self.height - 1 - y, self._dots[1])
        self._cells[row][column] |= _BRAILLE_DOTS[right][down] if self._nice else 1 << down

    def rows(self, marks: frozenset[int], mark: str) -> list[str]:
        """The rows of characters. An empty cell in a column of `marks` shows the mark."""
        return ["".join(self._shown(dots, column in marks, mark) for column, dots in enumerate(row)).rstrip()
                for row in self._cells]  # fmt: skip

    def _shown(self, dots: int, marked: bool, mark: str) -> str:
        if not dots:
            return mark if marked else " "
        return chr(_BRAILLE + dots) if self._nice else _ASCII_DOTS[dots]


def plot(
    pieces: Sequence[Sequence[Place]],
    boundaries: Sequence[tuple[int, str]],
    *,
    columns: int,
    rows: int,
    log: bool,
    nice: bool,
) -> list[str]:
    """The lines of a plot that is `columns` wide. The points of a piece are connected. `boundaries`: steps
    where something begins, with its name. A logarithmic plot leaves out what is not above 0."""
    lines = LINES if nice else _ASCII_LINES
    places = [place for piece in pieces for place in piece]
    values = Scale.over((value for _, value in places), log)
    steps = Scale.over(float(step) for step, _ in places)
    low, high = ends(values)
    margin = max(len(low), len(high))
    width = max(10, columns - margin - 2)
    canvas = Canvas(width, rows, nice=nice)
    for piece in pieces:
        dots = [(steps.cell(step, canvas.width), values.cell(value, canvas.height)) for step, value in piece]
        for start, end in zip(dots, dots[1:] or dots, strict=False):
            canvas.line(start, end)
    inside = {steps.cell(step, width): name for step, name in boundaries if steps.low < step < steps.high}
    drawn = frozenset(inside) if len(inside) <= _TICKS_MAX else frozenset()
    body = canvas.rows(drawn, lines[5])
    labels = {0: high, rows - 1: low if low != high else ""}
    told = [f"{labels.get(row, '').rjust(margin)} {lines[0] if labels.get(row) else lines[1]}{text}"
            for row, text in enumerate(body)]  # fmt: skip
    floor = "".join(lines[4] if column in inside else lines[3] for column in range(width))
    first, last = number(int(steps.low)), number(int(steps.high))
    below = _below(width, first, last if last != first else "", inside)
    return [*told, f"{' ' * margin} {lines[2]}{floor}", f"{' ' * margin}  {below}".rstrip()]


def _below(width: int, first: str, last: str, names: dict[int, str]) -> str:
    """The labels below the plot: both ends, and between them the names that have room."""
    room = [" "] * width
    room[: len(first)] = first
    room[width - len(last) :] = last
    for column, name in sorted(names.items()):
        start = max(0, column - len(name) // 2)
        around = room[max(0, start - 1) : start + len(name) + 1]
        if start + len(name) < width and all(each == " " for each in around):
            room[start : start + len(name)] = name
    return "".join(room[:width])


def sparkline(places: Sequence[Place], width: int, *, nice: bool) -> str:
    """The values in one row: of each stretch of steps its mean."""
    blocks = _BLOCKS if nice else _ASCII_BLOCKS
    values = Scale.over(value for _, value in places)
    steps = Scale.over(float(step) for step, _ in places)
    width = min(width, len(places))
    stretches: list[list[float]] = [[] for _ in range(width)]
    for step, value in places:
        stretches[steps.cell(step, width)].append(values.share(value))
    shown, before = "", 0.0
    for stretch in stretches:
        before = sum(stretch) / len(stretch) if stretch else before
        shown += blocks[min(len(blocks) - 1, int(before * len(blocks)))]
    return shown
