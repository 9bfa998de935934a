"""How Markdown looks on a terminal, where rich's own way does not fit: headings, code and tables.

Imported only to draw a page, because rich's Markdown takes a while to load.
"""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownContext, TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

INDENT = 4
THEME = Theme({"markdown.code": "cyan", "markdown.h2": "bold", "markdown.table.border": "dim"})


class _Heading(Heading):
    """At the left, in bold: neither centred nor in a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        yield text


class _CodeBlock(CodeBlock):
    """Indented, in one colour. A long line goes on over the edge, where the terminal breaks it, so that it is
    copied as one; within a list, which has an edge of its own, it is wrapped."""

    def on_enter(self, context: MarkdownContext) -> None:
        super().on_enter(context)
        self.in_list = any(isinstance(each, ListItem) for each in context.stack)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        if self.in_list:
            yield Padding(Text(code, style="cyan", overflow="fold"), (0, 0, 0, INDENT))
            return
        for line in code.split("\n"):
            yield Text(" " * INDENT + line if line else "", style="cyan", no_wrap=True, overflow="ignore")


class _Table(TableElement):
    """A long word, such as a path, goes on in the next line; rich would cut it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class Marked(Markdown):
    """Markdown as rich draws it, with our headings and code."""

    elements = {  # noqa: RUF012 as rich declares it
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "table_open": _Table,
    }
