"""How everything is printed: lines and tables for people, JSON for programs, plain text when piped.

All text is made harmless here (`terminal`), except for the styles that `paint` adds. Knows no run and no
command. Loads rich only on a terminal.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.cli import charset
from orchestrator.cli.terminal import one_line, plain
from orchestrator.core.wording import number_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# Marks our own styles inside a text. Nobody else can write one: each process draws a new random word.
_PEN = f"\x1b<{os.urandom(12).hex()}:"
_PENS = re.compile(rf"({_PEN}[0-9]+>)")
# Characters of two columns: Hangul, Han and kana with their punctuation, full-width forms, and emoji.
_WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60"
    "\uffe0-\uffe6\U0001f300-\U0001f64f\U0001f900-\U0001f9ff\U00020000-\U0003fffd]"
)
_SECOND = "\ue000"  # of a private area: `plain` lets none through
WRAPPED_WIDTH = 24  # the last column of a table can do with so much, because it is wrapped
NAMES_SHARE_MAX = 0.45  # of a terminal's width, for the names beside values
GAP = "  "


class Output:
    """Standard output. With `as_json` only `document` and `record` print, otherwise only the others do.

    `done` is what the command has changed, in words; it is told if standard output cannot be written.
    `is_terminal`: one that can be drawn on. `has_width`: any terminal, so lines are wrapped.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.done = ""
        self.local: Callable[[str], str] = str  # turns the times in a text for people into theirs
        self.is_terminal = not as_json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = charset.stand_ins(sys.stdout.encoding)
        self.has_width = not as_json and sys.stdout.isatty()
        self.is_coloured = self.is_terminal and not os.environ.get("NO_COLOR")

    def _told(self, text: str) -> str:
        """With local times, and with what the encoding can show. Before anything is measured and wrapped."""
        return self._shown(self.local(text))

    def say(self, text: str = "") -> None:
        """Prints a line for people."""
        if not self.as_json:
            print(_inked(self._told(text)))

    def wrapped(self, text: str, style: str) -> None:
        """Prints a sentence for people; on a terminal it is wrapped between its words."""
        for line in self.fitted(self._told(text), 0):
            self.say(self.paint(line, style))

    def remark(self, text: str) -> None:
        """Prints a line on standard error, so that piped output stays clean; below what was said before."""
        if not self.as_json:
            self.flush()
            print(_inked(self._told(text)), file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Shows what was said, also in a pipe."""
        sys.stdout.flush()

    def document(self, value: object) -> None:
        """Prints the whole answer as one JSON document."""
        if self.as_json:
            print(_json(value, indent=2))

    def record(self, value: object) -> None:
        """Prints one line of a JSON stream."""
        if self.as_json:
            print(_json(value), flush=True)

    def paint(self, text: str, style: str) -> str:
        """The text in a style, for `say` and `facts`; unchanged if there are no colours."""
        return f"{_PEN}{_STYLES[style]}>{text}{_PEN}0>" if self.is_coloured and text else text

    def phase_colour(self, phase: str) -> str:
        return phase_style(phase) or "bold"

    def facts(self, pairs: Iterable[tuple[str, str]], *, whole: bool = False) -> None:
        """Prints names and values in two aligned columns. A name repeated on the next row is left blank. On a
        narrow terminal, values stand below long names. `whole`: no value is wrapped, such as a command."""
        rows = [(self._told(name), self._told(value)) for name, value in pairs if value]
        width = max((len(name) for name, _ in rows), default=0)
        if self.has_width and width > _columns() * NAMES_SHARE_MAX and not whole:
            self._facts_below(rows)
            return
        before = None
        for name, value in rows:
            shown = "" if name == before else name
            before = name
            lines = value.split("\n") if whole else self.fitted(value, width + len(GAP))
            first, *more = lines or [""]
            self.say(f"{self.paint(shown.ljust(width), 'dim')}{GAP}{first}")
            for line in more:
                self.say(f"{' ' * width}{GAP}{line}")

    def _facts_below(self, rows: Sequence[tuple[str, str]]) -> None:
        before = None
        for name, value in rows:
            if name != before:
                self.say(self.paint(name, "dim"))
            before = name
            for line in self.fitted(value, 2 * len(GAP)):
                self.say(f"{GAP}{GAP}{line}")

    def fitted(self, text: str, indent: int) -> list[str]:
        """The text's lines; on any terminal they are wrapped to the width beside the indent."""
        if _PEN in text:
            return text.split("\n")
        lines = plain(text).rstrip("\n").split("\n")
        if not self.has_width:
            return lines
        room = max(20, _columns() - indent)
        return [
            piece.replace(_SECOND, "")
            for line in lines
            for piece in textwrap.wrap(_doubled(line), room, break_long_words=False, break_on_hyphens=False)
            or [""]
        ]

    def table(
        self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(),
        spare: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Prints aligned columns. `right` are the columns aligned to the right. On a terminal the last column
        is wrapped, and the columns `spare` are left out, in this order, where there is no room."""
        if self.as_json:
            return
        rows = [[self._told(cell) for cell in row] for row in rows]
        kept = _fitting(headers, rows, spare) if self.has_width else list(range(len(headers)))
        if self.is_terminal and not _is_squeezed(headers, rows, kept):
            from rich.console import Console

            table = self.rich_table(headers, rows, right=right, spare=spare)
            Console(no_color=not self.is_coloured, highlight=False).print(table)
            return
        right = frozenset(place for place, c in enumerate(kept) if c in right)
        lines = [[one_line(row[c]) for c in kept] for row in (headers, *rows)]
        widths = [max(len(row[c]) for row in lines) for c in range(len(kept))]
        for number, row in enumerate(lines):
            cells = (
                cell.rjust(width) if c in right else cell.ljust(width)
                for c, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            self._say_row(
                list(cells), sum(widths[:-1]) + len(GAP) * (len(widths) - 1), "" if number else "dim"
            )

    def _say_row(self, cells: list[str], indent: int, style: str) -> None:
        """Wraps the last cell: beside the others, or below them if there is hardly room for it."""
        first, more = cells[-1].rstrip(), []
        if self.has_width and _columns() - indent >= WRAPPED_WIDTH:
            first, *more = self.fitted(first, indent) or [""]
        elif self.has_width and len(first) > _columns() - indent and len(cells) > 1:
            indent = 2 * len(GAP)
            first, more = "", self.fitted(first, indent)
        row = (self._styled(cell, style) for cell in (*cells[:-1], first))
        self.say(GAP.join(row).rstrip())
        for line in more:
            self.say(f"{' ' * indent}{self._styled(line, style)}")

    def _styled(self, cell: str, style: str) -> str:
        chosen = style or phase_style(cell.strip())
        return self.paint(cell, chosen) if chosen else cell

    def rich_table(
        self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(),
        spare: Sequence[int] = (),
    ) -> RichTable:  # fmt: skip
        """The same as a value, for a view that draws it again and again; the times in it are not turned."""
        from rich.table import Table
        from rich.text import Text

        kept = _fitting(headers, rows, spare)
        widths = _widths(headers, rows)
        tight = sum(widths[c] for c in kept) > _columns()
        folded = max(kept[:-1], key=lambda c: widths[c], default=-1) if tight else -1  # the widest one, too
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for c in kept:
            justify: Literal["left", "right"] = "right" if c in right else "left"
            folds = c in (kept[-1], folded)
            table.add_column(headers[c], justify=justify, no_wrap=not folds, overflow="fold")
        for row in rows:
            table.add_row(*(Text(self._shown(plain(row[c])), style=phase_style(row[c])) for c in kept))
        return table


def _fitting(headers: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[int]) -> list[int]:
    """The columns that fit into the terminal, if those are left out that can be spared."""
    kept = list(range(len(headers)))
    widths = _widths(headers, rows)
    for least in spare:
        if sum(widths[c] for c in kept) > _columns():
            kept.remove(least)
    return kept


def _is_squeezed(headers: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> bool:
    """Whether the last column alone lacks the room that it needs."""
    widths = _widths(headers, rows)
    others = sum(widths[c] for c in kept[:-1])
    return others <= _columns() < others + min(widths[kept[-1]] - len(GAP), WRAPPED_WIDTH)


def _widths(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """What each column needs, with the gap behind it."""
    widths = [max(len(row[c]) for row in (headers, *rows)) + len(GAP) for c in range(len(headers))]
    widths[-1] = min(widths[-1], WRAPPED_WIDTH)
    return widths


def _doubled(line: str) -> str:
    """With a mark behind each character that takes two columns, so that its length is its width."""
    return line if line.isascii() else _WIDE.sub(lambda found: found[0] + _SECOND, line)


def _columns() -> int:
    return shutil.get_terminal_size().columns


def phase_style(text: str) -> str:
    """The colour of a phase; empty for any other text."""
    return {
        "running": "cyan", "done": "green", "failed": "red", "held": "yellow", "cancelled": "dim",
        "ok": "green", "missing": "red", "warning": "yellow",
        "holds": "green", "fails": "red", "not seen": "dim",
    }.get(text, "")  # fmt: skip


def _inked(text: str) -> str:
    """The text made harmless, with our own styles as terminal codes."""
    if _PEN not in text:
        return plain(text)
    pieces = _PENS.split(text)
    pieces[::2] = map(plain, pieces[::2])
    pieces[1::2] = (f"\x1b[{pen[len(_PEN) : -1]}m" for pen in pieces[1::2])
    return "".join(pieces)


def _json(value: object, indent: int | None = None) -> str:
    """In ASCII, so that every other character that a session wrote is escaped."""
    return json.dumps(simple(value), indent=indent).replace("\x7f", "\\u007f")


def simple(value: object) -> Any:
    """The value as JSON types: a dataclass becomes its fields, a number that is not finite becomes null."""
    from orchestrator.core import wire

    return _finite(wire.to_json(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def clock_text(seconds: float) -> str:
    """A duration as a clock shows it: `0:37`, `3:07:12`, `2 d 4 h`."""
    if not math.isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    if whole >= 2 * 86400:
        hours_text = f" {whole % 86400 // 3600} h" if whole < 1000 * 86400 else ""
        return f"{number_text(whole // 86400)} d{hours_text}"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
