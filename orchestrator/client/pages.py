"""The pages of docs/, for a person who has no clone: which there are, and what one says of one topic.

A topic is a page's name without `.md`. Decides where the pages lie: a wheel has them beside the package's
modules, a checkout in docs/, where they are written. Links to other pages become topics, and what only a
browser can show is left out. Knows no command and no terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orchestrator
from orchestrator.core.wording import did_you_mean
from orchestrator.errors import InputError

LIST = "topics"  # the word that asks for the list of them; no page has this name
_FENCE = re.compile(r"(^ *(?P<fence>```+|~~~+).*?^ *(?P=fence)[^\n]*$)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n*")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]+)\]\((?!\w+:)(?P<path>[^()\s#]*)(?:#(?P<heading>[\w-]+))?\)")
_HEADING = re.compile(r"^(?P<marks>#{1,6}) (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Heading:
    """`words`: how a person names it, such as `what-resume-promises`. `start`: where it is in the text."""

    title: str
    words: str
    level: int
    start: int


@dataclass(frozen=True)
class Page:
    """A page, or what stands under one of its headings. `text`: Markdown, in which `(→ TOPIC)` is a link."""

    topic: str
    title: str
    text: str

    @property
    def has_links(self) -> bool:
        return "(→ " in self.text

    def headings(self) -> list[Heading]:
        """All but the title."""
        fences = [each.span() for each in _FENCE.finditer(self.text)]
        return [
            Heading(each["title"].replace("`", ""), _words(each["title"]), len(each["marks"]), each.start())
            for each in _HEADING.finditer(self.text)
            if each.start() > 0 and not any(begin <= each.start() < end for begin, end in fences)
        ]

    def under(self, heading: str) -> Page:
        """What stands under this heading: its words, or a part of them that only it has. Raises InputError
        that lists the headings."""
        every = self.headings()
        wanted = _words(heading)
        found = [each for each in every if each.words == wanted]
        found = found or [each for each in every if wanted and wanted in each.words]
        if len({each.words for each in found}) != 1:
            known = [each.words for each in every]
            told = f"; {did_you_mean(wanted, known)}valid: {', '.join(known)}" if known else ""
            many = "more than one heading" if found else "no heading"
            raise InputError(f"the page {self.topic} has {many} {heading!r}{told}")
        at = found[0]
        ends = (each.start for each in every if each.start > at.start and each.level <= at.level)
        return Page(self.topic, at.title, self.text[at.start : next(ends, None)].strip() + "\n")


def topics() -> list[str]:
    """All of them, sorted. Raises InputError if this installation has none."""
    found = sorted(path.stem for path in _place().glob("*.md"))
    if not found:
        raise InputError(f"this installation lacks its pages (nothing in {_place()}); install it again")
    return found


def pages() -> Iterator[Page]:
    """All of them, by topic."""
    return (read(topic) for topic in topics())


def exists(topic: str) -> bool:
    """Whether there is such a page."""
    return re.fullmatch(r"[\w-]+", topic) is not None and (_place() / f"{topic}.md").is_file()


def read(topic: str) -> Page:
    """The page of this topic. Raises InputError if it cannot be read."""
    try:
        text = (_place() / f"{topic}.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise InputError(f"this installation lacks its page {topic} ({why}); install it again") from error
    title = text.partition("\n")[0].removeprefix("# ").replace("`", "").strip()
    return Page(topic, title, _without_links(text, topic))


def _place() -> Path:
    package = Path(orchestrator.__file__).resolve().parent
    shipped = package / "docs"
    return shipped if shipped.is_dir() else package.parent / "docs"


def _words(title: str) -> str:
    """A heading as links spell it, and as one can type it: without the hyphens that punctuation leaves."""
    kept = re.sub(r"[^\w -]", "", title.lower())
    return "-".join(word for word in re.split(r"[ -]+", kept) if word)


def _without_links(text: str, topic: str) -> str:
    """The text with links to topics, outside its code."""
    made = []
    end = 0
    for fence in _FENCE.finditer(text):
        made += [_told(text[end : fence.start()], topic), fence[0]]
        end = fence.end()
    return "".join((*made, _told(text[end:], topic)))


def _told(text: str, topic: str) -> str:
    text = _IMAGE.sub("", _COMMENT.sub("", text)).replace("<br>", ", ")
    return _LINK.sub(lambda link: _topic_of(link, topic), text)


def _topic_of(link: re.Match[str], here: str) -> str:
    """The link's text and its topic; the text alone if it leads to no page, such as to a file of the code."""
    path = link["path"]
    name = Path(path).stem if path else here
    if path and (path != f"{name}.md" or not exists(name)):
        return link["text"]
    heading = f" {_words(link['heading'])}" if link["heading"] else ""
    return f"{link['text']} (→ {name}{heading})"
