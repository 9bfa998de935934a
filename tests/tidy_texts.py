"""The house rules for all texts, code or not: what they may name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


def own_machine(text: str, words: frozenset[str]) -> Iterator[str]:
    """Traces of the machine where a text was written: `words` (its paths and names), and home folders."""
    for number, line in enumerate(text.splitlines(), start=1):
        found = [word for word in words if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", line)]
        found += re.findall(r"(?<![\w.~}])/(?:home|Users|root|work|srv)/[\w.-]+", line)
        if found:
            yield f"{number}: names a machine of ours: {found[0]}"


def private_notes(text: str) -> Iterator[str]:
    """Citations of our working notes, which are not in the repository."""
    for number, line in enumerate(text.splitlines(), start=1):
        for found in re.findall(r"\bDESIGN[.]md|\bfacts[/][\w-]+[.]\w+|[(]decision[ ]\d+\w?[)]", line):
            yield f"{number}: cites {found}; cite a page of docs/ instead"


def anchors(page: str) -> frozenset[str]:
    """The link targets of a Markdown page: its headings, spelled as GitHub spells them."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)


def citations(text: str, pages: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Cited pages and headings of docs/ that do not exist; `pages` has the anchors of each page. Outside
    references/ and decisions/ a page is only checked if one of its headings is cited."""
    cited = r"(?<![\w./-])(docs/(?:(?:references|decisions)/[\w.-]+\.md|[\w./-]+\.md(?=#)))(?:#([\w-]+))?"
    for number, line in enumerate(text.splitlines(), start=1):
        for page, anchor in re.findall(cited, line):
            if page not in pages:
                yield f"{number}: cites {page}, which does not exist"
            elif anchor and anchor not in pages[page]:
                yield f"{number}: cites the heading {anchor!r}, which {page} lacks"
