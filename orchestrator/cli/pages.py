"""A page of the documentation on a terminal, by rich's Markdown; as Markdown in a pipe.

Decides how wide it is, and what is said below it. Must never know where the pages lie. Loads rich only for a
terminal.
"""

from __future__ import annotations

import shutil
import sys

from orchestrator.cli import charset
from orchestrator.cli.call import Call, Exit
from orchestrator.client import pages
from orchestrator.client.pages import Page
from orchestrator.core.wording import did_you_mean
from orchestrator.errors import InputError

COLUMNS_MAX = 100  # prose in longer lines is hard to read
LINKS = "(→ TOPIC) is another page: `orchestrator help TOPIC --page`"


def list_topics(call: Call) -> int:
    """Lists the pages."""
    found = list(pages.pages())
    call.out.document({"topics": [{"topic": each.topic, "title": each.title} for each in found]})
    call.out.table(("TOPIC", "PAGE"), [(each.topic, each.title) for each in found])
    call.out.say()
    call.out.facts([("next", f"{call.command('help', 'TOPIC')}, or with a heading: "
                             f"{call.command('help', 'training-contract', 'requirements')}")])  # fmt: skip
    return Exit.OK


def show(call: Call, page: Page) -> int:
    """Prints a page, or a part of it."""
    out = call.out
    out.document({"topic": page.topic, "title": page.title, "text": page.text})
    if out.as_json:
        return Exit.OK
    if out.has_width:
        draw(page.text, coloured=out.is_coloured)
    else:
        out.say(page.text.rstrip())
    if page.has_links:
        out.say()
        out.wrapped(LINKS, "dim")
    return Exit.OK


def draw(text: str, *, coloured: bool) -> None:
    """Prints Markdown as wide as the terminal, with what standard output can show."""
    from rich.console import Console

    from orchestrator.cli.marking import THEME, Marked

    columns, lines = shutil.get_terminal_size()
    width = min(columns, COLUMNS_MAX)
    console = Console(no_color=not coloured, highlight=False, width=width, height=lines, theme=THEME)
    console.print(Marked(charset.stand_ins(sys.stdout.encoding)(text), hyperlinks=False), crop=False)


def of_words(words: list[str], commands: list[str]) -> Page:
    """The page that these words name: a topic, and perhaps the words of a heading. The topic may be written
    as pages link it: `docs/kaggle.md#options`. Raises InputError for an unknown one, which may
    have been meant as one of these commands."""
    given, _, linked = words[0].removeprefix("docs/").partition("#")
    topic = given.removesuffix(".md")
    if not pages.exists(topic):
        hint = did_you_mean(topic, [*commands, *pages.topics()])
        listed = f"`orchestrator help {pages.LIST}` lists the pages"
        what = "command or page" if commands else "page"
        raise InputError(f"there is no {what} {words[0]!r}; {hint}{listed}")
    heading = " ".join((*([linked] if linked else []), *words[1:]))
    page = pages.read(topic)
    return page.under(heading) if heading else page
