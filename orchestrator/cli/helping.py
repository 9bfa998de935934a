"""`help`: what `--help` says, by another name; and the pages of the documentation.

Decides which of the two the words mean: a name of both is the command, unless `--page` is given or the next
word is no part of the command.
"""

from __future__ import annotations

import contextlib
import io
import sys
from contextlib import redirect_stdout

from orchestrator.cli import arguments
from orchestrator.cli import pages as showing
from orchestrator.cli.call import Call, Exit
from orchestrator.client import pages
from orchestrator.client.pages import Page


def help_of(call: Call) -> int:
    """Shows all commands, how one is used, or a page. Raises InputError for an unknown one, with the
    nearest."""
    words: list[str] = call.options.words
    if words == [pages.LIST] or (call.options.page and not words):
        return showing.list_topics(call)
    found = meant(words, as_page=call.options.page)
    return _command(call, words) if found is None else showing.show(call, found)


def meant(words: list[str], *, as_page: bool = False) -> Page | None:
    """The page that these words name, or a part of it; None for a command. Raises InputError for neither."""
    if not as_page and _is_of_command(words):
        return None
    return showing.of_words(words, [] if as_page else [each.name for each in arguments.COMMANDS])


def _is_of_command(words: list[str]) -> bool:
    if not words or words[0] in arguments.MEANT:
        return True
    found = next((each for each in arguments.COMMANDS if each.name == words[0]), None)
    parts = () if found is None else found.parts
    is_part = not words[1:] or words[1] in [each.name for each in parts]
    return found is not None and (is_part or not pages.exists(words[0]))


def _command(call: Call, words: list[str]) -> int:
    said = io.StringIO()
    with contextlib.suppress(SystemExit), redirect_stdout(said if call.out.as_json else sys.stdout):
        arguments.parse([*words, "--help"])
    page = words[0] if len(words) == 1 and pages.exists(words[0]) else None
    call.out.document({"command": words, "text": said.getvalue(), "page": page})
    more = ("help", page, "--page") if page else ("help", pages.LIST)
    if page or not words:
        call.out.say()
        call.out.facts([("its page" if page else "pages", call.command(*more))])
    return Exit.OK
